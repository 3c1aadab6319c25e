"""Hyperparameters in their ranges."""

from __future__ import annotations

import math
from typing import Any

from keras_dist.errors import ModelError, shorten


def check_number(
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    above: float = -math.inf,
    below: float = math.inf,
) -> None:
    """Nothing, if `value` is a finite number with `low <= value <= high` and `above < value < below`.

    Raises:
        ModelError: it is not.
    """
    try:
        fits = not isinstance(value, bool) and math.isfinite(value) and low <= value <= high and above < value < below
    except TypeError:
        fits = False
    if not fits:
        lower = [f">= {low:g}"] * (low > -math.inf) + [f"> {above:g}"] * (above > -math.inf)
        upper = [f"<= {high:g}"] * (high < math.inf) + [f"< {below:g}"] * (below < math.inf)
        raise ModelError(
            f"`{name}` is out of range",
            given=f"{name}={shorten(value)}",
            expected=" ".join(["a number", " and ".join(lower + upper)]).strip(),
            fix=f"correct `{name}`",
        )


def check_count(name: str, value: Any, least: int) -> None:
    """Nothing, if `value` is an integer of at least `least`.

    Raises:
        ModelError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ModelError(
            f"`{name}` is no count of steps",
            given=f"{name}={shorten(value)}",
            expected=f"an integer >= {least}",
            fix=f"correct `{name}`, or leave it out",
        )
