"""Layouts of arrays: Keras 3's distribution API on `jax.sharding`, and the `LayoutPlan` it writes.

Source: names, arguments and defaults as in `keras.distribution`.
"""

from keras_dist._support.raw_errors import explain_functions
from keras_dist.distribution.data_parallel import DataParallel
from keras_dist.distribution.devices import get_device_count, list_devices, use_cpu_devices
from keras_dist.distribution.fully_sharded import FullySharded
from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.model_parallel import ModelParallel
from keras_dist.distribution.placement import distribute_tensor
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.strategy import Distribution, distribution, register_strategy, set_distribution
from keras_dist.jobs.job import Cluster, cluster, is_chief, process_count, process_index
from keras_dist.jobs.job_arguments import CommunicationOptions
from keras_dist.jobs.joining import initialize

__all__ = [
    "Cluster",
    "CommunicationOptions",
    "DataParallel",
    "DeviceMesh",
    "Distribution",
    "FullySharded",
    "LayoutMap",
    "LayoutPlan",
    "ModelParallel",
    "TensorLayout",
    "cluster",
    "distribute_tensor",
    "distribution",
    "get_device_count",
    "initialize",
    "is_chief",
    "list_devices",
    "process_count",
    "process_index",
    "register_strategy",
    "set_distribution",
    "use_cpu_devices",
]

explain_functions(vars())
