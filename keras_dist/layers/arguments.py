"""What the arguments of layers may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_dist.errors import ModelError, did_you_mean, shorten

LARGEST_SIZE = 2**31 - 1
"""Of a dim: JAX counts indices in 32 bits."""


def check_size(argument: str, value: Any, layer: str) -> int:
    """`value` as a positive integer.

    Raises:
        ModelError: it is none; calls it `argument` of the layer called `layer`.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 1 <= value <= LARGEST_SIZE:
        raise ModelError(
            f"`{argument}` of layer {layer!r} is not a size",
            given=f"{argument}={shorten(value)}",
            expected=f"an integer of at least 1 and at most {LARGEST_SIZE}",
            fix=f"for example {argument}=32",
        )
    return int(value)


def check_sizes(argument: str, value: Any, rank: int, layer: str, least: int = 1) -> tuple[int, ...]:
    """`value` as `rank` integers of at least `least`; one stands for all of them.

    Raises:
        ModelError: it is none; calls it `argument` of the layer called `layer`.
    """
    sizes = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,) * rank
    if len(sizes) != rank or any(
        not isinstance(size, int | np.integer) or isinstance(size, bool) or not least <= size <= LARGEST_SIZE
        for size in sizes
    ):
        raise ModelError(
            f"`{argument}` of layer {layer!r} does not have {rank} sizes",
            given=f"{argument}={shorten(value)}",
            expected=f"an integer of at least {least} and at most {LARGEST_SIZE}, or {rank} of them",
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


def check_axis(argument: str, value: Any, layer: str) -> int:
    """`value` as an integer.

    Raises:
        ModelError: it is none; calls it `argument` of the layer called `layer`.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise ModelError(
            f"`{argument}` of layer {layer!r} names no dim of the input",
            given=f"{argument}={shorten(value)}",
            expected="one integer",
            fix=f"for example {argument}=-1",
        )
    return int(value)


def check_axes(argument: str, value: Any, layer: str) -> tuple[int, ...]:
    """`value`, an integer or several different ones, as a tuple.

    Raises:
        ModelError: it is none; calls it `argument` of the layer called `layer`.
    """
    axes = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    whole = all(isinstance(axis, int | np.integer) and not isinstance(axis, bool) for axis in axes)
    if not axes or not whole or len(set(axes)) < len(axes):
        raise ModelError(
            f"`{argument}` of layer {layer!r} names no dims of the input",
            given=f"{argument}={shorten(value)}",
            expected="an integer, or a list of different ones",
            fix=f"for example {argument}=-1",
        )
    return tuple(int(axis) for axis in axes)


def check_axes_exist(argument: str, axes: Sequence[int], shape: Sequence[int | None], layer: str) -> tuple[int, ...]:
    """`axes` counted from the front, in ascending order.

    Raises:
        ModelError: `shape` has no such dim, or two name the same; calls them `argument` of the layer called `layer`.
    """
    rank = len(shape)
    found = sorted(axis % rank for axis in axes if -rank <= axis < rank)
    if len(set(found)) < len(axes):
        raise ModelError(
            f"`{argument}` of layer {layer!r} names dims that its input does not have, or one of them twice",
            given=f"{argument}={list(axes)} for an input of shape {tuple(shape)}",
            expected=f"different integers from {-rank} to {rank - 1}",
            fix=f"correct {argument}, or reshape the input",
        )
    return tuple(found)


def check_at_least_zero(argument: str, value: Any, layer: str) -> float:
    """`value` as a number that is not negative.

    Raises:
        ModelError: it is none; calls it `argument` of the layer called `layer`.
    """
    if not isinstance(value, int | float | np.number) or isinstance(value, bool) or not value >= 0:
        raise ModelError(
            f"`{argument}` of layer {layer!r} is not a number of at least 0",
            given=f"{argument}={shorten(value)}",
            expected="a number of at least 0",
            fix=f"for example {argument}=0.001",
        )
    return float(value)


def check_above_zero(argument: str, value: Any, layer: str) -> float:
    """`value` as a number above 0.

    Raises:
        ModelError: it is none; calls it `argument` of the layer called `layer`.
    """
    if not isinstance(value, int | float | np.number) or isinstance(value, bool) or not value > 0:
        raise ModelError(
            f"`{argument}` of layer {layer!r} is not a number above 0",
            given=f"{argument}={shorten(value)}",
            expected="a number above 0",
            fix=f"for example {argument}=1.0",
        )
    return float(value)


def check_numbers(argument: str, value: Any, layer: str) -> Any:
    """`value`, a number or an array of them, as a float or as tuples of floats: layers hold no arrays but weights.

    Raises:
        ModelError: it is none; calls it `argument` of the layer called `layer`.
    """
    try:
        return _as_tuples(np.asarray(value, "float64").tolist())
    except (TypeError, ValueError):
        raise ModelError(
            f"`{argument}` of layer {layer!r} is neither a number nor an array of numbers",
            given=f"{argument}={shorten(value)}",
            expected="a number, or an array",
            fix=f"for example {argument}=1.0",
        ) from None


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def check_broadcasts(argument: str, shape: Sequence[int], to: Sequence[int], layer: str) -> None:
    """Check that an array of `shape` can be broadcast to an input of shape `to`.

    Raises:
        ModelError: it cannot; calls it `argument` of the layer called `layer`.
    """
    if len(shape) > len(to) or any(a not in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False)):
        raise ModelError(
            f"`{argument}` of layer {layer!r} does not fit its input",
            given=f"{argument} of shape {tuple(shape)} for an input of shape {tuple(to)}",
            expected="at most as many dims, and each, counted from the last, of size 1 or that of the input",
            fix=f"reshape {argument}, for example with dims of size 1 at its end",
        )
