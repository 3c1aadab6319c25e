"""What the arguments of layers may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_dist.errors import ModelError, did_you_mean, shorten


def check_size(argument: str, value: Any, layer: str) -> int:
    """`value` as a positive integer.

    Raises:
        ModelError: it is none; calls it `argument` of the layer called `layer`.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ModelError(
            f"`{argument}` of layer {layer!r} is not a size",
            given=f"{argument}={shorten(value)}",
            expected="an integer of at least 1",
            fix=f"for example {argument}=32",
        )
    return int(value)


def check_sizes(argument: str, value: Any, rank: int, layer: str) -> tuple[int, ...]:
    """`value` as `rank` positive integers; one stands for all of them.

    Raises:
        ModelError: it is none; calls it `argument` of the layer called `layer`.
    """
    sizes = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,) * rank
    if len(sizes) != rank or any(
        not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 1 for size in sizes
    ):
        raise ModelError(
            f"`{argument}` of layer {layer!r} does not have {rank} sizes",
            given=f"{argument}={shorten(value)}",
            expected=f"an integer of at least 1, or {rank} of them",
            fix=f"for example {argument}={(3,) * rank if rank > 1 else 3}",
        )
    return tuple(int(size) for size in sizes)


def check_option(argument: str, value: Any, options: Sequence[Any], layer: str) -> Any:
    """`value`, if it is one of the options; strings in any case.

    Raises:
        ModelError: it is none; calls it `argument` of the layer called `layer`.
    """
    found = value.lower() if isinstance(value, str) else value
    if found not in options:
        near = did_you_mean(found, [str(option) for option in options]) if isinstance(found, str) else ""
        raise ModelError(
            f"`{argument}` of layer {layer!r} is none of its options{near}",
            given=f"{argument}={shorten(value)}",
            expected=f"one of {', '.join(map(repr, options))}",
            fix=f"for example {argument}={options[0]!r}",
        )
    return found


def check_rate(argument: str, value: Any, layer: str) -> float:
    """`value` as a number from 0 to 1.

    Raises:
        ModelError: it is none; calls it `argument` of the layer called `layer`.
    """
    if not isinstance(value, int | float | np.number) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ModelError(
            f"`{argument}` of layer {layer!r} is not a fraction",
            given=f"{argument}={shorten(value)}",
            expected="a number from 0 to 1",
            fix=f"for example {argument}=0.5",
        )
    return float(value)
