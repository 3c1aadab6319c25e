"""`ResNet50`: residual blocks of three convolutions."""

from __future__ import annotations

from typing import Any

from keras_dist import layers
from keras_dist.applications.imagenet_utils import decode_predictions
from keras_dist.applications.network import Arguments, network
from keras_dist.applications.network import preprocess_caffe as preprocess_input
from keras_dist.models import Model
from keras_dist.symbolic.tensors import KerasTensor

__all__ = ["ResNet50", "decode_predictions", "preprocess_input"]

_STACKS = ((64, 3), (128, 4), (256, 6), (512, 3))  # filters and number of blocks of each stack


@network
def ResNet50(arguments: Arguments) -> Model:  # it has the fields as parameters
    """Return ResNet50: sixteen residual blocks of three convolutions.

    Inputs are BGR images minus the mean of ImageNet; see `resnet.preprocess_input`.

    Args:
        include_top: whether the network ends in a classifier.
        weights: None for random weights, or the path of a local file for `Model.load_weights`. The default raises:
            nothing is downloaded.
        input_tensor: a symbolic tensor as the input; by default a new one.
        input_shape: (height, width, channels), height and width at least 32; by default (224, 224, 3), without a
            classifier (None, None, 3).
        pooling: pooling of the features without a classifier: None, `"avg"` or `"max"`.
        classes: number of classes.
        classifier_activation: activation of the classifier; None for logits.
        name: the name of the model.

    Raises:
        ModelError: an argument is invalid, or the weights do not fit.

    Source: `keras.applications.ResNet50`; https://arxiv.org/abs/1512.03385.
    """
    x = layers.ZeroPadding2D(3, name="conv1_pad")(arguments.start())
    x = _convolution(x, 64, 7, "conv1", strides=2)
    x = layers.Activation("relu", name="conv1_relu")(x)
    x = layers.ZeroPadding2D(1, name="pool1_pad")(x)
    x = layers.MaxPooling2D(3, strides=2, name="pool1_pool")(x)
    for stack, (filters, blocks) in enumerate(_STACKS, 2):
        for number in range(1, blocks + 1):
            strides = 2 if number == 1 and stack > 2 else 1
            x = _block(x, filters, strides, f"conv{stack}_block{number}", changes=number == 1)
    return arguments.finish(x, "resnet50", ("avg_pool", "max_pool"))


def _block(x: KerasTensor, filters: int, strides: int, name: str, *, changes: bool) -> KerasTensor:
    shortcut = _convolution(x, 4 * filters, 1, f"{name}_0", strides=strides) if changes else x
    x = _convolution(x, filters, 1, f"{name}_1", strides=strides)
    x = layers.Activation("relu", name=f"{name}_1_relu")(x)
    x = _convolution(x, filters, 3, f"{name}_2", padding="same")
    x = layers.Activation("relu", name=f"{name}_2_relu")(x)
    x = _convolution(x, 4 * filters, 1, f"{name}_3")
    x = layers.Add(name=f"{name}_add")([shortcut, x])
    return layers.Activation("relu", name=f"{name}_out")(x)


def _convolution(x: KerasTensor, filters: int, size: int, name: str, **options: Any) -> KerasTensor:
    x = layers.Conv2D(filters, size, name=f"{name}_conv", **options)(x)
    return layers.BatchNormalization(epsilon=1.001e-5, name=f"{name}_bn")(x)
