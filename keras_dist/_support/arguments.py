"""Checks of arguments, which return the value, or raise an error that names the argument and what it accepts.

Scalars of numpy and arrays without dims are numbers; bools are not.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, Concatenate, ParamSpec, TypeGuard, TypeVar, cast

import numpy as np

from keras_dist._support.signatures import is_method, takes
from keras_dist.errors import (
    ArgumentTypeError,
    KerasDistError,
    ModelError,
    did_you_mean,
    one_of,
    shorten,
    type_name,
    unknown_name_error,
    with_type,
)

Arguments = ParamSpec("Arguments")
Checked = TypeVar("Checked")

LARGEST_SIZE = 2**31 - 1
"""The largest size of a dim: JAX counts indices in 32 bits."""


def is_keras_object(value: object, name: str) -> bool:
    """Return whether `value` is an object of Keras's class `name`, which need not be imported."""
    return any(cls.__name__ == name and cls.__module__.startswith("keras.") for cls in type(value).__mro__)


def argument_error(
    argument: str,
    value: object,
    expected: str,
    *,
    wrong: str = "",
    layer: str = "",
    example: object = None,
    fix: str = "",
    error: type[KerasDistError] = ModelError,
) -> KerasDistError:
    """Return the error for a wrong value of an argument: "`units` must be a positive integer".

    Args:
        argument: the name of the argument.
        value: the given value.
        expected: description of accepted values, such as "a positive integer".
        wrong: predicate instead of "must be", such as "does not broadcast".
        layer: the name of the layer whose argument it is.
        example: an accepted value, for the fix.
        fix: the fix in words.
        error: the class of the error.
    """
    kind = type_name(value)  # which recognises classes of Keras
    if not fix:
        fix = f"correct `{argument}`, or leave it out" if example is None else f"for example {argument}={example!r}"
    return error(
        f"`{argument}`{_of(layer)} {wrong or f'must be {expected}'}",
        given=f"{argument}={shorten(value)}" + (f" of type {kind}" if kind != type(value).__name__ else ""),
        expected=expected if wrong else "",
        fix=fix,
    )


