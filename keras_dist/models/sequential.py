"""`Sequential`: layers one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flax import nnx

from keras_dist.errors import ModelError, shorten
from keras_dist.layers import Input, InputLayer, Layer
from keras_dist.layers.foreign import as_layer
from keras_dist.layers.symbolic import KerasTensor
from keras_dist.models.model import Model
from keras_dist.models.naming import name_members


class Sequential(Model):
    """Layers one after the other, each with one input and one output.

    Args:
        layers: layers, or any `flax.nnx` modules. The first may be an `Input`, else the weights are born when the model
            first sees data.
        trainable: whether its weights are trained.
        name: its name; paths leave it out, except as an alias.

    Raises:
        ModelError: one is not a layer, or two have the same name.
        LayoutError: the layout rules cannot be applied.

    Example:
        >>> import keras_dist as kd
        >>> from keras_dist import layers
        >>> model = kd.Sequential([layers.Dense(16, activation="relu", name="d1"), layers.Dense(3, name="d2")])
        >>> model.build((None, 8))
        >>> [weight.path for weight in model.weights]
        ['d1/kernel', 'd1/bias', 'd2/kernel', 'd2/bias']

    Source: `keras.Sequential`.
    """

    def __init__(
        self, layers: Sequence[Any] | None = None, trainable: bool = True, name: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(name=name or "sequential", trainable=trainable, **kwargs)
        self._members = nnx.Dict()
        for layer in layers or ():
            self._append(layer)
        if self._program is not None:
            self._born()

    @property
    def layers(self) -> list[Layer]:
        """Its layers in order, without an `InputLayer`."""
        return self._layers_in(self._members)

    def add(self, layer: Any) -> None:
        """Put a layer at the end. The layers before it keep their values.

        Raises:
            ModelError: it is not a layer, or its name is taken.
        """
        self._append(layer)

    def pop(self) -> Layer:
        """Take the last layer out. The layers before it keep their values.

        Raises:
            ModelError: there is none.
        """
        layers = self.layers
        if not layers:
            raise ModelError(
                "pop: the Sequential has no layers",
                given="an empty Sequential",
                expected="at least one layer",
                fix="add one first",
            )
        before = None if self._symbols_or_none() is None else self.output.node.inputs
        self._arrange(layers[:-1], before)
        return layers[-1]

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """What the last layer gives."""
        if self._program is not None:
            return super().call(inputs, training, mask)
        outputs = inputs
        for layer in self.layers:
            outputs = layer(outputs)
        return outputs

    def _append(self, layer: Any) -> None:
        if isinstance(layer, KerasTensor | InputLayer):
            self._begin(layer)
            return
        layer = as_layer(layer)
        if not self.layers and layer._own_input_shape is not None and self._symbols_or_none() is None:
            self._begin(Input(batch_shape=layer._own_input_shape))
        symbols = self._symbols_or_none()
        self._arrange([*self.layers, layer], None if symbols is None else layer(symbols[1]))

    def _begin(self, start: Any) -> None:
        tensor = start.output if isinstance(start, InputLayer) else start
        if self.layers or self._symbols_or_none() is not None or tensor.node is None or tensor.node.args:
            raise ModelError(
                "Sequential: only the first layer may be an Input",
                given=shorten(start),
                expected="Input(shape) at the beginning",
                fix="for several inputs use Model(inputs, outputs)",
            )
        object.__setattr__(self, "_symbols", (tensor, tensor))

    def _arrange(self, layers: list[Layer], output: Any) -> None:
        """Consist of these layers from now on; `output` is their symbolic output, if the input is known."""
        object.__setattr__(self, "_session", None)
        object.__setattr__(self, "_home", None)
        if output is None:
            self._members = nnx.Dict(name_members(layers))
        else:
            self._connect(self.input, output)

    def _symbols_or_none(self) -> Any:
        return getattr(self, "_symbols", None)
