"""Abstract meshes: while a step is planned, meshes are `jax.sharding.AbstractMesh`es, whose devices need not exist.

This is ambient, because layers and users' functions refer to meshes of their own. Only `DeviceMesh` reads it. The rest
follows from the mesh: arrays that are placed on an abstract mesh are `jax.ShapeDtypeStruct`s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar

_platform: ContextVar[str | None] = ContextVar("keras_dist_planned_platform", default=None)
_OF_THE_MESH = ""


@contextlib.contextmanager
def abstract_meshes(platform: str | None = None) -> Generator[None]:
    """Inside, meshes are abstract. Steps can be traced and lowered, but not run.

    Args:
        platform: the platform to lower for: `"cpu"`, `"tpu"`, `"cuda"`; None for the devices of the mesh.
    """
    token = _platform.set(platform or _OF_THE_MESH)
    try:
        yield
    finally:
        _platform.reset(token)


def meshes_are_abstract() -> bool:
    """Whether this is inside `abstract_meshes`."""
    return _platform.get() is not None


def planned_platform() -> str | None:
    """The platform given to `abstract_meshes`; None outside of it, and where none was given."""
    return _platform.get() or None
