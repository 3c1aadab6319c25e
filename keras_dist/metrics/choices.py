"""Checks of the arguments of metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_dist.errors import ModelError, did_you_mean, shorten


def check_choice(argument: str, value: Any, options: Sequence[Any]) -> Any:
    """`value`, if it is one of the options.

    Raises:
        ModelError: it is not; calls it `argument`.
    """
    if value in options:
        return value
    near = did_you_mean(value, filter(None, options)) if isinstance(value, str) else ""
    raise ModelError(
        f"`{argument}` is none of its options{near}",
        given=f"{argument}={shorten(value)}",
        expected=f"one of {', '.join(map(repr, options))}",
        fix=f"for example {argument}={options[-1]!r}",
    )


def check_fraction(argument: str, value: Any) -> float:
    """`value`, if it is a number from 0 to 1.

    Raises:
        ModelError: it is not; calls it `argument`.
    """
    if isinstance(value, int | float) and 0 <= value <= 1:
        return value
    raise ModelError(
        f"`{argument}` is no number from 0 to 1",
        given=f"{argument}={shorten(value)}",
        expected="a number from 0 to 1",
        fix=f"for example {argument}=0.5",
    )


def check_at_least(argument: str, value: Any, least: int) -> int:
    """`value`, if it is an integer of at least `least`.

    Raises:
        ModelError: it is not; calls it `argument`.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    raise ModelError(
        f"`{argument}` is too small, or no integer",
        given=f"{argument}={shorten(value)}",
        expected=f"an integer of at least {least}",
        fix=f"for example {argument}={least}",
    )
