"""Rows for sources of data, and how they are read and compared."""

from typing import Any

import jax
import numpy as np

from keras_dist.data import adapters

source_of: Any = adapters.source_of

X = np.arange(40, dtype="f4").reshape(20, 2)
Y = np.arange(20, dtype="i4") % 3
W = np.linspace(0, 1, 20, dtype="f4")


def reads(source: Any, multiple_of: int = 1) -> list[Any]:
    """The real rows of the batches."""
    return [
        jax.tree.map(lambda leaf, rows=batch.rows: leaf[:rows], batch.arrays) for batch in source.batches(multiple_of)
    ]


def assert_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert type(one) is np.ndarray and one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
