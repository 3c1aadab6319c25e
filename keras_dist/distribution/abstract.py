"""Models without arrays, on meshes whose devices need not exist: what is planned before anything is allocated."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar

_platform: ContextVar[str | None] = ContextVar("keras_dist_planned_platform", default=None)
_OF_THE_MESH = ""


@contextlib.contextmanager
def without_arrays(platform: str | None = None) -> Generator[None]:
    """Inside, the state of models consists of `jax.ShapeDtypeStruct`s, and meshes are `jax.sharding.AbstractMesh`es.

    Steps can be traced and lowered, but not run.

    Args:
        platform: what they are lowered for: `"cpu"`, `"tpu"`, `"cuda"`; None for the devices of the mesh.
    """
    token = _platform.set(platform or _OF_THE_MESH)
    try:
        yield
    finally:
        _platform.reset(token)


def is_without_arrays() -> bool:
    """Whether this is inside `without_arrays`."""
    return _platform.get() is not None


def planned_platform() -> str | None:
    """The platform that `without_arrays` was told; None outside of it, and where it was told none."""
    return _platform.get() or None
