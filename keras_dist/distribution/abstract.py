"""Models without arrays, on meshes whose devices need not exist: what is planned before anything is allocated."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar

_is_abstract: ContextVar[bool] = ContextVar("keras_dist_is_abstract", default=False)


@contextlib.contextmanager
def without_arrays() -> Generator[None]:
    """Inside, the state of models consists of `jax.ShapeDtypeStruct`s, and meshes are `jax.sharding.AbstractMesh`es.

    Steps can be traced and lowered, but not run.
    """
    token = _is_abstract.set(True)
    try:
        yield
    finally:
        _is_abstract.reset(token)


def is_without_arrays() -> bool:
    """Whether this is inside `without_arrays`."""
    return _is_abstract.get()
