"""Types that many signatures share: arrays, shapes and pytrees."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from jax.typing import ArrayLike, DTypeLike

PyTree: TypeAlias = Any
"""A nested structure of dicts, lists and tuples, or one leaf; which leaves, the argument's docstring says."""

PyTreeDef: TypeAlias = Any
"""A `jax.tree_util.PyTreeDef`, which type checkers do not know."""

Device: TypeAlias = Any
"""A `jax.Device`, which type checkers do not know."""

Shape: TypeAlias = Sequence[int | None]
"""Sizes of dims; None where a size is known only later, as that of the batch."""

__all__ = ["ArrayLike", "DTypeLike", "Device", "PyTree", "PyTreeDef", "Shape"]
