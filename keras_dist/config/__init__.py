"""Config files of runs: their schema, and loading them. Imports no JAX.

`load` reads a file into a `RunConfig`; `parse_mesh_shape` alone reads `"data=2,model=4"` and does not load pydantic.
`keras_dist.assembly` makes objects of what they say.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from keras_dist._not_here import missing_from
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
    from keras_dist.config.migration import MigratedRule as MigratedRule
    from keras_dist.config.migration import Migration as Migration
    from keras_dist.config.migration import migrate_layout_map as migrate_layout_map
    from keras_dist.config.migration import migrate_rules as migrate_rules
    from keras_dist.config.schema import CheckpointConfig as CheckpointConfig
    from keras_dist.config.schema import ClusterConfig as ClusterConfig
    from keras_dist.config.schema import Component as Component
    from keras_dist.config.schema import RunConfig as RunConfig
    from keras_dist.config.schema import TrainingConfig as TrainingConfig

_LAYOUTS = "AutoConfig Axes DataParallelConfig DistributionConfig FoundConfig FullyShardedConfig HybridConfig Layout"
_MODULE_OF = {
    **dict.fromkeys([*_LAYOUTS.split(), "MeshConfig", "ModelParallelConfig", "PresetConfig", "Zero1Config"], "layouts"),
    **dict.fromkeys(["CheckpointConfig", "ClusterConfig", "Component", "RunConfig", "TrainingConfig"], "schema"),
    **dict.fromkeys(["MigratedRule", "Migration", "migrate_layout_map", "migrate_rules"], "migration"),
    "load": "loader",
}

__all__ = ["parse_mesh_shape", *_MODULE_OF]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        return missing_from(__name__)(name)
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
