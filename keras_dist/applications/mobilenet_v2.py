"""`MobileNetV2`: inverted residual blocks with linear bottlenecks."""

from __future__ import annotations

import os
from typing import Any

from keras_dist import layers
from keras_dist._support.arguments import check_number
from keras_dist._support.types import Shape
from keras_dist.applications.imagenet_utils import decode_predictions
from keras_dist.applications.network import Arguments, channels_of, divisible, padding_before
from keras_dist.applications.network import preprocess_tf as preprocess_input
from keras_dist.models import Model
from keras_dist.symbolic.tensors import KerasTensor

__all__ = ["MobileNetV2", "decode_predictions", "preprocess_input"]

_STAGES = ((16, 1, 1), (24, 2, 2), (32, 2, 3), (64, 2, 4), (96, 1, 3), (160, 2, 3), (320, 1, 1))
"""Filters, strides of the first block, and number of blocks of each stage."""


def MobileNetV2(
    input_shape: Shape | None = None,
    alpha: float = 1.0,
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: Any = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: Any = "softmax",
    name: str | None = None,
) -> Model:
    """Return MobileNetV2: seventeen inverted residual blocks with linear bottlenecks.

    Inputs are images with values from -1 to 1; see `mobilenet_v2.preprocess_input`.

    Other arguments and errors as in `ResNet50`.

    Args:
        alpha: width multiplier: factor of the number of filters of each layer.

    Source: `keras.applications.MobileNetV2`; https://arxiv.org/abs/1801.04381.
    """
    arguments = Arguments(
        include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name
    )
    alpha = check_number("alpha", alpha, above=0, example=1.0)
    x = arguments.start()
    rows = x.shape[1]
    x = layers.Conv2D(divisible(32 * alpha), 3, strides=2, padding="same", use_bias=False, name="Conv1")(x)
    x = layers.ReLU(6.0, name="Conv1_relu")(_normalised(x, "bn_Conv1"))
    number = 0
    for filters, strides, repeats in _STAGES:
        for repeat in range(repeats):
            x = _block(x, divisible(int(filters * alpha)), strides if repeat == 0 else 1, number)
            number += 1
    x = layers.Conv2D(divisible(1280 * max(alpha, 1.0)), 1, use_bias=False, name="Conv_1")(x)
    x = layers.ReLU(6.0, name="out_relu")(_normalised(x, "Conv_1_bn"))
    return arguments.finish(x, f"mobilenetv2_{alpha:0.2f}_{rows}")


def _block(x: KerasTensor, filters: int, strides: int, number: int) -> KerasTensor:
    inputs, channels = x, channels_of(x)
    name = f"block_{number}_" if number else "expanded_conv_"
    if number:
        x = layers.Conv2D(6 * channels, 1, padding="same", use_bias=False, name=f"{name}expand")(x)
        x = layers.ReLU(6.0, name=f"{name}expand_relu")(_normalised(x, f"{name}expand_BN"))
    if strides == 2:
        x = layers.ZeroPadding2D(padding_before(x, 3), name=f"{name}pad")(x)
    padding = "same" if strides == 1 else "valid"
    x = layers.DepthwiseConv2D(3, strides=strides, use_bias=False, padding=padding, name=f"{name}depthwise")(x)
    x = layers.ReLU(6.0, name=f"{name}depthwise_relu")(_normalised(x, f"{name}depthwise_BN"))
    x = layers.Conv2D(filters, 1, padding="same", use_bias=False, name=f"{name}project")(x)
    x = _normalised(x, f"{name}project_BN")
    return layers.Add(name=f"{name}add")([inputs, x]) if channels == filters and strides == 1 else x


def _normalised(x: KerasTensor, name: str) -> KerasTensor:
    return layers.BatchNormalization(epsilon=1e-3, momentum=0.999, name=name)(x)