def names_error(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> KerasDistError | None:
    """Return the error of a call with unknown or missing arguments, with the valid names; None for other calls."""
    parameters = inspect.signature(function).parameters
    known = [name for name, one in parameters.items() if one.kind in _BY_NAME][is_method(function) :]
    is_constructor = function.__name__ == "__init__" and bool(args)
    called = type(args[0]).__name__ if is_constructor else function.__name__
    unknown = {name: value for name, value in kwargs.items() if name not in known}
    if unknown:
        given = ", ".join(f"{name}={shorten(value)}" for name, value in unknown.items())
        summary = f"`{called}` has no argument"
        return unknown_name_error(summary, next(iter(unknown)), known, given=given, error=ArgumentTypeError)
    required = [name for name in known if parameters[name].default is inspect.Parameter.empty]
    missing = [name for name in required if name not in {*kwargs, *list(parameters)[: len(args)]}]
    if missing:
        summary, fix = f"`{called}` needs {', '.join(f'`{name}`' for name in missing)}", ", ".join(required)
        return ArgumentTypeError(summary, fix=f"for example {called}({fix})")
    return None


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def check_exclusive(error: type[KerasDistError] = ModelError, fix: str = "", **arguments: Any) -> None:
    """Check that at most one of these arguments is not None."""
    given = {name: value for name, value in arguments.items() if value is not None}
    if len(given) > 1:
        raise error(
            f"{' and '.join(f'`{name}`' for name in given)} cannot be used together",
            given=", ".join(f"{name}={shorten(value)}" for name, value in given.items()),
            fix=fix or "leave one of them out",
        )


def shapes(**arrays: Any) -> str:
    """Return the shapes of arrays by name, for `given`: "y_true of shape (8,), y_pred of shape (8, 3)"."""
    return ", ".join(f"{name} of shape {tuple(np.shape(array))}" for name, array in arrays.items())


def check_kind(
    argument: str,
    value: object,
    kinds: type | UnionType | tuple[type, ...],
    expected: str,
    *,
    fix: str = "",
    error: type[KerasDistError] = ModelError,
) -> None:
    """Check that `value` is an instance of these classes."""
    if not isinstance(value, kinds):
        raise argument_error(argument, value, expected, fix=fix, error=error)


def check_flag(argument: str, value: Any, error: type[KerasDistError] = ModelError) -> bool:
    """Return `value` as a bool, if it is a bool, 0 or 1."""
    if value is True or value is False or isinstance(value, np.bool_) or is_int(value, 0, 1):
        return bool(cast("int", value))
    raise argument_error(argument, value, "True or False", error=error)


def check_flags(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Check arguments of a function of this package that are annotated as `bool`, and its `name`."""
    for name, is_flag in _flags_of(function):
        if given.get(name) is not None:  # Keras takes None for False
            _ = check_flag(name, given[name]) if is_flag else check_kind(name, given[name], str, "a string")


@functools.cache
def _flags_of(function: Callable[..., Any]) -> list[tuple[str, bool]]:
    if not getattr(function, "__module__", "").startswith("keras_dist."):
        return []
    kinds = {name: parameter.annotation for name, parameter in inspect.signature(function).parameters.items()}
    flags = [(name, True) for name, kind in kinds.items() if kind == "bool"]
    return flags + [("name", False)] * (kinds.get("name") in ("str", "str | None"))


def check_axis_sizes(argument: str, value: Any, error: type[KerasDistError] = ModelError) -> dict[str, int]:
    """Return `value` as a dict, if it maps names of mesh axes to sizes."""
    sizes = cast("Mapping[object, object]", value) if isinstance(value, Mapping) else {0: 0}
    if all(isinstance(name, str) and is_int(size, 1) for name, size in sizes.items()):
        return {cast("str", name): operator.index(cast("int", size)) for name, size in sizes.items()}
    given, example = cast("object", value), {"data": 4, "model": 2}
    raise argument_error(argument, given, "sizes of axes by name", example=example, error=error)


def check_is_mesh(mesh: object) -> None:
    """Check that the argument `mesh` of code written for DTensor is a mesh or None."""
    if mesh is not None and not hasattr(mesh, "axis_names"):
        raise argument_error("mesh", mesh, "a DeviceMesh, or None")


def _of(layer: str) -> str:
    return f" of layer {layer!r}" if layer else ""


def is_int(value: object, low: float = -math.inf, high: float = math.inf) -> TypeGuard[int]:
    """Whether `value` is an integer with `low <= value <= high`."""
    if isinstance(value, bool | np.bool_):
        return False
    try:
        return low <= operator.index(value) <= high  # type: ignore[arg-type]
    except Exception:  # the user's own __index__
        return False


def is_number(value: Any) -> TypeGuard[float]:
    """Whether `value` is a finite real number."""
    try:
        return not isinstance(value, bool | np.bool_) and np.ndim(value) == 0 and math.isfinite(value)
    except Exception:  # the user's own __float__
        return False


def check_int(
    argument: str,
    value: object,
    low: int | None = None,
    high: int | None = None,
    *,
    alternative: str = "",
    layer: str = "",
    example: object = None,
    error: type[KerasDistError] = ModelError,
) -> int:
    """Return `value` as an int, if `low <= value <= high`; see `argument_error` for other arguments.

    `alternative` describes what the caller accepts besides integers, such as "None".
    """
    if is_int(value, -math.inf if low is None else low, math.inf if high is None else high):
        return operator.index(value)
    expected = "an integer" + _range_text(low, high) + (f", or {alternative}" if alternative else "")
    if example is None:
        example = 1 if low is None else max(low, 1)
    error = _kind_of_error(value, error)
    raise argument_error(argument, value, expected, layer=layer, example=example, error=error)


def _kind_of_error(value: object, error: type[KerasDistError] = ModelError) -> type[KerasDistError]:
    """Return the class of the error for an integer argument: also a `TypeError` if `value` is not an integer."""
    return ArgumentTypeError if error is ModelError and not is_int(value) else error


def check_number(
    argument: str,
    value: Any,
    low: float | None = None,
    high: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
    unit: str = "",
    layer: str = "",
    example: object = None,
    error: type[KerasDistError] = ModelError,
) -> float:
    """Return `value` as a float, if it is finite, `low <= value <= high` and `above < value < below`."""
    fits = (low is None or low <= value, high is None or value <= high) if is_number(value) else (False,)
    if all(fits) and (above is None or above < value) and (below is None or value < below):
        return float(value)
    expected = "a finite number" + (f" [{unit}]" if unit else "") + _range_text(low, high, above, below)
    raise argument_error(argument, value, expected, layer=layer, example=example, error=error)


def _range_text(low: float | None, high: float | None, above: float | None = None, below: float | None = None) -> str:
    if low is not None and high is not None:
        return f" from {low} to {high}"
    named = {"of at least": low, "of at most": high, "above": above, "below": below}
    texts = [f"{name} {bound}" for name, bound in named.items() if bound is not None]
    return " ".join(["", " and ".join(texts)]) if texts else ""


def check_optional(
    check: Callable[Concatenate[str, Any, Arguments], Checked],
    argument: str,
    value: Any,
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Checked | None:
    """Return `check(argument, value, ...)`, or None for None."""
    return None if value is None else check(argument, value, *args, **kwargs)


def check_fraction(argument: str, value: Any, layer: str = "") -> float:
    """Return `value` as a float, if it is a number from 0 to 1."""
    return check_number(argument, value, 0, 1, layer=layer, example=0.5)


def check_option(
    argument: str, value: Any, options: Sequence[Any], layer: str = "", error: type[KerasDistError] = ModelError
) -> Any:
    """Return the option that equals `value`, with strings in any case."""
    lowered = value.lower() if isinstance(value, str) else value
    if value is None or np.isscalar(value):
        for option in options:
            if lowered == (option.lower() if isinstance(option, str) else option):
                return option
    near = did_you_mean(value, [str(option) for option in options]) if isinstance(value, str) else ""
    example = next(option for option in options if option is not None)
    raise argument_error(argument, value, f"{one_of(options)}{near}", layer=layer, example=example, error=error)


def check_callable(argument: str, value: Any, parameters: str) -> Callable[..., Any]:
    """Return `value`, if it can be called with parameters such as "x, y"."""
    if callable(value) and takes(value, *parameters.split(", ")):
        return value
    fix = f"change its parameters: def {argument}({parameters})"
    raise ModelError(f"`{argument}` cannot be called as {argument}({parameters})", given=with_type(value), fix=fix)


def check_path(argument: str, value: object, example: str, error: type[KerasDistError] = ModelError) -> str:
    """Return a string or path as a string."""
    try:
        path = os.fspath(cast("str", value))
    except Exception:  # the user's own __fspath__
        path = None
    if isinstance(path, str) and path and "\0" not in path:
        return check_names(argument, path, error)
    raise argument_error(argument, value, "a path: a string, or a pathlib.Path", example=example, error=error)


def check_names(argument: str, path: str, error: type[KerasDistError] = ModelError) -> str:
    """Return a path, if file systems can have its names."""
    try:
        if max(map(len, os.fsencode(path).split(b"/"))) <= 255:
            return path
    except UnicodeEncodeError:
        pass
    expected = "a path whose names have at most 255 bytes, in UTF-8"
    raise argument_error(argument, path, expected, fix="choose a shorter name", error=error)


def check_size(argument: str, value: object, layer: str = "") -> int:
    """Return `value` as an int, if it can be the size of a dim."""
    if is_int(value, 1, LARGEST_SIZE):
        return operator.index(value)
    expected, error = f"an integer of at least 1 and at most {LARGEST_SIZE}", _kind_of_error(value)
    raise argument_error(argument, value, expected, layer=layer, example=32, error=error)


def check_sizes(argument: str, value: Any, rank: int, layer: str = "", least: int = 1) -> tuple[int, ...]:
    """Return `value`, one integer or several, as `rank` ints of at least `least`."""
    sizes = _items(value) or (value,) * rank
    if len(sizes) == rank and all(is_int(size, least, LARGEST_SIZE) for size in sizes):
        return tuple(map(operator.index, sizes))
    expected = f"an integer of at least {least} and at most {LARGEST_SIZE}, or {rank} of them"
    example = (3,) * rank if rank > 1 else 3
    error = ModelError if all(map(is_int, sizes)) else ArgumentTypeError
    raise argument_error(argument, value, expected, layer=layer, example=example, error=error)


def check_shape(argument: str, value: Any) -> tuple[int, ...]:
    """Return `value` as a tuple of non-negative ints."""
    dims = _items(value)
    if dims is not None and all(is_int(dim, 0) for dim in dims):
        return tuple(map(operator.index, dims))
    raise argument_error(argument, value, "a shape: a tuple of integers of at least 0", example=(2, 3))


def check_axis(argument: str, value: object, layer: str = "") -> int:
    """Return `value` as an int."""
    return check_int(argument, value, layer=layer, example=-1)


def check_axes(argument: str, value: Any, layer: str = "") -> tuple[int, ...]:
    """Return an integer, or several different integers, as a tuple."""
    axes = (value,) if is_int(value) else _items(value)
    if axes and all(map(is_int, axes)) and len(set(map(operator.index, axes))) == len(axes):
        return tuple(map(operator.index, axes))
    expected = "an integer, or a list of different integers"
    error = ModelError if axes and all(map(is_int, axes)) else ArgumentTypeError
    raise argument_error(argument, value, expected, layer=layer, example=-1, error=error)


def check_axes_exist(
    argument: str, axes: Sequence[int], shape: Sequence[int | None], layer: str = ""
) -> tuple[int, ...]:
    """Return non-negative `axes` in ascending order, if `shape` has them, and all are different."""
    rank = len(shape)
    found = sorted(axis % rank for axis in axes if -rank <= axis < rank)
    if len(set(found)) < len(axes):
        summary = f"`{argument}`{_of(layer)} must be different integers from {-rank} to {rank - 1}"
        given = f"{argument}={list(axes)} for an input of shape {tuple(shape)}"
        raise ModelError(summary, given=given, fix=f"correct {argument}, or reshape the input")
    return tuple(found)


def check_strings(argument: str, value: Any) -> tuple[str, ...]:
    """Return several strings as a tuple."""
    try:
        strings = (None,) if isinstance(value, str) else tuple(value)
    except Exception:  # the user's own __iter__
        strings = (None,)
    if all(isinstance(each, str) for each in strings):
        return cast("tuple[str, ...]", strings)
    raise argument_error(argument, value, "a list of strings", example=["loss"])


def check_numbers(argument: str, value: Any, layer: str) -> Any:
    """Return a number or an array of numbers as a float or tuples of floats."""
    try:
        return _as_tuples(np.asarray(value, "float64").tolist())
    except (TypeError, ValueError):
        expected = "a number or an array of numbers"
        raise argument_error(argument, value, expected, layer=layer, example=1.0) from None


def check_broadcasts(argument: str, shape: Sequence[int], to: Sequence[int], layer: str) -> None:
    """Check that an array of `shape` broadcasts to an input of shape `to`."""
    if len(shape) > len(to) or any(a not in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False)):
        summary = f"`{argument}` of layer {layer!r} does not broadcast to the shape of its input"
        given = f"{argument} of shape {tuple(shape)} for an input of shape {tuple(to)}"
        raise ModelError(summary, given=given, fix=f"reshape {argument}, for example with dims of size 1 at its end")


def _items(value: Any) -> tuple[Any, ...] | None:
    """Return the items of a list, a tuple or an array, or None for other values."""
    has_items = value.ndim > 0 if isinstance(value, np.ndarray) else isinstance(value, Sequence)
    return tuple(cast("Sequence[Any]", value)) if has_items and not isinstance(value, str | bytes) else None


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, cast("list[Any]", value))) if isinstance(value, list) else value
