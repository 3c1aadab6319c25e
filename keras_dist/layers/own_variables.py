"""What Keras calls of a layer to put its own weights into a file, and to take them from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from keras_dist.errors import ModelError, shorten
from keras_dist.layers.runtime import LayerRuntime
from keras_dist.layers.weights import own_variables


class OwnVariables:
    """The methods that files of Keras call. Subclasses are layers."""

    __slots__ = ()

    name: str
    _weights_so_far: Callable[..., list[Any]]
    _runtime: LayerRuntime

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """Put the weights of the layer itself, not those of sublayers, into `store` under their numbers.

        Files of Keras (`.keras`, `.weights.h5`) call it; a subclass may put other arrays there. Our own formats keep
        all weights under their paths, and call nothing.

        Args:
            store: arrays by names.
        """
        for number, weight in enumerate(self._own_weights()):
            store[str(number)] = weight.numpy()

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Set the weights of the layer itself to what `save_own_variables` has put into `store`.

        Args:
            store: arrays by names; each is read, whole, when it is asked for.

        Raises:
            ModelError: there are more or fewer.
        """
        weights = self._own_weights()
        if len(store) != len(weights):
            summary = f"load_own_variables of layer {self.name!r}: the file has other weights"
            expected = f"{len(weights)} arrays: {shorten([weight.path for weight in weights])}"
            fix = "load it into a layer made like the one it was saved from"
            raise ModelError(summary, given=f"{len(store)} arrays: {shorten([*store])}", expected=expected, fix=fix)
        for number, weight in enumerate(weights):
            weight.assign(store[str(number)])

    def _own_weights(self) -> list[Any]:
        """Return the weights of the layer itself."""
        own = {id(variable) for _, variable in own_variables(self)}
        return self._weights_so_far(lambda variable: id(variable) in own)

    @classmethod
    def _keeps_variables_itself(cls) -> bool:
        """Return whether a class says itself what of it is in a file of Keras."""
        return any(getattr(cls, name) is not getattr(OwnVariables, name) for name in _METHODS)


_METHODS = ("save_own_variables", "load_own_variables")
