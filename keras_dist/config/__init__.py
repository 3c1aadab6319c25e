"""Config files of runs, and the settings of `keras.config`. Imports no JAX, except for the dtype policy.

`load` reads a file into a `RunConfig`, from which `keras_dist.assembly` creates objects. `parse_mesh_shape` does not
load pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from, tell_place
from keras_dist.config.mesh_shape import parse_mesh_shape

if TYPE_CHECKING:
    from keras_dist.config.layouts import AutoConfig as AutoConfig
    from keras_dist.config.layouts import Axes as Axes
    from keras_dist.config.layouts import DataParallelConfig as DataParallelConfig
    from keras_dist.config.layouts import DistributionConfig as DistributionConfig
    from keras_dist.config.layouts import FoundConfig as FoundConfig
    from keras_dist.config.layouts import FullyShardedConfig as FullyShardedConfig
    from keras_dist.config.layouts import HybridConfig as HybridConfig
    from keras_dist.config.layouts import Layout as Layout
    from keras_dist.config.layouts import MeshConfig as MeshConfig
    from keras_dist.config.layouts import ModelParallelConfig as ModelParallelConfig
    from keras_dist.config.layouts import PresetConfig as PresetConfig
    from keras_dist.config.layouts import Zero1Config as Zero1Config
    from keras_dist.config.loader import load as load
    from keras_dist.config.schema import CheckpointConfig as CheckpointConfig
    from keras_dist.config.schema import ClusterConfig as ClusterConfig
    from keras_dist.config.schema import Component as Component
    from keras_dist.config.schema import LoraConfig as LoraConfig
    from keras_dist.config.schema import RunConfig as RunConfig
    from keras_dist.config.schema import SaveConfig as SaveConfig
    from keras_dist.config.schema import TrainingConfig as TrainingConfig
    from keras_dist.config.settings import backend as backend
    from keras_dist.config.settings import disable_flash_attention as disable_flash_attention
    from keras_dist.config.settings import disable_interactive_logging as disable_interactive_logging
    from keras_dist.config.settings import disable_traceback_filtering as disable_traceback_filtering
    from keras_dist.config.settings import enable_flash_attention as enable_flash_attention
    from keras_dist.config.settings import enable_interactive_logging as enable_interactive_logging
    from keras_dist.config.settings import enable_traceback_filtering as enable_traceback_filtering
    from keras_dist.config.settings import enable_unsafe_deserialization as enable_unsafe_deserialization
    from keras_dist.config.settings import epsilon as epsilon
    from keras_dist.config.settings import image_data_format as image_data_format
    from keras_dist.config.settings import is_flash_attention_enabled as is_flash_attention_enabled
    from keras_dist.config.settings import is_interactive_logging_enabled as is_interactive_logging_enabled
    from keras_dist.config.settings import is_nnx_enabled as is_nnx_enabled
    from keras_dist.config.settings import is_traceback_filtering_enabled as is_traceback_filtering_enabled
    from keras_dist.config.settings import max_epochs as max_epochs
    from keras_dist.config.settings import max_steps_per_epoch as max_steps_per_epoch
    from keras_dist.config.settings import set_backend as set_backend
    from keras_dist.config.settings import set_epsilon as set_epsilon
    from keras_dist.config.settings import set_image_data_format as set_image_data_format
    from keras_dist.config.settings import set_max_epochs as set_max_epochs
    from keras_dist.config.settings import set_max_steps_per_epoch as set_max_steps_per_epoch
    from keras_dist.mixed_precision import dtype_policy as dtype_policy
    from keras_dist.mixed_precision import floatx as floatx
    from keras_dist.mixed_precision import set_dtype_policy as set_dtype_policy
    from keras_dist.mixed_precision import set_floatx as set_floatx

_NAMES_IN = {
    "keras_dist.config.layouts": (
        "AutoConfig Axes DataParallelConfig DistributionConfig FoundConfig FullyShardedConfig HybridConfig Layout "
        "MeshConfig ModelParallelConfig PresetConfig Zero1Config"
    ),
    "keras_dist.config.loader": "load",
    "keras_dist.config.schema": (
        "CheckpointConfig ClusterConfig Component LoraConfig RunConfig SaveConfig TrainingConfig"
    ),
    "keras_dist.config.settings": (
        "backend disable_flash_attention disable_interactive_logging disable_traceback_filtering "
        "enable_flash_attention enable_interactive_logging enable_traceback_filtering enable_unsafe_deserialization "
        "epsilon image_data_format is_flash_attention_enabled is_interactive_logging_enabled is_nnx_enabled "
        "is_traceback_filtering_enabled max_epochs max_steps_per_epoch set_backend set_epsilon set_image_data_format "
        "set_max_epochs set_max_steps_per_epoch"
    ),
    "keras_dist.mixed_precision": "dtype_policy floatx set_dtype_policy set_floatx",
}
__all__ = ["parse_mesh_shape"]
for _module, _names in _NAMES_IN.items():
    tell_place(__name__, _names.split(), _module)
    __all__ += _names.split()  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__ = missing_from(__name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
