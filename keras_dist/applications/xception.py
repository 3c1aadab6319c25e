"""`Xception`: residual blocks of separable convolutions."""

from __future__ import annotations

from keras_dist import layers
from keras_dist.applications.imagenet_utils import decode_predictions
from keras_dist.applications.network import Arguments, network
from keras_dist.applications.network import preprocess_tf as preprocess_input
from keras_dist.models import Model
from keras_dist.symbolic.tensors import KerasTensor

__all__ = ["Xception", "decode_predictions", "preprocess_input"]

_MIDDLE = range(5, 13)  # blocks that keep the shape of their input


@network
def Xception(arguments: Arguments) -> Model:  # it has the fields as parameters
    """Return Xception: twelve residual blocks of separable convolutions.

    Inputs are images with values from -1 to 1; see `xception.preprocess_input`.

    Other arguments and errors as in `ResNet50`.

    Args:
        input_shape: (height, width, channels), height and width at least 71; by default (299, 299, 3), without a
            classifier (None, None, 3).

    Source: `keras.applications.Xception`; https://arxiv.org/abs/1610.02357.
    """
    x = arguments.start(299, 71)
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
    return arguments.finish(x, "xception", ("avg_pool" if arguments.include_top else None, None))


def _narrowing(x: KerasTensor, filters: tuple[int, int], block: int) -> KerasTensor:
    shortcut = layers.Conv2D(filters[1], 1, strides=2, padding="same", use_bias=False)(x)
    shortcut = layers.BatchNormalization()(shortcut)
    for number, features in enumerate(filters, 1):
        name = f"block{block}_sepconv{number}"
        if (block, number) != (2, 1):  # whose input is activated already
            x = _active(x, name)
        x = _separable(x, features, name)
    x = layers.MaxPooling2D(3, strides=2, padding="same", name=f"block{block}_pool")(x)
    return layers.Add()([x, shortcut])


def _separable(x: KerasTensor, filters: int, name: str) -> KerasTensor:
    x = layers.SeparableConv2D(filters, 3, padding="same", use_bias=False, name=name)(x)
    return layers.BatchNormalization(name=f"{name}_bn")(x)


def _active(x: KerasTensor, name: str) -> KerasTensor:
    return layers.Activation("relu", name=f"{name}_act")(x)
