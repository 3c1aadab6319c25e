"""Activations, encodings and crossentropies; convolutions, normalization and attention from other files."""

# pyright: reportUnknownMemberType=false
# ruff: noqa: F403  # each file lists its names in `__all__`

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from keras_dist import activations, losses
from keras_dist._support.arguments import argument_error
from keras_dist._support.located_warnings import warn
from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.errors import ModelError
from keras_dist.ops import numpy_arguments
from keras_dist.ops.attention import dot_product_attention as dot_product_attention
from keras_dist.ops.normalization import *
from keras_dist.ops.operation import as_array, floating, like, names_in, operation, unary
from keras_dist.ops.patches import depth_to_space as depth_to_space
from keras_dist.ops.patches import fold as fold
from keras_dist.ops.patches import space_to_depth as space_to_depth
from keras_dist.ops.patches import unfold as unfold
from keras_dist.ops.sequences import ctc_decode as ctc_decode
from keras_dist.ops.sequences import ctc_loss as ctc_loss
from keras_dist.ops.spatial import *

relu = unary("relu", activations.relu, "Return `max(x, 0)`.")
squareplus = like("squareplus", activations.squareplus)
celu = like("celu", activations.celu)
elu = like("elu", activations.elu)
glu = like("glu", activations.glu)
hard_shrink = like("hard_shrink", activations.hard_shrink)
hard_sigmoid = like("hard_sigmoid", activations.hard_sigmoid)
hard_silu = hard_swish = like("hard_silu", activations.hard_silu)
hard_tanh = like("hard_tanh", activations.hard_tanh)
leaky_relu = like("leaky_relu", activations.leaky_relu)
log_sigmoid = like("log_sigmoid", activations.log_sigmoid)
log_softmax = like("log_softmax", activations.log_softmax)
relu6 = like("relu6", activations.relu6)
selu = like("selu", activations.selu)
sigmoid = like("sigmoid", activations.sigmoid)
silu = swish = like("silu", activations.silu)
soft_shrink = like("soft_shrink", activations.soft_shrink)
softplus = like("softplus", activations.softplus)
softsign = like("softsign", activations.softsign)
sparse_plus = like("sparse_plus", activations.sparse_plus)
sparse_sigmoid = like("sparse_sigmoid", activations.sparse_sigmoid)
sparsemax = like("sparsemax", activations.sparsemax)
tanh_shrink = like("tanh_shrink", activations.tanh_shrink)
threshold = like("threshold", activations.threshold)


@operation
def softmax(x: ArrayLike, axis: int | tuple[int, ...] = -1) -> jax.Array:
    """Return `exp(x) / sum(exp(x), axis)`; warn if the dim `axis` has size 1, where the result is always 1."""
    array = as_array(x)
    if isinstance(axis, int) and array.shape[axis : axis + 1 or None] == (1,):
        warn(
            f"softmax over axis {axis} of an array of shape {array.shape}, which has size 1 there, is always 1; did "
            "you mean sigmoid?"
        )
    return activations.softmax(array, axis)


@operation
def gelu(x: ArrayLike, approximate: bool = True) -> jax.Array:
    """Return `x * P(X <= x)` for a standard normal X, with tanh if `approximate`, else with erf."""
    return activations.gelu(as_array(x), approximate)


@operation
def polar(abs_: ArrayLike, angle: ArrayLike) -> jax.Array:
    """Return complex numbers with absolute values `abs_` and angles `angle`, in radians."""
    radius, turn = as_array(abs_), as_array(angle)
    return jax.lax.complex(floating(radius * jnp.cos(turn)), floating(radius * jnp.sin(turn)))


def _check_dense(name: str, sparse: bool) -> None:
    if sparse:
        summary = f"{name}: `sparse` must be False, sparse arrays of JAX do not go through models"
        fix = "leave it out, or take jax.experimental.sparse.BCOO.fromdense of the result"
        raise ModelError(summary, given="sparse=True", fix=fix)


@operation
def one_hot(
    x: ArrayLike, num_classes: int, axis: int = -1, dtype: DTypeLike | None = None, sparse: bool = False
) -> jax.Array:
    """Return one-hot vectors; all 0 for an index out of range.

    Args:
        x: class indices.
        num_classes: number of classes.
        axis: position of the dim of classes in the result.
        dtype: element type of the result; None for `floatx()`.
        sparse: must be False.

    Raises:
        ModelError: `sparse` is set.
    """
    _check_dense("one_hot", sparse)
    return jax.nn.one_hot(as_array(x), num_classes, axis=axis, dtype=numpy_arguments.element_type_or_floatx(dtype))


