"""Class weights as sample weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from keras_dist._support.arguments import argument_error, check_exclusive
from keras_dist._support.types import PyTree
from keras_dist.data.conversion import dense
from keras_dist.errors import DataError


def weights_of_classes(y: PyTree, class_weight: Mapping[int, float], sample_weight: PyTree = None) -> np.ndarray:
    """Return the weight of the class of each example.

    Args:
        y: class indices (examples,) or (examples, 1), or a score for each class (examples, classes), the largest of
            which counts.
        class_weight: weights by class index; classes that are not in it weigh 1.
        sample_weight: the weights that the examples have already, of which there must be none.

    Returns:
        Weights (examples,), float32.

    Source: `keras.src.trainers.data_adapters.data_adapter_utils.class_weight_to_sample_weights`.
    """
    fix = "multiply sample_weight by the weight of each example's class"
    check_exclusive(DataError, fix, class_weight=class_weight, sample_weight=sample_weight)
    _check_weights(class_weight)
    if not hasattr(y, "shape") or len(y.shape) not in (1, 2):
        summary = "`class_weight` needs one output, with y of shape (examples,), (examples, 1) or (examples, classes)"
        given = "y=None" if y is None else f"y: {_shape(y)}"
        raise DataError(summary, given=given, fix="pass weights for each output by sample_weight")
    y = np.asarray(dense(y))
    if y.ndim == 2:
        y = y.argmax(-1) if y.shape[1] > 1 else y[:, 0]
    classes, places = np.unique(np.round(y).astype(np.int32), return_inverse=True)
    return np.array([class_weight.get(int(label), 1.0) for label in classes], np.float32)[places]


def _check_weights(class_weight: object) -> None:
    numbers = (int, float, np.number)
    fits = isinstance(class_weight, Mapping) and all(
        isinstance(label, numbers) and float(label).is_integer() and isinstance(weight, numbers) and np.isfinite(weight)
        for label, weight in class_weight.items()
    )
    if not fits:
        expected, example = "a dict from class indices to finite weights", {0: 1.0, 1: 5.0}
        raise argument_error("class_weight", class_weight, expected, example=example, error=DataError)


def _shape(y: PyTree) -> str:
    return f"shape {y.shape}" if hasattr(y, "shape") else f"a {type(y).__name__} for several outputs"
