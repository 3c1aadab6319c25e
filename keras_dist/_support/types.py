"""Types that many signatures share: arrays, shapes and pytrees."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from jax.typing import ArrayLike, DTypeLike

PyTree: TypeAlias = Any
"""A nested structure of dicts, lists and tuples, or one leaf; docstrings describe the leaves."""

PyTreeDef: TypeAlias = Any
"""A `jax.tree_util.PyTreeDef`, which type checkers do not resolve."""

Device: TypeAlias = Any
"""A `jax.Device`, which type checkers do not resolve."""

Shape: TypeAlias = Sequence[int | None]
"""Sizes of dims; None for an unknown size, such as the batch."""

__all__ = ["ArrayLike", "DTypeLike", "Device", "PyTree", "PyTreeDef", "Shape"]
