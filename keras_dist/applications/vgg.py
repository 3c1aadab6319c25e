"""`VGG16` and `VGG19`: plain convolutions."""

from __future__ import annotations

import os
from typing import Any

from keras_dist import layers
from keras_dist._support.types import Shape
from keras_dist.applications.imagenet_utils import decode_predictions
from keras_dist.applications.network import Arguments
from keras_dist.applications.network import preprocess_caffe as preprocess_input
from keras_dist.models import Model

__all__ = ["VGG16", "VGG19", "decode_predictions", "preprocess_input"]

_FILTERS = (64, 128, 256, 512, 512)
"""Of the convolutions of each block."""


def VGG16(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: Any = None,
    input_shape: Shape | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: Any = "softmax",
    name: str = "vgg16",
) -> Model:
    """Return VGG16: thirteen convolutions in five blocks, and three dense layers.

    Images are less the mean of ImageNet, blue first: see `vgg16.preprocess_input`.

    Arguments and errors as in `ResNet50`.

    Source: `keras.applications.VGG16`; https://arxiv.org/abs/1409.1556.
    """
    arguments = Arguments(
        include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name
    )
    return _network(arguments, (2, 2, 3, 3, 3), "vgg16")


def VGG19(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: Any = None,
    input_shape: Shape | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: Any = "softmax",
    name: str = "vgg19",
) -> Model:
    """Return VGG19: sixteen convolutions in five blocks, and three dense layers.

    Images are less the mean of ImageNet, blue first: see `vgg19.preprocess_input`.

    Arguments and errors as in `ResNet50`.

    Source: `keras.applications.VGG19`; https://arxiv.org/abs/1409.1556.
    """
    arguments = Arguments(
        include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name
    )
    return _network(arguments, (2, 2, 4, 4, 4), "vgg19")


def _network(arguments: Arguments, convolutions: tuple[int, ...], name: str) -> Model:
    """The network with as many convolutions in each block."""
    x = arguments.start()
    for block, (filters, count) in enumerate(zip(_FILTERS, convolutions, strict=True), 1):
        for number in range(1, count + 1):
            convolution = layers.Conv2D(
                filters, 3, padding="same", activation="relu", name=f"block{block}_conv{number}"
            )
            x = convolution(x)
        x = layers.MaxPooling2D(2, strides=2, name=f"block{block}_pool")(x)
    if not arguments.include_top:
        return arguments.model(arguments.pool(x), name)
    x = layers.Flatten(name="flatten")(x)
    for name_of_layer in ("fc1", "fc2"):
        x = layers.Dense(4096, activation="relu", name=name_of_layer)(x)
    return arguments.model(arguments.classify(x), name)
