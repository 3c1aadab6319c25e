"""Keras 3's API on JAX, for training on several devices.

Names are loaded at their first use: `import keras_dist` imports no JAX and starts no device.
"""

from __future__ import annotations

import gc
import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from keras_dist._support import backend_environment, missing_names

if TYPE_CHECKING:
    from keras_dist import activations as activations
    from keras_dist import assembly as assembly
    from keras_dist import backend as backend
    from keras_dist import callbacks as callbacks
    from keras_dist import checkpoint as checkpoint
    from keras_dist import config as config
    from keras_dist import constraints as constraints
    from keras_dist import data as data
    from keras_dist import datasets as datasets
    from keras_dist import distribution as distribution
    from keras_dist import dtype_policies as dtype_policies
    from keras_dist import errors as errors
    from keras_dist import export as export
    from keras_dist import initializers as initializers
    from keras_dist import interop as interop
    from keras_dist import layers as layers
    from keras_dist import losses as losses
    from keras_dist import metrics as metrics
    from keras_dist import mixed_precision as mixed_precision
    from keras_dist import models as models
    from keras_dist import ops as ops
    from keras_dist import optimizers as optimizers
    from keras_dist import planner as planner
    from keras_dist import preprocessing as preprocessing
    from keras_dist import pretrained as pretrained
    from keras_dist import random as random
    from keras_dist import regularizers as regularizers
    from keras_dist import saving as saving
    from keras_dist import training as training
    from keras_dist import tree as tree
    from keras_dist import utils as utils
    from keras_dist import visualization as visualization
    from keras_dist.assembly import distribution_from_config as distribution_from_config
    from keras_dist.backend import RematScope as RematScope
    from keras_dist.backend import device as device
    from keras_dist.backend import name_scope as name_scope
    from keras_dist.backend import remat as remat
    from keras_dist.backend import version as version
    from keras_dist.callbacks import History as History
    from keras_dist.compilation_cache import use_compilation_cache as use_compilation_cache
    from keras_dist.distribution import DataParallel as DataParallel
    from keras_dist.distribution import DeviceMesh as DeviceMesh
    from keras_dist.distribution import Distribution as Distribution
    from keras_dist.distribution import FullySharded as FullySharded
    from keras_dist.distribution import LayoutMap as LayoutMap
    from keras_dist.distribution import LayoutPlan as LayoutPlan
    from keras_dist.distribution import ModelParallel as ModelParallel
    from keras_dist.distribution import TensorLayout as TensorLayout
    from keras_dist.distribution import distribute_tensor as distribute_tensor
    from keras_dist.distribution import get_device_count as get_device_count
    from keras_dist.distribution import initialize as initialize
    from keras_dist.distribution import list_devices as list_devices
    from keras_dist.distribution import set_distribution as set_distribution
    from keras_dist.distribution import use_cpu_devices as use_cpu_devices
    from keras_dist.dtype_policies import FloatDTypePolicy as FloatDTypePolicy
    from keras_dist.initializers import Initializer as Initializer
    from keras_dist.layers import Input as Input
    from keras_dist.layers import InputSpec as InputSpec
    from keras_dist.layers import KerasTensor as KerasTensor
    from keras_dist.layers import Layer as Layer
    from keras_dist.layers import Variable as Variable
    from keras_dist.losses import Loss as Loss
    from keras_dist.metrics import Metric as Metric
    from keras_dist.mixed_precision import DTypePolicy as DTypePolicy
    from keras_dist.models import Model as Model
    from keras_dist.models import Sequential as Sequential
    from keras_dist.optimizers import Optimizer as Optimizer
    from keras_dist.planner import AutoParallel as AutoParallel
    from keras_dist.planner import LogicalRules as LogicalRules
    from keras_dist.planner import plan as plan
    from keras_dist.planner import presets as presets
    from keras_dist.pretrained import generate as generate
    from keras_dist.random import set_random_seed as set_random_seed
    from keras_dist.regularizers import Regularizer as Regularizer
    from keras_dist.training import check_equivalence as check_equivalence

__version__ = "0.1.0"

# XLA reads the size of its thread pool when the first device is touched, so it must be right before that
backend_environment.size_thread_pool(backend_environment.fake_device_count())

# names of Keras in packages below the modules that define them
missing_names.tell_place("keras_dist.mixed_precision", ("LossScaleOptimizer",), "keras_dist.optimizers")
_OF_MODELS = ("load_model", "load_weights", "save_model", "save_weights")
missing_names.tell_place("keras_dist.random", ("SeedGenerator",), "keras_dist.variables")
missing_names.tell_place("keras_dist.saving", _OF_MODELS, "keras_dist.models.loading")

_PACKAGES = [
    "activations",
    "assembly",
    "backend",
    "callbacks",
    "checkpoint",
    "config",
    "constraints",
    "data",
    "datasets",
    "distribution",
    "dtype_policies",
    "errors",
    "export",
    "initializers",
    "interop",
    "layers",
    "losses",
    "metrics",
    "mixed_precision",
    "models",
    "ops",
    "optimizers",
    "planner",
    "preprocessing",
    "presets",
    "pretrained",
    "random",
    "regularizers",
    "saving",
    "training",
    "tree",
    "utils",
    "visualization",
]
_NAMES_IN = {
    "assembly": "distribution_from_config",
    "backend": "RematScope device name_scope remat version",
    "callbacks": "History",
    "compilation_cache": "use_compilation_cache",
    "distribution": (
        "DataParallel DeviceMesh Distribution FullySharded LayoutMap LayoutPlan ModelParallel TensorLayout "
        "distribute_tensor get_device_count initialize list_devices set_distribution use_cpu_devices"
    ),
    "dtype_policies": "FloatDTypePolicy",
    "initializers": "Initializer",
    "layers": "Input InputSpec KerasTensor Layer Variable",
    "losses": "Loss",
    "metrics": "Metric",
    "mixed_precision": "DTypePolicy",
    "models": "Model Sequential",
    "optimizers": "Optimizer",
    "planner": "AutoParallel LogicalRules plan",
    "pretrained": "generate",
    "random": "set_random_seed",
    "regularizers": "Regularizer",
    "training": "check_equivalence",
}
_PACKAGE_OF = {name: package for package, names in _NAMES_IN.items() for name in names.split()}

__all__ = [*_PACKAGES, *_PACKAGE_OF]  # pyright: ignore[reportUnsupportedDunderAll]


def _imported(package: str) -> ModuleType:
    """Import a package without garbage collection, which would take a seventh of the time and free nothing."""
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(f"keras_dist.{package}")
    finally:
        if is_collecting:
            gc.enable()


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return _imported("planner.presets" if name == "presets" else name)
    if name in _PACKAGE_OF:
        value = getattr(_imported(_PACKAGE_OF[name]), name)
        globals()[name] = value
        return value
    return missing_names.missing_from(__name__)(name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
