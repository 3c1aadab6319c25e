"""Arguments, inputs, classifiers and weights of all networks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

from keras_dist import layers
from keras_dist._support.arguments import check_option, is_int
from keras_dist._support.types import ArrayLike, Shape
from keras_dist.applications import imagenet_utils
from keras_dist.config.settings import image_data_format
from keras_dist.errors import ModelError, shorten
from keras_dist.models import Model
from keras_dist.symbolic.tensors import KerasTensor, get_source_inputs


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The arguments of all networks, as `ResNet50` describes them."""

    include_top: bool
    weights: str | os.PathLike[str] | None
    input_tensor: Any
    input_shape: Shape | None
    pooling: str | None
    classes: int
    classifier_activation: Any
    name: str | None

    def __post_init__(self) -> None:
        if self.weights == "imagenet":
            given = 'weights="imagenet", which is the default, as in Keras'
            fix = 'weights="mobilenet_v2.weights.h5", a file that Keras has saved; or weights=None'
            raise ModelError('weights="imagenet": nothing is downloaded', given=given, fix=fix)
        if self.weights is not None and self.classifier_activation not in (None, "softmax") and self.include_top:
            summary = 'weights were trained with the activation "softmax" or None of the classifier'
            given = f"classifier_activation={shorten(self.classifier_activation)}, weights={shorten(self.weights)}"
            raise ModelError(summary, given=given, fix="classifier_activation=None for the logits")
        if image_data_format() != "channels_last":
            given = 'keras_dist.config.image_data_format() is "channels_first"'
            fix = 'keras_dist.config.set_image_data_format("channels_last")'
            raise ModelError("the networks take images with channels last", given=given, fix=fix)
        check_option("pooling", self.pooling, (None, "avg", "max"), "")

    def start(self, size: int = 224, smallest: int = 32) -> KerasTensor:
        """Return the symbolic input, given the default and the smallest height and width."""
        if self.input_tensor is not None:
            return self.input_tensor
        default = (size, size, 3) if self.include_top else (None, None, 3)
        shape = default if self.input_shape is None else self.input_shape
        is_shape = isinstance(shape, list | tuple) and len(shape) == 3
        sizes = [size for size in shape[:2] if size is not None] if is_shape else []
        if not is_shape or not all(is_int(size, smallest) for size in sizes) or (self.include_top and len(sizes) < 2):
            raise ModelError(
                f"`input_shape` must be (height, width, channels), at least {smallest}, known with include_top=True",
                given=f"input_shape={shape}",
                fix=f"for example input_shape=({size}, {size}, 3)",
            )
        return layers.Input(tuple(shape))

    def finish(
        self,
        x: KerasTensor,
        name: str,
        pools: tuple[str | None, str | None] = (None, None),
        rate: float = 0.0,
        initializer: Any = "glorot_uniform",
    ) -> Model:
        """Return the network with features `x`: with pooling alone, or a classifier after a dropout."""
        if self.include_top:
            x = layers.GlobalAveragePooling2D(name=pools[0])(x)
            if rate:
                x = layers.Dropout(rate, name="top_dropout")(x)
            return self.model(self.classify(x, initializer), name)
        return self.model(self.pool(x, pools), name)

    def classify(self, x: KerasTensor, initializer: Any = "glorot_uniform") -> KerasTensor:
        """Return the scores of the classes."""
        activation = self.classifier_activation
        return layers.Dense(self.classes, activation, kernel_initializer=initializer, name="predictions")(x)

    def pool(self, x: KerasTensor, names: tuple[str | None, str | None] = (None, None)) -> KerasTensor:
        """Return the features, pooled if `pooling` is given."""
        if self.pooling == "avg":
            return layers.GlobalAveragePooling2D(name=names[0])(x)
        return layers.GlobalMaxPooling2D(name=names[1])(x) if self.pooling == "max" else x

    def model(self, outputs: KerasTensor, name: str) -> Model:
        """Return the network with these outputs, and with the weights of a file, if given."""
        inputs = get_source_inputs(outputs)
        model = Model(inputs[0] if len(inputs) == 1 else inputs, outputs, name=self.name or name)
        if self.weights is not None:
            model.load_weights(self.weights)
        return model


def network(build: Callable[[Arguments], Model]):  # the inferred type shows the parameters
    """Return `build` as a function with the parameters, and the defaults, of networks in Keras."""

    def create(
        include_top: bool = True,
        weights: str | os.PathLike[str] | None = "imagenet",
        input_tensor: Any = None,
        input_shape: Shape | None = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: Any = "softmax",
        name: str = build.__name__.lower(),
    ) -> Model:
        top = (pooling, classes, classifier_activation, name)
        return build(Arguments(include_top, weights, input_tensor, input_shape, *top))

    create.__name__, create.__qualname__, create.__module__ = build.__name__, build.__qualname__, build.__module__
    create.__doc__ = build.__doc__
    return create


def channels_of(x: KerasTensor) -> int:
    """Return the number of channels, which must be known."""
    channels = x.shape[-1]
    if channels is None:
        fix = "for example input_shape=(224, 224, 3)"
        raise ModelError("the images have an unknown number of channels", given=f"images of shape {x.shape}", fix=fix)
    return channels


def padding_before(x: KerasTensor, kernel_size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the padding before a convolution of stride 2 that is equal to `same` padding of TensorFlow."""
    half = kernel_size // 2
    odd = [1 if size is None else 1 - size % 2 for size in x.shape[1:3]]
    return (half - odd[0], half), (half - odd[1], half)


def divisible(filters: float, divisor: int = 8) -> int:
    """Round a number of filters to a multiple of `divisor` that is at least 90 % of it."""
    rounded = max(divisor, int(filters + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * filters else rounded


def preprocess_caffe(x: ArrayLike, data_format: str | None = None) -> ArrayLike:
    """Convert RGB images (..., height, width, 3) with values from 0 to 255 to BGR minus the mean of ImageNet.

    Args:
        x: the images.
        data_format: `"channels_last"`, the default, or `"channels_first"`.

    Source: `preprocess_input` of `keras.applications.resnet`, `vgg16` and `vgg19`.
    """
    return imagenet_utils.preprocess_input(x, data_format, mode="caffe")


def preprocess_tf(x: ArrayLike, data_format: str | None = None) -> ArrayLike:
    """Scale images (..., height, width, 3) with values from 0 to 255 to values from -1 to 1.

    Args:
        x: the images.
        data_format: `"channels_last"`, the default, or `"channels_first"`.

    Source: `preprocess_input` of `keras.applications.mobilenet_v2` and `xception`.
    """
    return imagenet_utils.preprocess_input(x, data_format, mode="tf")
