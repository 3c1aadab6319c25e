"""Arrays themselves: conversion, parts of them, and control flow in compiled steps, on `jax.lax`."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import check_option
from keras_dist._support.array_operators import value_of, values_in
from keras_dist._support.types import ArrayLike, DTypeLike, PyTree
from keras_dist.errors import ModelError
from keras_dist.ops.operation import as_array, dims_of, names_in, notes_arguments, operation


@operation
def cast(x: ArrayLike, dtype: DTypeLike) -> jax.Array:
    """Return `x` in another element type; of 64 bits JAX keeps 32."""
    return as_array(x, dtype)


@operation
def convert_to_tensor(
    x: ArrayLike, dtype: DTypeLike | None = None, sparse: bool | None = None, ragged: bool | None = None
) -> jax.Array:
    """Return `x` as an array.

    Args:
        x: an array, a number, or a list of these.
        dtype: its element type; None for its own.
        sparse: unused, arrays are dense.
        ragged: only False or None.

    Raises:
        ModelError: it is to be ragged.
    """
    if ragged:
        summary = "convert_to_tensor: arrays cannot be ragged"
        fix = "pad the rows to one length"
        raise ModelError(summary, given=f"ragged={ragged}", fix=fix)
    return as_array(x, dtype)


@operation
def saturate_cast(x: ArrayLike, dtype: DTypeLike) -> jax.Array:
    """Return `x` in another element type; values that it cannot hold become the nearest one."""
    values, to = as_array(x), jax.dtypes.canonicalize_dtype(dtype)
    (lowest, highest), (least, most) = _range(values.dtype), _range(to)
    low, high = (np.asarray(limit).astype(values.dtype) for limit in (max(lowest, least), min(highest, most)))
    if float(low) < least:  # rounded out of the range
        low = np.nextafter(low, np.zeros_like(low))
    if float(high) > most:
        high = np.nextafter(high, np.zeros_like(high))
    return as_array(jnp.clip(values, low, high), to)


def _range(dtype: Any) -> tuple[Any, Any]:
    """Return the smallest and the largest value of an element type."""
    if dtype == np.bool_:
        return 0, 1
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
    return float(jnp.finfo(dtype).min), float(jnp.finfo(dtype).max)


def convert_to_numpy(x: ArrayLike) -> np.ndarray:
    """Return a copy of `x` as an array of NumPy."""
    return np.array(value_of(x))


def is_tensor(x: Any) -> bool:
    """Return whether `x` is an array of JAX; variables, arrays of NumPy and symbolic tensors are none."""
    return isinstance(x, jax.Array)


def shape(x: Any) -> tuple[int | None, ...]:
    """Return the sizes of the dims of an array or symbolic tensor; None for those that are not known."""
    return tuple(x.shape) if hasattr(x, "shape") else np.shape(x)


@notes_arguments
def dtype(x: Any) -> str:
    """Return the name of the element type of an array, a variable or a symbolic tensor."""
    return jnp.dtype(x.dtype).name


@operation
def stop_gradient(variable: PyTree) -> PyTree:
    """Return the value, through which no gradient goes."""
    return jax.lax.stop_gradient(variable)


@operation
def unstack(x: ArrayLike, num: int | None = None, axis: int = 0) -> list[jax.Array]:
    """Return the slices along an axis, as a list.

    Args:
        x: an array.
        num: how many there are; needed only where the size of a symbolic dim is not known.
        axis: along which.

    Raises:
        ModelError: there is no such dim.
    """
    array = as_array(x)
    (dim,) = dims_of(array, axis)
    count = array.shape[dim] if num is None else num
    return [jax.lax.index_in_dim(array, index, dim, keepdims=False) for index in range(count)]


@operation
def slice(inputs: ArrayLike, start_indices: ArrayLike | Sequence[ArrayLike], shape: Sequence[int]) -> jax.Array:
    """Return the part of `inputs` that begins at `start_indices` and has this shape.

    Args:
        inputs: an array.
        start_indices: an index for each dim.
        shape: the size in each dim; -1 for all that is left of it.
    """
    array = as_array(inputs)
    starts: Any = start_indices
    sizes = [array.shape[dim] - starts[dim] if size == -1 else size for dim, size in enumerate(shape)]
    return jax.lax.dynamic_slice(array, starts, sizes)


@operation
def slice_update(inputs: ArrayLike, start_indices: ArrayLike | Sequence[ArrayLike], updates: ArrayLike) -> jax.Array:
    """Return `inputs` with `updates` in the place of the part that begins at `start_indices`, an index for each dim."""
    starts: Any = start_indices
    return jax.lax.dynamic_update_slice(as_array(inputs), as_array(updates), starts)


@operation
def scatter(indices: ArrayLike, values: ArrayLike, shape: Sequence[int]) -> jax.Array:
    """Return zeros of this shape, to which `values` are added at `indices`.

    Args:
        indices: (..., number of dims), the first dims of the result.
        values: one for each index, or an array of the further dims.
        shape: of the result.
    """
    added = as_array(values)
    place = tuple(jnp.moveaxis(as_array(indices), -1, 0))
    return jnp.zeros(shape, added.dtype).at[place].add(added)


@operation
def scatter_update(
    inputs: ArrayLike, indices: ArrayLike, updates: ArrayLike, reduction: str | None = None
) -> jax.Array:
    """Return `inputs`, changed at `indices`.

    Args:
        inputs: an array.
        indices: (number of updates, number of dims).
        updates: one for each index, or an array of the further dims.
        reduction: None to replace values; or how they are combined with those that are there: `"add"`, `"max"`,
            `"min"` or `"mul"`.
    """
    place = as_array(inputs).at[tuple(jnp.transpose(as_array(indices)))]
    chosen = check_option("reduction", reduction, (None, "add", "max", "min", "mul"))
    return getattr(place, chosen or "set")(as_array(updates))


@operation
def map(f: Callable[[PyTree], PyTree], xs: PyTree) -> PyTree:
    """Return what `f` gives for each row of `xs`, one after the other; see `jax.lax.map`.

    Args:
        f: a function of a row, a pytree as `xs`.
        xs: arrays with the same first dim.
    """
    return jax.lax.map(f, xs)


@operation
def vectorized_map(function: Callable[[PyTree], PyTree], elements: PyTree) -> PyTree:
    """Return what `function` gives for each row of `elements`, all at once; see `jax.vmap`."""
    return jax.vmap(function)(elements)


@operation
def scan(
    f: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[PyTree, PyTree]:
    """Return the last state of a loop over the rows of `xs`, and what `f` gave for each row; see `jax.lax.scan`.

    Args:
        f: `(state, row) -> (state, output)`.
        init: the first state.
        xs: arrays with the same first dim; None where there are none, and `length` says how many turns.
        length: the number of turns; None for that of the rows.
        reverse: whether to begin with the last row.
        unroll: how many turns are compiled as one; True for all.

    Raises:
        ModelError: `unroll` is neither a bool nor a positive integer.
    """
    if not isinstance(unroll, int) or unroll < (0 if isinstance(unroll, bool) else 1):
        fix = "unroll=1, which unrolls nothing"
        raise ModelError("`unroll` of scan must be a positive integer, or a bool", given=f"unroll={unroll!r}", fix=fix)
    return jax.lax.scan(f, init, xs, length=length, reverse=reverse, unroll=unroll)


@operation
def associative_scan(
    f: Callable[[PyTree, PyTree], PyTree], elems: PyTree, reverse: bool = False, axis: int = 0
) -> PyTree:
    """Return what `f` makes of the elements up to each one, computed in parallel; see `jax.lax.associative_scan`.

    Args:
        f: `(one, other) -> both`, associative, for parts of `elems` of any length.
        elems: arrays of one size along `axis`.
        reverse: whether to begin at the end.
        axis: along which.
    """
    return jax.lax.associative_scan(f, elems, reverse, axis)


@operation
def cond(pred: ArrayLike, true_fn: Callable[[], PyTree], false_fn: Callable[[], PyTree]) -> PyTree:
    """Return what `true_fn()` gives where `pred` is true, else what `false_fn()` gives; see `jax.lax.cond`."""
    return jax.lax.cond(as_array(pred), true_fn, false_fn)


@operation
def switch(index: ArrayLike, branches: Sequence[Callable[..., PyTree]], *operands: PyTree) -> PyTree:
    """Return `branches[index](*operands)`; an index that is out of range counts as the nearest one."""
    return jax.lax.switch(index, branches, *operands)


@operation
def while_loop(
    cond: Callable[..., Any], body: Callable[..., Any], loop_vars: PyTree, maximum_iterations: int | None = None
) -> PyTree:
    """Return `loop_vars` after `body` has changed them as long as `cond` holds; see `jax.lax.while_loop`.

    Args:
        cond: `(*loop_vars) -> bool`.
        body: `(*loop_vars) -> loop_vars`.
        loop_vars: a tuple or list of arrays, which the functions take as arguments; or one.
        maximum_iterations: after how many turns it ends in any case; None for no limit.

    Returns:
        A tuple for a tuple or list, else one.
    """
    is_many = isinstance(loop_vars, list | tuple)

    def goes_on(state: Any) -> Any:
        turn, values = state
        is_within = True if maximum_iterations is None else turn < maximum_iterations
        return jnp.logical_and(cond(*values), is_within)

    def turned(state: Any) -> Any:
        turn, values = state
        changed = body(*values)
        return turn + 1, tuple(changed) if is_many else (changed,)

    _, values = jax.lax.while_loop(goes_on, turned, (0, tuple(loop_vars) if is_many else (loop_vars,)))
    return values if is_many else values[0]


@operation
def fori_loop(
    lower: ArrayLike, upper: ArrayLike, body_fun: Callable[[Any, PyTree], PyTree], init_val: PyTree
) -> PyTree:
    """Return `init_val` after `value = body_fun(i, value)` for `i` from `lower` to `upper - 1`."""
    return jax.lax.fori_loop(lower, upper, body_fun, init_val)


def custom_gradient(f: Callable[..., tuple[PyTree, Callable[..., PyTree]]]) -> Callable[..., PyTree]:
    """Return a function of which `f` says the gradient; see `jax.custom_gradient`.

    Args:
        f: what returns a value, and a function from the gradient of that value to those of the arguments.

    Example:
        >>> import jax
        >>> from keras_dist import ops
        >>> @ops.custom_gradient
        ... def doubled_gradient(x):
        ...     return x, lambda upstream: 2 * upstream
        >>> float(jax.grad(doubled_gradient)(3.0))
        2.0
    """
    differentiable = jax.custom_gradient(f)

    @functools.wraps(f)
    def called(*args: Any, **kwargs: Any) -> PyTree:
        args, kwargs = values_in((args, kwargs))
        return differentiable(*args, **kwargs)

    return called


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
