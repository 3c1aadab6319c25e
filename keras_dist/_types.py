"""Types that many signatures share: arrays, shapes and pytrees."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from jax.typing import ArrayLike, DTypeLike

PyTree: TypeAlias = Any
"""A nested structure of dicts, lists and tuples, or one leaf; which leaves, the argument's docstring says."""

Shape: TypeAlias = Sequence[int | None]
"""Sizes of dims; None where a size is known only later, as that of the batch."""

__all__ = ["ArrayLike", "DTypeLike", "PyTree", "Shape"]
