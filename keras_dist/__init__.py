"""keras_dist: Keras 3's distribution API for training Flax models on more than one device.

Names are loaded when they are first used: `import keras_dist` imports no JAX and starts no device.
"""

from __future__ import annotations

import importlib
from typing import Any

from keras_dist import _environment

__version__ = "0.1.0"

_environment.size_thread_pool(_environment.fake_device_count())

_PACKAGES = (
    "callbacks",
    "config",
    "datasets",
    "distribution",
    "errors",
    "layers",
    "losses",
    "metrics",
    "optimizers",
    "random",
    "utils",
)

_NAMES = {
    "DataParallel": "distribution",
    "DeviceMesh": "distribution",
    "Distribution": "distribution",
    "FullySharded": "distribution",
    "LayoutMap": "distribution",
    "LayoutPlan": "distribution",
    "ModelParallel": "distribution",
    "TensorLayout": "distribution",
    "distribute_tensor": "distribution",
    "get_device_count": "distribution",
    "initialize": "distribution",
    "list_devices": "distribution",
    "set_distribution": "distribution",
    "use_cpu_devices": "distribution",
    "Model": "models",
    "History": "callbacks",
    "check_equivalence": "training",
    "distribution_from_config": "assembly",
    "set_random_seed": "random",
}

__all__ = sorted([*_PACKAGES, *_NAMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"keras_dist.{name}")
    if name in _NAMES:
        value = getattr(importlib.import_module(f"keras_dist.{_NAMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'keras_dist' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
