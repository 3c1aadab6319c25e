"""Connectionist temporal classification (CTC): a loss of sequences without alignment."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from keras_dist._support.arguments import shapes
from keras_dist._support.integer_checks import check_indices
from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError
from keras_dist.losses.loss import FunctionLoss
from keras_dist.losses.targets import as_arrays


def ctc(y_true: ArrayLike, y_pred: ArrayLike) -> jax.Array:
    """`-log(probability of y_true under y_pred)`, summed over all alignments, (batch,).

    Args:
        y_true: class indices (batch, length), with 0 after the end of each sequence.
        y_pred: logits (batch, steps, classes); class 0 is the blank.

    Raises:
        ModelError: the shapes do not fit.
        DataError: a class index is out of range; in compiled steps only with `compile(check=True)`.
    """
    y_true, y_pred = as_arrays("ctc", y_true, y_pred)
    if y_true.ndim != 2 or y_pred.ndim != 3 or len(y_true) != len(y_pred):
        summary = "ctc: `y_true` must be class indices (batch, length), `y_pred` logits (batch, steps, classes)"
        given = shapes(y_true=y_true, y_pred=y_pred)
        raise ModelError(summary, given=given, fix="pad the sequences of a batch with 0 to one length")
    check_indices(
        y_true,
        y_pred.shape[-1],
        "ctc: class index in `y_true` out of range for `y_pred`",
        "an output for each class, and one for the blank, which is 0",
    )
    lengths = jnp.sum(y_true != 0, axis=1, keepdims=True)
    paddings = jnp.arange(y_true.shape[1]) >= lengths
    steps = jnp.zeros(y_pred.shape[:2], y_pred.dtype)
    return optax.ctc_loss(y_pred, steps, y_true.astype(jnp.int32), paddings.astype(y_pred.dtype))


class CTC(FunctionLoss, function=ctc):
    """`-log(probability of y_true under y_pred)`, summed over all alignments, as a `Loss`. Arguments as in `Loss`."""
