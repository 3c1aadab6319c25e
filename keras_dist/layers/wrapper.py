"""`Wrapper`: the base of layers around one other."""

from __future__ import annotations

from typing import Any

from keras_dist.errors import ModelError, shorten
from keras_dist.layers.layer import Layer
from keras_dist.layers.other_libraries import check_is_ours


class Wrapper(Layer):
    """The base of layers that do something with one other layer. Subclasses define `call`.

    Its weights are found under the wrapped layer's name: `wrapper/dense/kernel`.

    Args:
        layer: the other layer.
        **kwargs: as of `Layer`.

    Attributes:
        layer: the other layer.

    Raises:
        ModelError: `layer` is none.

    Source: `keras.layers.Wrapper`.
    """

    def __init__(self, layer: Layer, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(layer, Layer):
            check_is_ours(f"`layer` of layer {self.name!r}", layer)
            raise ModelError(
                f"`layer` of layer {self.name!r} is not a layer",
                given=f"layer={shorten(layer)} of type {type(layer).__name__}",
                expected="a layer",
                fix="make an object of a class; wrap a function as layers.Lambda, a module as layers.NNXLayer",
            )
        self._members = {layer.name: layer}

    @property
    def layer(self) -> Any:
        """The other layer."""
        (layer,) = self._members.values()
        return layer
