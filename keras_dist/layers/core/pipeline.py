"""`Pipeline`: a sequence of layers as one layer."""

from __future__ import annotations

from collections.abc import Sequence

from keras_dist._support.arguments import argument_error
from keras_dist._support.types import PyTree
from keras_dist.layers.call_arguments import call_parameters
from keras_dist.layers.core.foreign_modules import as_layer
from keras_dist.layers.layer import Layer


class Pipeline(Layer):
    """A sequence of layers as one layer, for image preprocessing; `training` is True by default.

    Args:
        layers: the layers; each is called on the output of the previous one.
        name: by default "pipeline".

    Raises:
        ModelError: `layers` is not a list of layers.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.Pipeline([layers.Rescaling(2.0), layers.Flatten()])(jnp.ones((2, 3, 4))).shape
        (2, 12)
    """

    def __init__(self, layers: Sequence[Layer], name: str | None = None) -> None:
        super().__init__(name=name)
        if not isinstance(layers, list | tuple):
            raise argument_error("layers", layers, "a list of layers", layer=self.name, fix="Pipeline([layer])")
        self.layers = [as_layer(layer) for layer in layers]
        self.supports_masking = True

    def call(self, inputs: PyTree, training: bool = True, mask: PyTree = None) -> PyTree:
        for layer in self.layers:
            takes_mask = mask is not None and "mask" in call_parameters(type(layer))
            inputs = layer(inputs, training=training, **({"mask": mask} if takes_mask else {}))
        return inputs
