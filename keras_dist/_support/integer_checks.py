"""Checks of integer arrays: values must fit into 32 bits, and indices must be in range.

JAX drops the upper bits of 64-bit integers, returns NaN or counts from the end for indices out of range, all without an
error. Values are checked where they are known; in compiled steps only with `compile(check=True)`, since a check would
make each step wait.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.ambient import index_checks, with_fields
from keras_dist._unstable import jax_internals
from keras_dist._unstable.jax_internals import failed_check, is_traced, with_checks
from keras_dist.errors import DataError


@dataclasses.dataclass(frozen=True, eq=False)
class IndexChecks:
    """Settings of index checks: whether the traced program checks too, and weights, of which 0 leaves an index out."""

    is_in_program: bool = False
    counts: Any = None


_OUTSIDE = IndexChecks()


def _checks() -> IndexChecks:
    return index_checks.get() or _OUTSIDE


def check_fits(array: Any, name: str, rows: Any = None) -> None:
    """Check that the integers of an array fit into JAX's dtype, by default 32 bits.

    Args:
        array: a numpy array, or an object with `dtype`, `size` and `outside(limits)`, as `_first_outside`.
        name: name of the array in errors.
        rows: numbers of its rows in errors; by default from 0.
    """
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 8:
        return
    kept = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    if kept.itemsize == 8 or not array.size:
        return
    limits = np.iinfo(kept)
    is_numpys = isinstance(array, np.ndarray)
    found = _first_outside(cast("np.ndarray[Any, Any]", array), limits) if is_numpys else array.outside(limits)
    if found is not None:
        row, value = found
        raise DataError(
            f"{name} holds an integer that does not fit {kept.name}: JAX would drop its upper 32 bits",
            given=f"{value} in row {row if rows is None else np.ravel(rows)[row]} of {name}, {array.dtype.name}",
            fix='ids % buckets for ids, floats for others; or jax.config.update("jax_enable_x64", True) before all',
        )


def _first_outside(array: np.ndarray, limits: np.iinfo) -> tuple[int, int] | None:
    """Return the row and the value of the first integer out of range, or None."""
    if limits.min <= array.min() and array.max() <= limits.max:
        return None
    place = int(np.argmax((array < limits.min) | (array > limits.max)))
    return place // (array.size // len(array)) if array.ndim else 0, int(array.reshape(-1)[place])


def check_indices(indices: Any, stop: int, what: str, fix: str) -> None:
    """Check that indices are from 0 to `stop - 1`, if their values are known or the step is `checked`.

    `what` is the summary of the error, such as "layer 'tokens': index out of range". Floats are truncated.
    """
    if not isinstance(indices, jax.Array):
        indices = np.asarray(indices)
    if (is_traced(indices) and not _checks().is_in_program) or not indices.size:
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
    elif _checks().is_in_program:
        text = "\n".join(lines).replace("{", "{{").replace("}", "}}").replace("{{wrong}}", "{wrong}")
        jax_internals.check(is_right, text, wrong=jnp.where(lowest < 0, lowest, highest))


def counting(counts: Any) -> contextlib.AbstractContextManager[object]:
    """Check only indices whose weights are not 0 or False inside; None for all."""
    return with_fields(index_checks, _OUTSIDE, counts=counts)


def _those_that_count(indices: Any) -> Any:
    """Return the indices, with 0 where they do not count."""
    counts = _checks().counts
    if counts is None:
        return indices
    if not jax.tree_util.all_leaves([counts]):
        return jnp.zeros((), indices.dtype)  # weights of several outputs, which cannot be assigned here
    counts = jnp.asarray(counts) != 0
    if counts.ndim == indices.ndim + 1 and counts.shape[-1] == 1:
        counts = counts[..., 0]
    counts = counts.reshape(counts.shape + (1,) * (indices.ndim - counts.ndim))
    fits = counts.ndim == indices.ndim and all(n in (1, m) for n, m in zip(counts.shape, indices.shape, strict=True))
    return jnp.where(counts, indices, 0) if fits else jnp.zeros((), indices.dtype)


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function, for `jax.jit`, that checks indices and returns an error, for `raise_found`, and its result."""

    def check(*args: Any) -> Any:
        with with_fields(index_checks, _OUTSIDE, is_in_program=True):
            return function(*args)

    return with_checks(check)


def raise_found(error: Any) -> None:
    """Wait for the error of a `checked` function, and raise a DataError if an index was out of range."""
    found = failed_check(error)
    if found is not None:
        raise _error(found.split("\n"))


def _error(lines: Sequence[str]) -> DataError:
    summary, given, expected, fix = lines
    return DataError(summary, given=given, expected=expected, fix=fix)
