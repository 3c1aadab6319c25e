"""`operation`: makes a function of arrays a step of functional models, which configs name.

An operation becomes a step of a functional model by one decorator, and its shapes come from tracing: three hundred
layers, or a second set of shape rules, would repeat the operations.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from keras_dist._support.arguments import argument_error, check_axes, check_axes_exist
from keras_dist._support.array_operators import Operators, native, value_of
from keras_dist._support.integer_checks import check_fits
from keras_dist._support.raw_errors import NAMELESS, explained
from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist._unstable.jax_internals import hides_mesh
from keras_dist.errors import KerasDistError, shorten
from keras_dist.symbolic.tensors import OPERATIONS, Operation, is_any_symbolic

_Function = TypeVar("_Function", bound=Callable[..., Any])
_GIVEN = "  given:    "
_ROOM = __name__.rpartition(".")[0]


def operation(function: _Function) -> _Function:
    """Return `function`, which on symbolic tensors adds a step to a functional model. Configs contain its name."""
    step = Operation(function.__name__)
    OPERATIONS[step.name] = function

    @notes_arguments
    @hides_mesh
    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = jax.tree.map(value_of, (args, kwargs), is_leaf=_is_leaf)
        if is_any_symbolic((args, kwargs)):
            return Operation(step.name)(*args, **kwargs)
        return function(*args, **kwargs)

    return called  # type: ignore[return-value]


def notes_arguments(function: _Function) -> _Function:
    """Return `function`; errors that JAX raises in it get a note with the outermost operation and its arguments."""
    checked = explained(function, kinds=NAMELESS)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return checked(*args, **kwargs)
        except Exception as error:
            if not isinstance(error, KerasDistError):
                others = [note for note in getattr(error, "__notes__", ()) if not note.startswith(_GIVEN)]
                error.__notes__ = [*others, f"{_GIVEN}keras_dist.ops.{_call(function, args, kwargs)}"]
            raise

    return called  # type: ignore[return-value]


def _call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    parameters = inspect.signature(function).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]
    named = itertools.zip_longest(names[: len(args)], args, fillvalue="")
    values = [f"{name}={_short(value)}".lstrip("=") for name, value in (*named, *kwargs.items())]
    return f"{function.__name__}({', '.join(values)})"


def _short(value: Any) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return shorten(value) if shape is None or dtype is None else f"{dtype}{list(shape)}"


def _is_leaf(leaf: Any) -> bool:
    return isinstance(leaf, Operators | nnx.Module)  # modules, such as generators, must not be copied


def floating(x: jax.Array) -> jax.Array:
    """Return `x`; integers and booleans become floats."""
    return x.astype(jnp.result_type(x, 0.0))


def as_array(x: Any, dtype: DTypeLike | None = None) -> jax.Array:
    """Convert `x` to an array; Python numbers keep their weak element type. Refuse 64-bit integers that do not fit."""
    dtype = element_type(dtype)
    if isinstance(x, jax.Array) and (dtype is None or x.dtype == dtype):
        return x
    if isinstance(x, np.ndarray):
        check_fits(x, "an array")
    return jnp.asarray(native(x), dtype=dtype)


def element_type(dtype: DTypeLike | None) -> Any:
    """Return the element type that JAX uses for `dtype`, with 32 bits by default; None for None."""
    if dtype is None:
        return None
    try:
        return jax.dtypes.canonicalize_dtype(jnp.dtype(dtype))
    except Exception:  # numpy raises several
        raise argument_error("dtype", dtype, "an element type", example="float32") from None


def dims_of(array: jax.Array, axes: int | Sequence[int], argument: str = "axis") -> tuple[int, ...]:
    """Return the dims `axes`, counted from the front, in ascending order; each must exist and be named once."""
    return check_axes_exist(argument, check_axes(argument, axes), array.shape)


def unary(name: str, function: Callable[[Any], Any], doc: str) -> Callable[[ArrayLike], jax.Array]:
    """Return the operation `name(x)` that applies `function` to `x` as an array."""

    def applied(x: ArrayLike) -> jax.Array:
        return function(as_array(x))

    return operation(named(applied, name, doc))


def binary(name: str, function: Callable[[Any, Any], Any], doc: str) -> Callable[[ArrayLike, ArrayLike], jax.Array]:
    """Return the operation `name(x1, x2)` that applies `function` to both as arrays."""

    def applied(x1: ArrayLike, x2: ArrayLike) -> jax.Array:
        return function(as_array(x1), as_array(x2))

    return operation(named(applied, name, doc))


def like(name: str, function: _Function, doc: str | None = None) -> _Function:
    """Return `function` as the operation `name`, whose first argument may also be a list or a number."""

    @functools.wraps(function)
    def applied(x: Any, *args: Any, **kwargs: Any) -> Any:
        return function(as_array(x), *args, **kwargs)

    return operation(named(applied, name, doc or function.__doc__ or ""))  # type: ignore[return-value]


def names_in(module: Mapping[str, Any]) -> list[str]:
    """Return the names of the operations in `vars()` of a module of this package."""
    return [
        name
        for name, value in module.items()
        if inspect.isfunction(value)
        and name[0] != "_"
        and f"{value.__module__}.".startswith(f"{_ROOM}.")
        and value.__module__ != __name__
    ]


def named(function: Any, name: str, doc: str) -> Any:
    """Return `function` under a name of this package, by which pickle finds it."""
    function.__name__ = function.__qualname__ = name
    function.__module__, function.__doc__ = _ROOM, doc
    return function
