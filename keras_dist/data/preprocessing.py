"""Preprocessing: one-hot classes, normalized rows, sequences of equal length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import argument_error, check_option
from keras_dist._support.integer_checks import check_indices
from keras_dist._support.types import DTypeLike, PyTree
from keras_dist.errors import DataError


def to_categorical(x: PyTree, num_classes: int | None = None) -> jax.Array | np.ndarray:
    """Convert class indices to one-hot rows.

    Args:
        x: integers from 0 to `num_classes - 1`, of any shape; a last dim of size 1 is dropped.
        num_classes: length of the rows; by default the largest index plus 1.

    Returns:
        An array of shape `(*x.shape, num_classes)`, of JAX if `x` is an array of JAX, else of numpy.

    Raises:
        DataError: an index is negative, not an integer, or too large.

    Example:
        >>> from keras_dist import utils
        >>> utils.to_categorical([0, 2])
        array([[1., 0., 0.],
               [0., 0., 1.]])
    """
    is_jax = isinstance(x, jax.Array)
    indices = x if is_jax else np.asarray(x, np.int64)
    if indices.ndim > 1 and indices.shape[-1] == 1:
        indices = indices[..., 0]
    classes = num_classes or int(indices.max()) + 1
    fix = f"leave out num_classes={classes}, or shift the indices to begin at 0"
    check_indices(indices, classes, "to_categorical: an index in `x` is not a class", fix)
    return jax.nn.one_hot(indices, classes) if is_jax else np.eye(classes)[indices]


def normalize(x: PyTree, axis: int = -1, order: int | float | str = 2) -> jax.Array | np.ndarray:
    """Divide `x` by its norm along an axis; zeros stay zeros.

    Args:
        x: an array.
        axis: axis of the norm.
        order: order of the norm, as in `numpy.linalg.norm`.

    Returns:
        An array of the shape of `x`, of JAX if `x` is an array of JAX, else of numpy.
    """
    library: Any = jnp if isinstance(x, jax.Array) else np
    norm = library.linalg.norm(x, order, axis, keepdims=True)
    return x / library.where(norm == 0, 1, norm)


def pad_sequences(
    sequences: Sequence[Sequence[PyTree] | np.ndarray],
    maxlen: int | None = None,
    dtype: DTypeLike = "int32",
    padding: str = "pre",
    truncating: str = "pre",
    value: float | str = 0.0,
) -> np.ndarray:
    """Pad or cut sequences to one length.

    Args:
        sequences: sequences of numbers, or of arrays of equal shape.
        maxlen: the common length; by default the length of the longest sequence.
        dtype: dtype of the result; `object` for strings.
        padding: pad shorter sequences at the beginning ("pre") or the end ("post").
        truncating: cut longer sequences at the beginning ("pre") or the end ("post").
        value: padding value.

    Returns:
        An array of shape `(len(sequences), maxlen, ...)`.

    Raises:
        DataError: an argument is invalid, or the elements have different shapes.

    Example:
        >>> from keras_dist import utils
        >>> utils.pad_sequences([[1, 2, 3], [4]])
        array([[1, 2, 3],
               [0, 0, 4]], dtype=int32)
    """
    padding = check_option("padding", padding, ("pre", "post"), error=DataError)
    truncating = check_option("truncating", truncating, ("pre", "post"), error=DataError)
    if isinstance(value, str) and np.dtype(dtype).kind not in "OSU":
        raise argument_error("dtype", dtype, f"one that holds value={value!r}", example="object", error=DataError)
    for index, sequence in enumerate(sequences):
        if not hasattr(sequence, "__len__"):
            raise argument_error(f"sequences[{index}]", sequence, "a sequence", example=[1, 2], error=DataError)
    length = max(map(len, sequences), default=0) if maxlen is None else maxlen
    shape = next((np.shape(sequence)[1:] for sequence in sequences if len(sequence)), ())
    padded = np.full((len(sequences), length, *shape), value, dtype)
    for index, sequence in enumerate(sequences):
        kept = np.asarray(sequence[:length] if truncating == "post" else sequence[max(len(sequence) - length, 0) :])
        if not len(kept):
            continue
        if kept.shape[1:] != shape:
            expected = f"a sequence of elements of shape {shape}, as those before"
            raise argument_error(f"sequences[{index}]", kept, expected, error=DataError)
        padded[index, slice(len(kept)) if padding == "post" else slice(length - len(kept), None)] = kept
    return padded
