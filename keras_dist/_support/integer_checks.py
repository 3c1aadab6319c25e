"""Checks of integer arrays: 64 bits must fit into the 32 of JAX, and indices must exist."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Generator, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._unstable import jax_internals
from keras_dist._unstable.jax_internals import failed_check, is_traced, with_checks
from keras_dist.errors import DataError

_is_checked: contextvars.ContextVar[bool] = contextvars.ContextVar("is_checked", default=False)
_counted: contextvars.ContextVar[Any] = contextvars.ContextVar("counted", default=None)


def check_fits(array: Any, name: str, rows: Any = None) -> None:
    """Check that the integers of an array fit into those of JAX, which have 32 bits by default.

    Args:
        array: of numpy, or what has a `dtype`, a `size`, and `outside(limits)`, which does what `_runtime` does.
        name: how errors call it.
        rows: the numbers of its rows, as errors tell them; None for those from 0.
    """
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 8:
        return
    kept = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    if kept.itemsize == 8 or not array.size:
        return
    limits = np.iinfo(kept)
    is_numpys = isinstance(array, np.ndarray)
    found = _runtime(cast("np.ndarray[Any, Any]", array), limits) if is_numpys else array.outside(limits)
    if found is not None:
        row, value = found
        raise DataError(
            f"{name} holds an integer that does not fit {kept.name}: JAX would drop its upper 32 bits",
            given=f"{value} in row {row if rows is None else np.ravel(rows)[row]} of {name}, {array.dtype.name}",
            fix='ids % buckets for ids, floats for others; or jax.config.update("jax_enable_x64", True) before all',
        )


def _runtime(array: np.ndarray, limits: np.iinfo) -> tuple[int, int] | None:
    """Return the row and the value of the first integer that is out of range, or None."""
    if limits.min <= array.min() and array.max() <= limits.max:
        return None
    place = int(np.argmax((array < limits.min) | (array > limits.max)))
    return place // (array.size // len(array)) if array.ndim else 0, int(array.reshape(-1)[place])


def check_indices(indices: Any, stop: int, what: str, fix: str) -> None:
    """Check that indices are from 0 to `stop - 1`: where their values are known, and in steps that are `checked`.

    Args:
        indices: integers, or numbers that are cut to integers.
        stop: how many there are to choose from.
        what: is wrong if one is not, as `layer 'tokens': an integer is no row of the table`.
        fix: the way out.
    """
    if not isinstance(indices, jax.Array):
        indices = np.asarray(indices)
    if (is_traced(indices) and not _is_checked.get()) or not indices.size:
        return
    if not is_traced(indices) and getattr(indices, "is_fully_addressable", True):
        indices = np.asarray(indices)
    indices = _those_that_count(indices)
    lowest, highest = indices.min(), indices.max()
    if jnp.issubdtype(indices.dtype, jnp.floating):
        lowest = jnp.trunc(lowest)
    is_right = (lowest >= 0) & (highest < stop)
    lines = what, "{wrong}", f"integers from 0 to {stop - 1}", fix
    if not is_traced(is_right):
        if not is_right:
            raise _error([line.replace("{wrong}", str(lowest if lowest < 0 else highest)) for line in lines])
    elif _is_checked.get():
        text = "\n".join(lines).replace("{", "{{").replace("}", "}}").replace("{{wrong}}", "{wrong}")
        jax_internals.check(is_right, text, wrong=jnp.where(lowest < 0, lowest, highest))


@contextlib.contextmanager
def counting(counts: Any) -> Generator[None]:
    """Leave out of checks inside the indices where these weights are 0 or False; None for checks of all."""
    token = _counted.set(counts)
    try:
        yield
    finally:
        _counted.reset(token)


def _those_that_count(indices: Any) -> Any:
    """Return the indices, with 0 for those that do not count."""
    counts = _counted.get()
    if counts is None:
        return indices
    if not jax.tree_util.all_leaves([counts]):
        return jnp.zeros((), indices.dtype)  # of several outputs: whose they are is not known here
    counts = jnp.asarray(counts) != 0
    if counts.ndim == indices.ndim + 1 and counts.shape[-1] == 1:
        counts = counts[..., 0]
    counts = counts.reshape(counts.shape + (1,) * (indices.ndim - counts.ndim))
    fits = counts.ndim == indices.ndim and all(n in (1, m) for n, m in zip(counts.shape, indices.shape, strict=True))
    return jnp.where(counts, indices, 0) if fits else jnp.zeros((), indices.dtype)


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function, for `jax.jit`, that checks indices: it returns an error for `raise_found` and its results."""

    def check(*args: Any) -> Any:
        token = _is_checked.set(True)
        try:
            return function(*args)
        finally:
            _is_checked.reset(token)

    return with_checks(check)


def raise_found(error: Any) -> None:
    """Raise the error of a `checked` function, after waiting for it.

    Raises:
        DataError: an index was out of range.
    """
    found = failed_check(error)
    if found is not None:
        raise _error(found.split("\n"))


def _error(lines: Sequence[str]) -> DataError:
    summary, given, expected, fix = lines
    return DataError(summary, given=given, expected=expected, fix=fix)
