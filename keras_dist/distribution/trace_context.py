"""`Tracing`: settings of the program that is traced, and notes of its layers for the plan.

JAX transforms functions below a step, and layers inside modules of users are called by these; so layers read a context
variable, as they read the mesh of `jax.set_mesh`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from keras_dist._support import ambient


@dataclasses.dataclass(frozen=True, eq=False)
class Tracing:
    """Settings of the program that is traced."""

    distribution: Any = None  # whose mesh JAX's context has
    platform: str | None = None  # of a plan, whose meshes are abstract; "" for that of the mesh
    may_use_kernels: bool = True
    pipelining: Any = None  # the `Pipelining` of a step
    is_whole_batch: bool = False  # micro-batches must divide the rows
    names_scopes: bool = False  # operations are named by their modules, for reports
    kernels: dict[str, None] | None = None  # notes of layers, in order
    pipelines: dict[Any, None] | None = None  # notes of stacks of layers, in order
    wide: dict[str, str] | None = None  # why modules of Flax compute in a wider type than the policy's


_OUTSIDE = Tracing()


def current() -> Tracing:
    """Return the settings of the program that is traced."""
    return ambient.tracing.get() or _OUTSIDE


def traced_with(**fields: Any) -> contextlib.AbstractContextManager[object]:
    """Context manager in which fields of `Tracing` have other values."""
    return ambient.with_fields(ambient.tracing, _OUTSIDE, **fields)
