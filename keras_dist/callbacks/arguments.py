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


def check_frequency(callback: str, save_freq: Any) -> None:
    """Nothing, if `save_freq` says when to save: `"epoch"`, or every how many batches.

    Raises:
        ModelError: it does not.
    """
    is_count = isinstance(save_freq, int) and not isinstance(save_freq, bool) and save_freq > 0
    if save_freq != "epoch" and not is_count:
        raise ModelError(
            f"{callback}: `save_freq` cannot be used",
            given=f"save_freq={shorten(save_freq)}",
            expected="'epoch', or a number of batches >= 1",
            fix="for example save_freq=100",
        )
