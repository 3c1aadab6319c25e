"""Preprocessing: one-hot classes, normalized rows, sequences of equal length, batches of few shapes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import LARGEST_SIZE, argument_error, check_int, check_kind, check_option, shapes
from keras_dist._support.integer_checks import check_indices
from keras_dist._support.types import DTypeLike, PyTree
from keras_dist.data.batch import unpack
from keras_dist.data.conversion import as_arrays, common_length, dense, named_leaves
from keras_dist.errors import DataError, shorten
from keras_dist.losses.loss import REDUCTIONS


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


def pad_batch(
    batch: PyTree,
    multiple_of: int | None = None,
    lengths: Sequence[int] | None = None,
    *,
    dim: int = 0,
    value: float = 0,
    pads_targets: bool = False,
    reduction: str | None = "sum_over_batch_size",
) -> tuple[PyTree, PyTree, PyTree]:
    """Pad a batch, so that batches of many lengths have few shapes: JAX compiles a program for each shape.

    Added rows repeat the last row and have weight 0, so that they change neither the loss of the batch nor its
    gradients, with the right `reduction`:

    - Padded steps with a mask, as by `Embedding(mask_zero=True)` or `Masking`: `reduction=None`, whatever the loss
      divides by. It divides by the unmasked values, and weights must not change. The default would multiply loss and
      gradients by `padded / real`.
    - A loss that divides by the sum of weights, "mean_with_sample_weight", or by nothing, "sum": that reduction, with
      or without a mask.
    - A loss with the default reduction and no mask: the default.
    - Padded rows of a model with a mask and the default reduction: not possible, since the loss also divides by the
      steps of the added rows. Compile the loss with `reduction="mean_with_sample_weight"`, and pass that here.

    The model treats added rows like any other rows: they are part of the statistics of `BatchNormalization`, activity
    regularizers and `metrics`, and `predict` returns outputs for them. The loss that `fit` and `evaluate` log is, as in
    Keras, the mean over batches weighted by their numbers of rows, including padded rows: a last batch of 1 row that is
    padded to 8 has the weight of 8 rows. `weighted_metrics` are exact over any batches if weights do not change: for
    the mean loss of all rows compile the loss with `reduction="mean_with_sample_weight"`, and again as a weighted
    metric.

    Args:
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`; each may be a pytree of arrays.
        multiple_of: pad to the next multiple of this number. Pass this or `lengths`.
        lengths: pad to the smallest of these lengths that is large enough.
        dim: dim to pad: 0 for the rows, of all arrays; another one is padded in all arrays of `x`, for example 1 for
            the steps of sequences `(rows, steps, ...)`.
        value: padding value of `x` along a dim other than the rows.
        pads_targets: whether `y` has the dim, too, as `(rows, steps)` or `(rows, steps, classes)`. Its added positions
            are 0 and have weight 0, and weights get this dim. Only for a dim other than the rows.
        reduction: reduction of the loss. "sum_over_batch_size" and "mean" divide by all values, including padding;
            therefore the weights of real values are multiplied by `padded / real`. "sum", "mean_with_sample_weight",
            "none" and None do not change weights.

    Returns:
        `(x, y, sample_weight)` of numpy arrays. New weights are 1 for real values, and None if a dim of `x` alone is
        padded.

    Raises:
        DataError: an argument is invalid, an array lacks the dim, is longer than all `lengths`, or the weights do not
            fit the targets.
        ModelError: the reduction is unknown.

    Example:
        >>> import numpy as np
        >>> from keras_dist import data
        >>> x, y, sample_weight = data.pad_batch((np.ones((3, 2)), np.arange(3)), multiple_of=4, reduction="sum")
        >>> x.shape, y, sample_weight
        ((4, 2), array([0, 1, 2, 2]), array([1., 1., 1., 0.], dtype=float32))
        >>> data.pad_batch(np.ones((3, 70)), lengths=(64, 128), dim=1)[0].shape
        (3, 128)

        Sequences for a model with `Embedding(mask_zero=True)`, which masks 0:

        >>> tokens = np.array([[5, 2, 3]])
        >>> batch = data.pad_batch((tokens, tokens), multiple_of=4, dim=1, pads_targets=True, reduction=None)
        >>> batch[0], batch[2]
        (array([[5, 2, 3, 0]]), array([[1., 1., 1., 0.]], dtype=float32))
    """
    given = zip(unpack(batch, "pad_batch: batch"), ("x", "y", "sample_weight"), strict=True)
    x, y, weights = arrays = tuple(jax.tree.map(dense, as_arrays(tree, name)) for tree, name in given)
    rows = common_length(arrays, "", what="batch")
    divides_by_all = check_option("reduction", reduction, REDUCTIONS) in ("sum_over_batch_size", "mean")
    check_int("dim", dim, 0, error=DataError)
    check_kind("pads_targets", pads_targets, bool | np.bool_, "True or False", error=DataError)
    if np.ndim(value) or np.asarray(value).dtype.kind not in "biuf":
        raise argument_error("value", value, "a number", example=0, error=DataError)
    if pads_targets and (dim == 0 or y is None):
        wrong = "is for a dim other than the rows" if dim == 0 else "cannot be given without y"
        raise argument_error("pads_targets", pads_targets, "False", wrong=wrong, example=False, error=DataError)
    to_length = functools.partial(_padded_length, multiple_of, _checked(multiple_of, lengths))
    adds_weights = dim == 0 or pads_targets
    if adds_weights and (weights is None or isinstance(weights, np.ndarray)):
        shared = np.ones(rows, np.float32) if weights is None else weights
        weights = jax.tree.map(lambda _: shared, y) if pads_targets else shared
    elif adds_weights and y is not None and jax.tree.structure(weights) != jax.tree.structure(y):
        raise DataError(
            "pad_batch: `sample_weight` must be one array for all outputs, or a tree like y",
            given=f"{shorten(jax.tree.structure(weights))} for {shorten(jax.tree.structure(y))}",
            fix="give weights of 1 where there are none",
        )

    def weighted(weight: np.ndarray, length: int) -> np.ndarray:
        """Return the weights along `dim`, padded to `length`."""
        weight = weight if weight.dtype.kind == "f" else weight.astype(np.float32)
        factor = length / weight.shape[dim] if divides_by_all and weight.shape[dim] else 1
        return _padded(weight * weight.dtype.type(factor), dim, length, 0)

    if dim == 0:
        length = to_length(rows, "x")
        numbers = np.minimum(np.arange(length), rows - 1)
        x, y = jax.tree.map(lambda leaf: leaf[numbers], (x, y))
        return x, y, jax.tree.map(lambda weight: weighted(weight, length), weights)
    for name, leaf in named_leaves((x, y if pads_targets else None, None), ""):
        if leaf.ndim <= dim:
            fix = "pad arrays that have the dim by themselves, or choose another one"
            raise DataError(f"pad_batch: {name} has no dim {dim}", given=shapes(**{name: leaf}), fix=fix)

    def spread(leaf: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Return the weights of the positions in an array of `y`."""
        weight = weight.reshape(*weight.shape, *[1] * (dim + 1 - weight.ndim))
        shape = *leaf.shape[: dim + 1], *weight.shape[dim + 1 :]
        if any(given not in (1, size) for given, size in zip(weight.shape, shape, strict=True)):
            summary = f"pad_batch: `sample_weight` must be a weight for each row, or of shape {leaf.shape[: dim + 1]}"
            fix = "give the weights before the padding, of the shape of the targets"
            raise DataError(summary, given=shapes(weights=weight, targets=leaf), fix=fix)
        return weighted(np.broadcast_to(weight, shape), to_length(leaf.shape[dim], "y"))

    if pads_targets:
        weights = jax.tree.map(spread, y, weights)
        y = jax.tree.map(lambda leaf: _padded(leaf, dim, to_length(leaf.shape[dim], "y"), 0), y)
    return jax.tree.map(lambda leaf: _padded(leaf, dim, to_length(leaf.shape[dim], "x"), value), x), y, weights


def _checked(multiple_of: int | None, lengths: Sequence[int] | None) -> list[int]:
    """Return `lengths` in ascending order."""
    if (multiple_of is None) == (lengths is None):
        given = f"multiple_of={shorten(multiple_of)}, lengths={shorten(lengths)}"
        fix = "for example multiple_of=32, or lengths=(64, 128, 256)"
        raise DataError("pad_batch: either `multiple_of` or `lengths` must be given", given=given, fix=fix)
    if multiple_of is not None:
        check_int("multiple_of", multiple_of, 1, LARGEST_SIZE, error=DataError)
    items = lengths if isinstance(lengths, Iterable) else [] if lengths is None else [lengths]
    return sorted(check_int("lengths", length, 1, LARGEST_SIZE, error=DataError) for length in items)


def _padded_length(multiple_of: int | None, lengths: list[int], length: int, name: str) -> int:
    """Return the length to pad to."""
    if multiple_of is not None:
        return -(-length // multiple_of) * multiple_of
    for enough in lengths:
        if enough >= length:
            return enough
    given = f"length {length}, lengths={tuple(lengths)}"
    fix = f"add a length of at least {length}, or cut {name} before"
    raise DataError(f"pad_batch: {name} is longer than all lengths", given=given, fix=fix)


def _padded(leaf: np.ndarray, dim: int, length: int, value: float) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        if leaf.dtype.kind in "biu" and np.asarray(value).astype(leaf.dtype) != value:
            raise argument_error("value", value, f"a number that {leaf.dtype} holds", example=0, error=DataError)
    widths = [(0, length - size if axis == dim else 0) for axis, size in enumerate(leaf.shape)]
    return np.pad(leaf, widths, constant_values=value)
