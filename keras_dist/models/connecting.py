"""`Connecting`: a model made of calls between symbolic tensors: its layers, its inputs and its outputs."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from keras_dist.errors import ModelError, did_you_mean
from keras_dist.layers import InputLayer, Layer
from keras_dist.layers.symbolic import KerasTensor
from keras_dist.models.naming import layers_in, name_members
from keras_dist.models.program import Program, in_keras_order, members_of, nodes_between, trace_program


class Connecting(Layer):
    """The layers of a model, and what calls lead from its inputs to its outputs. Subclasses run the calls."""

    _program: Program | None

    @property
    def layers(self) -> list[Layer]:
        """Its layers: those of its graph, in order; of a subclass those that its attributes hold."""
        if self._program is not None:
            return [*self._input_layers(), *layers_in(self._members)]
        return layers_in(self)

    def get_layer(self, name: str | None = None, index: int | None = None) -> Layer:
        """The layer with this name, or at this place in `layers`.

        Raises:
            ModelError: there is none, or not exactly one argument is given.
        """
        layers = self.layers
        if (name is None) == (index is None):
            raise ModelError(
                "get_layer needs a name or an index",
                given=f"name={name!r}, index={index!r}",
                expected="one of them",
                fix='for example get_layer("d1")',
            )
        if index is not None and -len(layers) <= index < len(layers):
            return layers[index]
        names = [layer.name for layer in layers]
        members = vars(self).get("_members", {})
        if name is not None and name in members:
            return members[name]
        if name in names:
            return layers[names.index(name)]
        raise ModelError(
            f"there is no layer {name if index is None else index!r}{did_you_mean(name or '', names)}",
            given=f"get_layer({name!r})" if index is None else f"get_layer(index={index})",
            expected=f"one of {names}" if index is None else f"an index below {len(layers)}",
            fix="model.layers lists them",
        )

    @property
    def inputs(self) -> list[KerasTensor]:
        """The symbolic inputs of a functional model, as a list."""
        return jax.tree.leaves(self.input)

    @property
    def outputs(self) -> list[KerasTensor]:
        """The symbolic outputs of a functional model, as a list."""
        return jax.tree.leaves(self.output)

    @property
    def input(self) -> Any:
        """The symbolic inputs of a functional model, as they were given."""
        return self._symbolic()[0]

    @property
    def output(self) -> Any:
        """The symbolic outputs of a functional model, as they were given."""
        return self._symbolic()[1]

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs of a functional model."""
        return [tensor.name for tensor in self.inputs]

    @property
    def output_names(self) -> list[str] | None:
        """The layers that the outputs of a functional model are of, numbered where one has several; None for others.

        Losses and metrics of outputs that are a dict go by its keys.
        """
        return list(self._program.output_names) if self._program is not None else None

    @property
    def input_shape(self) -> Any:
        """The shape of the input of a functional model; a list of them where there are several."""
        return _one_or_all([tensor.shape for tensor in self.inputs])

    @property
    def output_shape(self) -> Any:
        """The shape of the output of a functional model; a list of them where there are several."""
        return _one_or_all([tensor.shape for tensor in self.outputs])

    def _connect(self, inputs: Any, outputs: Any) -> None:
        """Note the calls between symbolic inputs and outputs."""
        nodes = nodes_between(inputs, outputs)
        object.__setattr__(self, "_symbols", (inputs, outputs))
        members = name_members([*self._input_layers(), *members_of(nodes)])
        for layer in self._input_layers():
            layer.output.name = layer.name
        names = {id(layer): name for name, layer in members.items()}
        listed = in_keras_order(members_of(nodes), nodes, outputs)
        self._members = nnx.Dict({names[id(layer)]: layer for layer in listed})
        self._program = trace_program(inputs, outputs, names)

    def _symbolic(self) -> tuple[Any, Any]:
        symbols, nodes = getattr(self, "_symbols", None), getattr(self, "_nodes", None)
        if symbols is None and nodes:
            return nodes[0].inputs, nodes[0].outputs  # as a layer of another model
        if symbols is None:
            raise ModelError(
                f"model {self.name!r} has no symbolic inputs and outputs",
                given=f"a {type(self).__name__} that was not made of symbolic tensors",
                expected="Model(inputs, outputs), or a Sequential that starts with Input",
                fix="call it on Input(shape) and make a Model of the two",
            )
        return symbols

    def _input_layers(self) -> list[Layer]:
        nodes = [tensor.node for tensor in self.inputs]
        return [node.operation for node in nodes if node is not None and isinstance(node.operation, InputLayer)]


def _one_or_all(shapes: list[Any]) -> Any:
    return shapes[0] if len(shapes) == 1 else shapes
