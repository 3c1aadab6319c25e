"""`EfficientNetB0`: inverted residual blocks with squeeze-and-excitation."""

from __future__ import annotations

from typing import Any

from keras_dist import initializers, layers
from keras_dist._support.types import ArrayLike
from keras_dist.applications.imagenet_utils import decode_predictions
from keras_dist.applications.network import Arguments, channels_of, network, padding_before
from keras_dist.models import Model
from keras_dist.symbolic.tensors import KerasTensor

__all__ = ["EfficientNetB0", "decode_predictions", "preprocess_input"]

_STAGES = (
    (3, 16, 1, 1, 1),
    (3, 24, 6, 2, 2),
    (5, 40, 6, 2, 2),
    (3, 80, 6, 2, 3),
    (5, 112, 6, 1, 3),
    (5, 192, 6, 2, 4),
    (3, 320, 6, 1, 1),
)
"""Kernel size, filters, expansion ratio, strides and number of blocks of each stage."""

_DROPPED = 0.2
_KERNEL = initializers.VarianceScaling(2.0, "fan_out", "truncated_normal")
_CLASSIFIER = initializers.VarianceScaling(1 / 3, "fan_out", "uniform")


@network
def EfficientNetB0(arguments: Arguments) -> Model:
    """Return EfficientNetB0: sixteen inverted residual blocks with squeeze-and-excitation.

    Inputs are images with values from 0 to 255.

    Arguments and errors as in `ResNet50`.

    Source: `keras.applications.EfficientNetB0`; https://arxiv.org/abs/1905.11946.
    """
    x = layers.Rescaling(1 / 255)(arguments.start())
    x = layers.Normalization(axis=-1)(x)
    x = layers.ZeroPadding2D(padding_before(x, 3), name="stem_conv_pad")(x)
    x = _convolution(x, 32, "stem_conv", 3, strides=2, padding="valid")
    x = _active(x, "stem_bn", "stem_activation")
    count, most = 0, sum(repeats for *_, repeats in _STAGES)
    for stage, (size, filters, ratio, strides, repeats) in enumerate(_STAGES, 1):
        for repeat in range(repeats):
            block = f"block{stage}{chr(ord('a') + repeat)}_"
            x = _block(x, filters, size, strides if repeat == 0 else 1, ratio, block, _DROPPED * count / most)
            count += 1
    x = _active(_convolution(x, 1280, "top_conv"), "top_bn", "top_activation")
    return arguments.finish(x, "efficientnetb0", ("avg_pool", "max_pool"), _DROPPED, _CLASSIFIER)


def _block(x: KerasTensor, filters: int, size: int, strides: int, ratio: int, name: str, dropped: float) -> KerasTensor:
    inputs, channels = x, channels_of(x)
    if ratio != 1:
        x = _convolution(x, channels * ratio, f"{name}expand_conv")
        x = _active(x, f"{name}expand_bn", f"{name}expand_activation")
    if strides == 2:
        x = layers.ZeroPadding2D(padding_before(x, size), name=f"{name}dwconv_pad")(x)
    x = layers.DepthwiseConv2D(
        size,
        strides=strides,
        padding="valid" if strides == 2 else "same",
        use_bias=False,
        depthwise_initializer=_KERNEL,
        name=f"{name}dwconv",
    )(x)
    x = _excited(_active(x, f"{name}bn", f"{name}activation"), max(1, channels // 4), name)
    x = layers.BatchNormalization(name=f"{name}project_bn")(_convolution(x, filters, f"{name}project_conv"))
    if strides != 1 or channels != filters:
        return x
    if dropped:
        x = layers.Dropout(dropped, noise_shape=(None, 1, 1, 1), name=f"{name}drop")(x)
    return layers.Add(name=f"{name}add")([x, inputs])


def _excited(x: KerasTensor, narrow: int, name: str) -> KerasTensor:
    """Squeeze and excitation: scale the channels by weights computed from their means."""
    weights = layers.GlobalAveragePooling2D(name=f"{name}se_squeeze")(x)
    weights = layers.Reshape((1, 1, channels_of(x)), name=f"{name}se_reshape")(weights)
    weights = _convolution(weights, narrow, f"{name}se_reduce", activation="swish", use_bias=True)
    weights = _convolution(weights, channels_of(x), f"{name}se_expand", activation="sigmoid", use_bias=True)
    return layers.Multiply(name=f"{name}se_excite")([x, weights])


def _convolution(x: KerasTensor, filters: int, name: str, size: int = 1, **options: Any) -> KerasTensor:
    options = {"padding": "same", "use_bias": False, "kernel_initializer": _KERNEL, **options}
    return layers.Conv2D(filters, size, name=name, **options)(x)


def _active(x: KerasTensor, normalization: str, activation: str) -> KerasTensor:
    return layers.Activation("swish", name=activation)(layers.BatchNormalization(name=normalization)(x))


def preprocess_input(x: ArrayLike, data_format: str | None = None) -> ArrayLike:
    """Return `x` itself: the network scales its inputs.

    Args:
        x: images with values from 0 to 255.
        data_format: unused.
    """
    return x
