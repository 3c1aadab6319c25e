"""What a source gives for a batch or an example: `x`, `(x,)`, `(x, y)` or `(x, y, sample_weight)`."""

from __future__ import annotations

from typing import Any

from keras_dist.errors import DataError, shorten


def unpack(element: Any, name: str) -> tuple[Any, Any, Any]:
    """`(x, y, sample_weight)`, with None for what is not there.

    Args:
        element: a list is as good as a tuple; whatever else is `x`.
        name: how errors call it.

    Raises:
        DataError: a tuple of another length.

    Source: `keras.utils.unpack_x_y_sample_weight`.
    """
    if not isinstance(element, tuple | list):
        return element, None, None
    if 1 <= len(element) <= 3:
        x, y, sample_weight = (*element, None, None)[:3]
        return x, y, sample_weight
    raise DataError(
        f"{name} cannot be used",
        given=f"a {type(element).__name__} of {len(element)}: {shorten(element)}",
        expected="x, (x,), (x, y) or (x, y, sample_weight)",
        fix="put several inputs in a tuple of their own: ((a, b), y)",
    )
