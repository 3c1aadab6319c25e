"""Config files of runs: their schema, and loading them. Imports no JAX.

`load` reads a file into a `RunConfig`; `parse_mesh_shape` alone reads `"data=2,model=4"` and does not load pydantic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from keras_dist._not_here import missing_from
from keras_dist.config.mesh_shape import parse_mesh_shape

if TYPE_CHECKING:
    from keras_dist.config.loader import load
    from keras_dist.config.migration import MigratedRule, Migration, migrate_layout_map, migrate_rules
    from keras_dist.config.schema import (
        Axes,
        DataParallelConfig,
        DistributionConfig,
        FullyShardedConfig,
        Layout,
        MeshConfig,
        ModelParallelConfig,
        RunConfig,
    )

__all__ = [
    "Axes",
    "DataParallelConfig",
    "DistributionConfig",
    "FullyShardedConfig",
    "Layout",
    "MeshConfig",
    "MigratedRule",
    "Migration",
    "ModelParallelConfig",
    "RunConfig",
    "load",
    "migrate_layout_map",
    "migrate_rules",
    "parse_mesh_shape",
]
_MODULES = {"load": "loader"} | dict.fromkeys(
    ("MigratedRule", "Migration", "migrate_layout_map", "migrate_rules"), "migration"
)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        return missing_from(__name__)(name)
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'schema')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
