"""`loss="crossentropy"`: binary, sparse or categorical, chosen by the shapes of targets and predictions."""

from __future__ import annotations

import jax

from keras_dist._support.types import ArrayLike
from keras_dist.losses.binary import binary_crossentropy
from keras_dist.losses.categorical import categorical_crossentropy, sparse_categorical_crossentropy
from keras_dist.losses.targets import as_arrays
from keras_dist.saving.registry import register_keras_serializable

NAMES = ("crossentropy", "ce")  # names of the loss in `compile`


def kind_by_shapes(y_true: jax.Array, y_pred: jax.Array) -> str:
    """Return `"binary"`, `"sparse"` or `"categorical"`."""
    if y_pred.ndim < 2 or y_pred.shape[-1] == 1:
        return "binary"
    return "sparse" if y_true.ndim < y_pred.ndim or y_true.shape[-1] == 1 else "categorical"


@register_keras_serializable("keras_dist")
def crossentropy_by_shapes(y_true: ArrayLike, y_pred: ArrayLike) -> jax.Array:
    """Binary, sparse or categorical crossentropy, chosen by the shapes."""
    y_true, y_pred = as_arrays("crossentropy", y_true, y_pred)
    return {
        "binary": binary_crossentropy,
        "sparse": sparse_categorical_crossentropy,
        "categorical": categorical_crossentropy,
    }[kind_by_shapes(y_true, y_pred)](y_true, y_pred)
