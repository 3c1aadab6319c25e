"""The API of TensorFlow's DTensor, translated to `keras_dist.distribution`.

Source: names, arguments and defaults as in `tf.experimental.dtensor`.
"""

from keras_dist._support.missing_names import missing_from
from keras_dist.dtensor import keras
from keras_dist.dtensor.clients import (
    barrier,
    client_id,
    full_job_name,
    initialize_accelerator_system,
    job_name,
    jobs,
    local_devices,
    num_clients,
    num_global_devices,
    num_local_devices,
    preferred_device_type,
    shutdown_accelerator_system,
)
from keras_dist.dtensor.dataset import DTensorDataset
from keras_dist.dtensor.function import function, value_and_grad
from keras_dist.dtensor.keras.layout_map import to_layout_map
from keras_dist.dtensor.layout import UNSHARDED, Layout, Mesh, is_dtensor
from keras_dist.dtensor.meshes import create_distributed_mesh, create_mesh
from keras_dist.dtensor.saving import DTensorCheckpoint, name_based_restore, name_based_save
from keras_dist.dtensor.tensors import (
    call_with_layout,
    check_layout,
    copy_to_mesh,
    default_mesh,
    fetch_layout,
    get_default_mesh,
    pack,
    relayout,
    relayout_like,
    run_on,
    unpack,
)
from keras_dist.dtensor.variable import DVariable, Module

__all__ = [
    "UNSHARDED",
    "DTensorCheckpoint",
    "DTensorDataset",
    "DVariable",
    "Layout",
    "Mesh",
    "Module",
    "barrier",
    "call_with_layout",
    "check_layout",
    "client_id",
    "copy_to_mesh",
    "create_distributed_mesh",
    "create_mesh",
    "default_mesh",
    "fetch_layout",
    "full_job_name",
    "function",
    "get_default_mesh",
    "initialize_accelerator_system",
    "is_dtensor",
    "job_name",
    "jobs",
    "keras",
    "local_devices",
    "name_based_restore",
    "name_based_save",
    "num_clients",
    "num_global_devices",
    "num_local_devices",
    "pack",
    "preferred_device_type",
    "relayout",
    "relayout_like",
    "run_on",
    "shutdown_accelerator_system",
    "to_layout_map",
    "unpack",
    "value_and_grad",
]
__getattr__ = missing_from(__name__)
