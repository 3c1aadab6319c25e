"""`Xception`: residual blocks of separable convolutions."""

from __future__ import annotations

import os
from typing import Any

from keras_dist import layers
from keras_dist._support.types import Shape
from keras_dist.applications.imagenet_utils import decode_predictions
from keras_dist.applications.network import Arguments
from keras_dist.applications.network import preprocess_tf as preprocess_input
from keras_dist.models import Model
from keras_dist.symbolic.tensors import KerasTensor

__all__ = ["Xception", "decode_predictions", "preprocess_input"]

_SIZE, _SMALLEST = 299, 71
_MIDDLE = range(5, 13)
"""The blocks that keep the shape of their input."""


def Xception(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: Any = None,
    input_shape: Shape | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: Any = "softmax",
    name: str = "xception",
) -> Model:
    """Return Xception: twelve residual blocks of separable convolutions.

    Images have values from -1 to 1: see `xception.preprocess_input`.

    Other arguments and errors as in `ResNet50`.

    Args:
        input_shape: (height, width, channels), height and width at least 71; by default (299, 299, 3), without a
            classifier (None, None, 3).

    Source: `keras.applications.Xception`; https://arxiv.org/abs/1610.02357.
    """
    arguments = Arguments(
        include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name
    )
    x = arguments.start(_SIZE, _SMALLEST)
    for number, (filters, strides) in enumerate(((32, 2), (64, 1)), 1):
        convolution = f"block1_conv{number}"
        x = layers.Conv2D(filters, 3, strides=strides, use_bias=False, name=convolution)(x)
        x = _active(layers.BatchNormalization(name=f"{convolution}_bn")(x), convolution)
    for block, filters in ((2, 128), (3, 256), (4, 728)):
        x = _narrowing(x, (filters, filters), block)
    for block in _MIDDLE:
        inputs = x
        for number in (1, 2, 3):
            x = _separable(_active(x, f"block{block}_sepconv{number}"), 728, f"block{block}_sepconv{number}")
        x = layers.Add()([x, inputs])
    x = _narrowing(x, (728, 1024), 13)
    for number, filters in enumerate((1536, 2048), 1):
        x = _active(_separable(x, filters, f"block14_sepconv{number}"), f"block14_sepconv{number}")
    return arguments.finish(x, "xception", ("avg_pool" if include_top else None, None))


def _narrowing(x: KerasTensor, filters: tuple[int, int], block: int) -> KerasTensor:
    """A residual block that halves the height and width."""
    shortcut = layers.Conv2D(filters[1], 1, strides=2, padding="same", use_bias=False)(x)
    shortcut = layers.BatchNormalization()(shortcut)
    for number, features in enumerate(filters, 1):
        name = f"block{block}_sepconv{number}"
        if (block, number) != (2, 1):  # its input is active
            x = _active(x, name)
        x = _separable(x, features, name)
    x = layers.MaxPooling2D(3, strides=2, padding="same", name=f"block{block}_pool")(x)
    return layers.Add()([x, shortcut])


def _separable(x: KerasTensor, filters: int, name: str) -> KerasTensor:
    """A separable convolution, normalised."""
    x = layers.SeparableConv2D(filters, 3, padding="same", use_bias=False, name=name)(x)
    return layers.BatchNormalization(name=f"{name}_bn")(x)


def _active(x: KerasTensor, name: str) -> KerasTensor:
    return layers.Activation("relu", name=f"{name}_act")(x)
