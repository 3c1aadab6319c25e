"""What the arguments of callbacks may be."""

from __future__ import annotations

from typing import Any

from keras_dist.errors import ModelError, shorten


def check_count(callback: str, name: str, value: Any) -> None:
    """Nothing, if `value` is an integer of at least 0.

    Raises:
        ModelError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ModelError(
            f"{callback}: `{name}` is no number of epochs",
            given=f"{name}={shorten(value)}",
            expected="an integer >= 0",
            fix=f"correct `{name}`, or leave it out",
        )
