"""What the arguments of `Model`'s methods may be."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_dist._signatures import takes
from keras_dist.data.arrays import ArraySource
from keras_dist.errors import DataError, ModelError, shorten


def validation_source(validation_data: Any) -> ArraySource:
    """The examples of `validation_data`.

    Raises:
        DataError: it is not `(x, y)` or `(x, y, sample_weight)`.
    """
    if not isinstance(validation_data, tuple | list) or len(validation_data) not in (2, 3):
        raise DataError(
            "`validation_data` cannot be used",
            given=f"{type(validation_data).__name__}"
            + (f" of length {len(validation_data)}" if isinstance(validation_data, tuple | list) else ""),
            expected="(x, y) or (x, y, sample_weight)",
            fix="fit(..., validation_data=(x_test, y_test))",
        )
    return ArraySource(*validation_data, name="validation ")


def check_callable(argument: str, value: Any, parameters: str) -> None:
    """Check that `value` can be called with these parameters.

    Raises:
        ModelError: it cannot; calls it `argument`.
    """
    if not callable(value) or not takes(value, *parameters.split(", ")):
        raise ModelError(
            f"`{argument}` cannot be called as {argument}({parameters})",
            given=f"{shorten(value)} of type {type(value).__name__}",
            expected=f"a callable ({parameters})",
            fix=f"change its parameters: def {argument}({parameters})",
        )


def check_option(argument: str, value: Any, options: tuple[Any, ...]) -> None:
    """Check that `value` is one of the options.

    Raises:
        ModelError: it is not; calls it `argument`.
    """
    if not isinstance(value, bool | int | str | np.bool_) or value not in options:
        raise ModelError(
            f"`{argument}` is none of its options",
            given=f"{argument}={shorten(value)}",
            expected=f"one of {', '.join(map(repr, options))}",
            fix=f"for example {argument}={options[-1]!r}",
        )


def check_width(argument: str, value: Any) -> None:
    """Check that `value` is a number of characters that a table fits in, or None.

    Raises:
        ModelError: it is not; calls it `argument`.
    """
    if value is not None and (not isinstance(value, int | np.integer) or value < 40):
        raise ModelError(
            f"`{argument}` is not the width of a table",
            given=f"{argument}={shorten(value)}",
            expected="an integer of at least 40, or None",
            fix=f"for example {argument}=120",
        )


def epoch_range(initial_epoch: Any, epochs: Any) -> range:
    """The numbers of the epochs from `initial_epoch` to `epochs`.

    Raises:
        ModelError: one of them is not an integer of at least 0.
    """
    if not all(isinstance(epoch, int | np.integer) and epoch >= 0 for epoch in (initial_epoch, epochs)):
        raise ModelError(
            "`epochs` is not a number of epochs",
            given=f"epochs={shorten(epochs)}, initial_epoch={shorten(initial_epoch)}",
            expected="integers of at least 0",
            fix="for example epochs=3",
        )
    return range(initial_epoch, epochs)
