"""Conversion, slices, scatter and control flow, on `jax.lax`, and `rearrange`."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import argument_error, check_option
from keras_dist._support.array_operators import value_of, values_in
from keras_dist._support.types import ArrayLike, DTypeLike, PyTree
from keras_dist.errors import ModelError
from keras_dist.ops.operation import as_array, dims_of, names_in, notes_arguments, operation


@operation
def cast(x: ArrayLike, dtype: DTypeLike) -> jax.Array:
    """Cast `x` to `dtype`; 64-bit types become 32-bit types, as usual in JAX."""
    return as_array(x, dtype)


@operation
def convert_to_tensor(
    x: ArrayLike, dtype: DTypeLike | None = None, sparse: bool | None = None, ragged: bool | None = None
) -> jax.Array:
    """Convert an array, a number or a list of these to a JAX array.

    Args:
        x: the value.
        dtype: element type; None keeps the type of `x`.
        sparse: unused; the result is dense.
        ragged: must be False or None.

    Raises:
        ModelError: `ragged` is True.
    """
    if ragged:
        raise argument_error("ragged", ragged, "False: arrays cannot be ragged", fix="pad the rows to one length")
    return as_array(x, dtype)


@operation
def saturate_cast(x: ArrayLike, dtype: DTypeLike) -> jax.Array:
    """Cast `x` to `dtype`; values out of range become the nearest value of the type."""
    values, to = as_array(x), jax.dtypes.canonicalize_dtype(dtype)
    (lowest, highest), (least, most) = _range(values.dtype), _range(to)
    low, high = (np.asarray(limit).astype(values.dtype) for limit in (max(lowest, least), min(highest, most)))
    if float(low) < least:  # rounded out of the range
        low = np.nextafter(low, np.zeros_like(low))
    if float(high) > most:
        high = np.nextafter(high, np.zeros_like(high))
    return as_array(jnp.clip(values, low, high), to)


def _range(dtype: Any) -> tuple[Any, Any]:
    if dtype == np.bool_:
        return 0, 1
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
    return float(jnp.finfo(dtype).min), float(jnp.finfo(dtype).max)


@notes_arguments
def convert_to_numpy(x: ArrayLike) -> np.ndarray:
    """Return a copy of `x` as a NumPy array."""
    return np.array(value_of(x))


def is_tensor(x: Any) -> bool:
    """Return whether `x` is a JAX array, rather than a variable, a NumPy array or a symbolic tensor."""
    return isinstance(x, jax.Array)


def shape(x: Any) -> tuple[int | None, ...]:
    """Return the shape of an array or symbolic tensor; unknown sizes are None."""
    return tuple(x.shape) if hasattr(x, "shape") else np.shape(x)


@notes_arguments
def dtype(x: Any) -> str:
    """Return the name of the element type of an array, variable or symbolic tensor."""
    return jnp.dtype(x.dtype).name


@operation
def stop_gradient(variable: PyTree) -> PyTree:
    """Return the value; gradients with respect to it are 0."""
    return jax.lax.stop_gradient(variable)


@operation
def unstack(x: ArrayLike, num: int | None = None, axis: int = 0) -> list[jax.Array]:
    """Return the slices along `axis` as a list.

    Args:
        x: an array.
        num: number of slices; needed only if the size of a symbolic dim is unknown.
        axis: the dim.

    Raises:
        ModelError: the array does not have this dim.
    """
    array = as_array(x)
    (dim,) = dims_of(array, axis)
    count = array.shape[dim] if num is None else num
    return [jax.lax.index_in_dim(array, index, dim, keepdims=False) for index in range(count)]


@operation
def slice(inputs: ArrayLike, start_indices: ArrayLike | Sequence[ArrayLike], shape: Sequence[int]) -> jax.Array:
    """Return the slice of `inputs` that starts at `start_indices`, one for each dim; size -1 reaches to the end."""
    array = as_array(inputs)
    starts: Any = start_indices
    sizes = [array.shape[dim] - starts[dim] if size == -1 else size for dim, size in enumerate(shape)]
    return jax.lax.dynamic_slice(array, starts, sizes)


@operation
def slice_update(inputs: ArrayLike, start_indices: ArrayLike | Sequence[ArrayLike], updates: ArrayLike) -> jax.Array:
    """Return `inputs` with the slice that starts at `start_indices`, one for each dim, replaced by `updates`."""
    starts: Any = start_indices
    return jax.lax.dynamic_update_slice(as_array(inputs), as_array(updates), starts)


@operation
def scatter(indices: ArrayLike, values: ArrayLike, shape: Sequence[int]) -> jax.Array:
    """Add `values` to zeros of `shape` at `indices`.

    Args:
        indices: (..., n), indices of the first n dims of the result.
        values: one for each index: a number, or an array of the remaining dims.
        shape: shape of the result.
    """
    added = as_array(values)
    place = tuple(jnp.moveaxis(as_array(indices), -1, 0))
    return jnp.zeros(shape, added.dtype).at[place].add(added)


@operation
def scatter_update(
    inputs: ArrayLike, indices: ArrayLike, updates: ArrayLike, reduction: str | None = None
) -> jax.Array:
    """Return `inputs` updated at `indices`.

    Args:
        inputs: an array.
        indices: (updates, n), indices of the first n dims.
        updates: one for each index: a number, or an array of the remaining dims.
        reduction: None to replace values; or `"add"`, `"max"`, `"min"` or `"mul"` to combine them with `updates`.
    """
    place = as_array(inputs).at[tuple(jnp.transpose(as_array(indices)))]
    chosen = check_option("reduction", reduction, (None, "add", "max", "min", "mul"))
    return getattr(place, chosen or "set")(as_array(updates))


@operation
def map(f: Callable[[PyTree], PyTree], xs: PyTree) -> PyTree:
    """Apply `f` to each row of the arrays in `xs`, one after the other; see `jax.lax.map`."""
    return jax.lax.map(f, xs)


@operation
def vectorized_map(function: Callable[[PyTree], PyTree], elements: PyTree) -> PyTree:
    """Apply `function` to all rows of the arrays in `elements` at once; see `jax.vmap`."""
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
    """Loop over the rows of `xs` and return the final state and the stacked outputs; see `jax.lax.scan`.

    Raises:
        ModelError: `unroll` is neither a bool nor a positive integer.
    """
    if not isinstance(unroll, int) or unroll < (0 if isinstance(unroll, bool) else 1):
        raise argument_error("unroll", unroll, "a positive integer, or a bool", example=1)
    return jax.lax.scan(f, init, xs, length=length, reverse=reverse, unroll=unroll)


@operation
def associative_scan(
    f: Callable[[PyTree, PyTree], PyTree], elems: PyTree, reverse: bool = False, axis: int = 0
) -> PyTree:
    """Return running results of an associative function along `axis`, in parallel; see `jax.lax.associative_scan`."""
    return jax.lax.associative_scan(f, elems, reverse, axis)


@operation
def cond(pred: ArrayLike, true_fn: Callable[[], PyTree], false_fn: Callable[[], PyTree]) -> PyTree:
    """Return `true_fn()` if `pred` is true, else `false_fn()`; see `jax.lax.cond`."""
    return jax.lax.cond(as_array(pred), true_fn, false_fn)


@operation
def switch(index: ArrayLike, branches: Sequence[Callable[..., PyTree]], *operands: PyTree) -> PyTree:
    """Return `branches[index](*operands)`; an index out of range is clamped. See `jax.lax.switch`."""
    return jax.lax.switch(index, branches, *operands)


@operation
def while_loop(
    cond: Callable[..., Any], body: Callable[..., Any], loop_vars: PyTree, maximum_iterations: int | None = None
) -> PyTree:
    """Repeat `loop_vars = body(*loop_vars)` while `cond(*loop_vars)` holds; see `jax.lax.while_loop`.

    Args:
        cond: `(*loop_vars) -> bool`.
        body: `(*loop_vars) -> loop_vars`.
        loop_vars: a tuple or list of arrays, or one array; the result has the same form.
        maximum_iterations: the largest number of iterations; None for no limit.
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
    """Return a function whose gradient `f` defines; see `jax.custom_gradient`.

    Args:
        f: returns a value, and a function that maps the gradient of the value to the gradients of the arguments.

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


_GROUP = re.compile(r"\(([^()]*)\)|(\w+)")


@operation
def rearrange(tensor: ArrayLike, pattern: str, **axes_lengths: int) -> jax.Array:
    """Transpose, split and merge dims by a pattern, as in einops.

    Args:
        tensor: an array.
        pattern: names of its dims, `->`, names of the dims of the result. Names in parentheses are parts of one dim.
        **axes_lengths: the sizes of the parts; one part of each dim may be left out.

    Raises:
        ModelError: the pattern does not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import ops
        >>> ops.rearrange(jnp.ones((2, 12, 3)), "b (rows columns) c -> b c rows columns", rows=4).shape
        (2, 3, 4, 3)
    """
    array = as_array(tensor)
    sides = [[(group or name).split() for group, name in _GROUP.findall(side)] for side in pattern.split("->")]
    names = [[name for group in side for name in group] for side in sides]
    fits = len(sides) == 2 and len(sides[0]) == array.ndim
    if not fits or sorted(names[0]) != sorted(names[1]) or len({*names[0]}) != len(names[0]):
        raise _misfit(array, pattern, axes_lengths)
    sizes: dict[str, Any] = {}
    for group, size in zip(sides[0], array.shape, strict=True):
        known = {name: axes_lengths[name] for name in group if name in axes_lengths}
        unknown = [name for name in group if name not in known]
        rest = size // max(prod(known.values()), 1)
        sizes |= known | dict.fromkeys(unknown, rest)
        if len(unknown) > 1 or prod(sizes[name] for name in group) != size:
            raise _misfit(array, pattern, axes_lengths)
    parts = jnp.reshape(array, [sizes[name] for name in names[0]])
    ordered = jnp.transpose(parts, [names[0].index(name) for name in names[1]])
    return jnp.reshape(ordered, [prod(sizes[name] for name in group) for group in sides[1]])


def _misfit(array: jax.Array, pattern: str, sizes: dict[str, int]) -> ModelError:
    summary = "rearrange: pattern and sizes must fit the dims, with the same names on both sides of `->`"
    fix = 'for example rearrange(x, "b (h1 h) c -> (b h1) h c", h1=2)'
    return ModelError(summary, given=f"{pattern!r} with {sizes} for an array of shape {array.shape}", fix=fix)


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
