"""Preprocessing of images for the networks, and decoding of predictions."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import check_int, check_option
from keras_dist._support.types import ArrayLike
from keras_dist.config.settings import check_data_format
from keras_dist.errors import DataError, shorten

ClassIndex = str | os.PathLike[str] | Mapping[str, Sequence[str]]
"""A JSON file, or its content: `{"0": ["n01440764", "tench"], ...}`."""

_MOST_BYTES = 2**24
_SCALES = {"tf": 127.5, "torch": 255.0, "caffe": 1.0}
_STATISTICS = {
    "torch": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "caffe": ((103.939, 116.779, 123.68), (1.0, 1.0, 1.0)),
}
"""Means and standard deviations of the channels in ImageNet."""
_FIX = 'decode_predictions(predictions, class_index="imagenet_class_index.json"): Keras keeps it in ~/.keras/models'


def preprocess_input(
    x: ArrayLike, data_format: str | None = None, mode: Literal["caffe", "tf", "torch"] = "caffe"
) -> ArrayLike:
    """Scale and reorder the channels of images as in the training of a network.

    Args:
        x: RGB images (batch, height, width, 3) or (height, width, 3) with values from 0 to 255; or a symbolic tensor.
        data_format: `"channels_last"`, the default, or `"channels_first"`.
        mode: `"caffe"` for BGR minus the mean of ImageNet; `"tf"` for values from -1 to 1; `"torch"` for values from 0
            to 1, normalized by mean and standard deviation of ImageNet.

    Raises:
        DataError: images for modes `"caffe"` and `"torch"` do not have three channels.

    Differs from Keras: NumPy arrays are not modified.
    """
    mode = check_option("mode", mode, tuple(_SCALES), "")
    last = check_data_format(data_format, "") == "channels_last"
    images: Any = x if hasattr(x, "shape") else np.asarray(x)
    if isinstance(images, np.ndarray | jax.Array) and not jnp.issubdtype(images.dtype, jnp.floating):
        images = images.astype("float32")
    if mode == "tf":
        return images / 127.5 - 1.0
    rank = len(images.shape)
    if rank < 3 or images.shape[-1 if last else -3] not in (3, None):
        given = f"shape {tuple(images.shape)} with data_format={'channels_last' if last else 'channels_first'!r}"
        fix = "images[..., :3], or np.repeat(images, 3, axis=-1) for gray ones"
        raise DataError("preprocess_input: images must have three channels, red, green and blue", given=given, fix=fix)
    if mode == "caffe":
        images = images[..., ::-1] if last else images[(slice(None),) * (rank - 3) + (slice(None, None, -1),)]
    shape = (3,) if last else (3, 1, 1)
    mean, deviation = (np.asarray(values, images.dtype).reshape(shape) for values in _STATISTICS[mode])
    return (images / _SCALES[mode] - mean) / deviation


def decode_predictions(
    preds: ArrayLike, top: int = 5, *, class_index: ClassIndex | None = None
) -> list[list[tuple[str, str, float]]]:
    """Return the most likely classes of each image, in descending order, as `(name, description, score)`.

    Args:
        preds: scores (images, classes).
        top: number of classes for each image.
        class_index: names and descriptions of the classes: the JSON file of ImageNet, or its content.

    Raises:
        DataError: `class_index` is missing, invalid, or for another number of classes.

    Example:
        >>> from keras_dist.applications.imagenet_utils import decode_predictions
        >>> decode_predictions([[0.1, 0.9]], top=1, class_index={"0": ["n1", "tench"], "1": ["n2", "goldfish"]})
        [[('n2', 'goldfish', 0.9)]]

    Differs from Keras: nothing is downloaded; any number of classes.
    """
    top = check_int("top", top, 1, example=5)
    names = _names_of(class_index)
    scores = np.asarray(jax.device_get(preds))
    if scores.ndim != 2 or scores.shape[1] != len(names):
        summary = f"decode_predictions: the scores must have the shape (images, {len(names)})"
        fix = "scores of a network with include_top=True, and the file of its classes"
        raise DataError(summary, given=f"scores of shape {scores.shape}, {len(names)} classes", fix=fix)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    return [
        [(*names[number], row[number].item()) for number in numbers] for row, numbers in zip(scores, best, strict=True)
    ]


def _names_of(class_index: ClassIndex | None) -> list[tuple[str, str]]:
    if class_index is None:
        summary = "decode_predictions needs the names of the classes: nothing is downloaded"
        raise DataError(summary, given="no class_index", fix=_FIX)
    found: Any = class_index
    if not isinstance(class_index, Mapping):
        with Path(class_index).open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        try:
            found = json.loads(text) if len(text) <= _MOST_BYTES else None
        except (ValueError, RecursionError):
            found = None
    try:
        pairs = [(found[str(number)][0], found[str(number)][1]) for number in range(len(found))]
    except (KeyError, IndexError, TypeError):
        pairs = []
    if not pairs or not all(isinstance(text, str) for pair in pairs for text in pair):
        summary = 'decode_predictions: `class_index` must be {"0": ["n01440764", "tench"], "1": [...], ...}'
        raise DataError(summary, given=shorten(class_index), fix=_FIX)
    return pairs
