"""Batches as tuples, as training steps of Keras take them apart."""

from __future__ import annotations

from typing import Any

from keras_dist._types import PyTree
from keras_dist.errors import DataError, shorten


def pack_x_y_sample_weight(x: PyTree, y: PyTree = None, sample_weight: PyTree = None) -> Any:
    """Return `(x, y, sample_weight)`, `(x, y)`, or x alone; `(x,)` where x is a list or tuple itself.

    Args:
        x: inputs.
        y: targets, if there are any.
        sample_weight: a weight for each example, if there are any.

    Source: `keras.utils.pack_x_y_sample_weight`.
    """
    if y is None:
        return (x,) if isinstance(x, list | tuple) else x
    return (x, y) if sample_weight is None else (x, y, sample_weight)


def unpack_x_y_sample_weight(data: PyTree) -> tuple[PyTree, PyTree, PyTree]:
    """Return a batch as (x, y, sample_weight), with None for what it does not have.

    Args:
        data: x alone, or a tuple or list of at most three parts.

    Raises:
        DataError: there are more.

    Source: `keras.utils.unpack_x_y_sample_weight`.
    """
    parts = tuple(data) if isinstance(data, list | tuple) else (data,)
    if not 1 <= len(parts) <= 3:
        raise DataError(
            "a batch cannot be taken apart",
            given=f"{len(parts)} parts: {shorten(data)}",
            expected="x, (x, y) or (x, y, sample_weight)",
            fix="put several inputs into one tuple: ((a, b), y)",
        )
    x, y, sample_weight = (*parts, None, None)[:3]
    return x, y, sample_weight