@operation
def multi_hot(
    inputs: ArrayLike,
    num_classes: int | None = None,
    axis: int = -1,
    dtype: DTypeLike | None = None,
    sparse: bool = False,
    **kwargs: Any,
) -> jax.Array:
    """Return multi-hot vectors: 1 at each index in a row of `inputs`, else 0.

    Args:
        inputs: class indices (n,) or (batch, n, ...); the dim n is reduced.
        axis: position of the dim of classes, before n is reduced.
        num_classes, dtype, sparse: as in `one_hot`.
        **kwargs: `num_tokens`, another name of `num_classes`.

    Raises:
        ModelError: `sparse` is set, or the number of classes is not given.
    """
    _check_dense("multi_hot", sparse)
    indices = as_array(inputs, "int32")
    count = kwargs.get("num_tokens") if num_classes is None else num_classes
    if count is None:
        raise argument_error("num_classes", None, "the number of classes", example=10)
    hot = jax.nn.one_hot(indices, count, axis=axis, dtype=numpy_arguments.element_type_or_floatx(dtype))
    return jnp.max(hot, axis=1 if indices.ndim > 1 else 0)


def _of_one_type(target: ArrayLike, output: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Cast both to their common type; losses would use the type of the output."""
    targets, outputs = as_array(target), as_array(output)
    dtype = jnp.result_type(targets, outputs)
    return targets.astype(dtype), outputs.astype(dtype)


@operation
def binary_crossentropy(target: ArrayLike, output: ArrayLike, from_logits: bool = False) -> jax.Array:
    """Return `-target * log(output) - (1 - target) * log(1 - output)` for each element.

    Args:
        target: numbers from 0 to 1.
        output: probabilities or logits, of the same shape.
        from_logits: whether `output` are logits.

    Raises:
        ModelError: the shapes differ.
    """
    targets, outputs = _of_one_type(target, output)
    return losses.binary_crossentropy(targets[..., None], outputs[..., None], from_logits)


@operation
def categorical_crossentropy(
    target: ArrayLike, output: ArrayLike, from_logits: bool = False, axis: int = -1
) -> jax.Array:
    """Return `-sum(target * log(output), axis)`.

    Args:
        target: one-hot rows, or other distributions, of the shape of `output`.
        output: probabilities, normalized to a sum of 1, or logits.
        from_logits: whether `output` are logits.
        axis: the dim of the classes.

    Raises:
        ModelError: the shapes differ.
    """
    return losses.categorical_crossentropy(*_of_one_type(target, output), from_logits, axis=axis)


@operation
def sparse_categorical_crossentropy(
    target: ArrayLike, output: ArrayLike, from_logits: bool = False, axis: int = -1
) -> jax.Array:
    """Return `-log(output[target])`, with at least the precision of `floatx()`.

    Args:
        target: class indices, of the shape of `output` without the dim `axis`, or with size 1 there.
        output, from_logits, axis: as in `categorical_crossentropy`.

    Raises:
        ModelError: the shapes do not fit.
        DataError: a class index is out of range; in compiled steps the result is NaN.
    """
    values = losses.sparse_categorical_crossentropy(as_array(target), as_array(output), from_logits, axis=axis)
    return values.astype(jnp.result_type(values, numpy_arguments.element_type_or_floatx(None)))


@operation
def psnr(x1: ArrayLike, x2: ArrayLike, max_val: float) -> jax.Array:
    """Return the peak signal-to-noise ratio `20 * log10(max_val) - 10 * log10(mean((x1 - x2)**2))` [dB].

    Args:
        x1: an array.
        x2: an array of the same shape.
        max_val: the largest possible value of a signal.

    Raises:
        ModelError: the shapes differ.
    """
    one, other = as_array(x1), as_array(x2)
    if one.shape != other.shape:
        fix = "crop or resize one of them"
        raise ModelError("psnr compares arrays of one shape", given=f"shapes {one.shape} and {other.shape}", fix=fix)
    return 20 * jnp.log10(as_array(max_val, other.dtype)) - 10 * jnp.log10(jnp.mean(jnp.square(one - other)))


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
