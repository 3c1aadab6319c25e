"""`VGG16` and `VGG19`: plain convolutions."""

from __future__ import annotations

from keras_dist import layers
from keras_dist.applications.imagenet_utils import decode_predictions
from keras_dist.applications.network import Arguments, network
from keras_dist.applications.network import preprocess_caffe as preprocess_input
from keras_dist.models import Model

__all__ = ["VGG16", "VGG19", "decode_predictions", "preprocess_input"]

_FILTERS = (64, 128, 256, 512, 512)  # filters of the convolutions of each block


@network
def VGG16(arguments: Arguments) -> Model:
    """Return VGG16: thirteen convolutions in five blocks, and three dense layers.

    Inputs are BGR images minus the mean of ImageNet; see `vgg16.preprocess_input`.

    Arguments and errors as in `ResNet50`.

    Source: `keras.applications.VGG16`; https://arxiv.org/abs/1409.1556.
    """
    return _network(arguments, (2, 2, 3, 3, 3), "vgg16")


@network
def VGG19(arguments: Arguments) -> Model:
    """Return VGG19: sixteen convolutions in five blocks, and three dense layers.

    Inputs are BGR images minus the mean of ImageNet; see `vgg19.preprocess_input`.

    Arguments and errors as in `ResNet50`.

    Source: `keras.applications.VGG19`; https://arxiv.org/abs/1409.1556.
    """
    return _network(arguments, (2, 2, 4, 4, 4), "vgg19")


def _network(arguments: Arguments, convolutions: tuple[int, ...], name: str) -> Model:
    x = arguments.start()
    for block, (filters, count) in enumerate(zip(_FILTERS, convolutions, strict=True), 1):
        for number in range(1, count + 1):
            name_of_layer = f"block{block}_conv{number}"
            x = layers.Conv2D(filters, 3, padding="same", activation="relu", name=name_of_layer)(x)
        x = layers.MaxPooling2D(2, strides=2, name=f"block{block}_pool")(x)
    if not arguments.include_top:
        return arguments.model(arguments.pool(x), name)
    x = layers.Flatten(name="flatten")(x)
    for name_of_layer in ("fc1", "fc2"):
        x = layers.Dense(4096, activation="relu", name=name_of_layer)(x)
    return arguments.model(arguments.classify(x), name)
