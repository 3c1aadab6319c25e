"""`GraphMethods`: the layers and symbolic tensors of a model, and its layers on the host."""

from __future__ import annotations

from typing import Any

import jax

from keras_dist._support.types import PyTree, Shape
from keras_dist.errors import ModelError, NotAvailableError, did_you_mean
from keras_dist.layers import Layer
from keras_dist.layers.names import layers_in
from keras_dist.models.adapter_methods import AdapterMethods
from keras_dist.models.functional import replaced
from keras_dist.symbolic.tensors import KerasTensor
from keras_dist.training.naming import named_layers


class GraphMethods(AdapterMethods):
    """The methods of `Model` for its layers and symbolic tensors, and for layers on the host."""

    @property
    def layers(self) -> list[Layer]:
        """The layers: in the graph of a functional model, in order, or in the attributes of a subclass."""
        if self._graph is not None:
            return [*self._graph.starts, *layers_in(self._members)]
        return named_layers(self)

    @property
    def operations(self) -> list[Any]:
        """Inputs, layers and operations in the graph of a functional model, in order; else the layers."""
        if self._graph is None:
            return list(self.layers)
        return [step.operation for step in self._graph.steps]

    def get_layer(self, name: str | None = None, index: int | None = None) -> Layer:
        """Return the layer with this name, or at this index of `layers`.

        Raises:
            ModelError: the layer does not exist, or not exactly one argument is given.
        """
        layers = self.layers
        if (name is None) == (index is None):
            summary = "get_layer needs a name or an index"
            raise ModelError(summary, given=f"name={name!r}, index={index!r}", fix='for example get_layer("d1")')
        if index is not None and -len(layers) <= index < len(layers):
            return layers[index]
        named = {layer.name: layer for layer in reversed(layers)} | dict(vars(self).get("_members", {}))
        if name in named:
            return named[name]
        names = [layer.name for layer in layers]
        summary = f"unknown layer {name if index is None else index!r}{did_you_mean(name or '', names)}"
        given = f"get_layer({name!r})" if index is None else f"get_layer(index={index})"
        raise ModelError(summary, given=given, fix=f"correct it: the layers are {names}")

    @property
    def inputs(self) -> list[KerasTensor]:
        """The symbolic inputs of a functional model, as a list."""
        return jax.tree.leaves(self.input)

    @property
    def outputs(self) -> list[KerasTensor]:
        """The symbolic outputs of a functional model, as a list."""
        return jax.tree.leaves(self.output)

    @property
    def input(self) -> PyTree:
        """The symbolic inputs of a functional model, as they were given."""
        return self._symbols_or_raise()[0]

    @property
    def output(self) -> PyTree:
        """The symbolic outputs of a functional model, as they were given."""
        return self._symbols_or_raise()[1]

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs of a functional model."""
        return [tensor.name for tensor in self.inputs]

    @property
    def output_names(self) -> list[str] | None:
        """The names of the layers that compute the outputs of a functional model; None for other models.

        If the outputs are a dict, its keys name losses and metrics instead. A model of `from_keras` has Keras's names.
        """
        if self._runtime.keras_model is not None:
            return self._runtime.keras_model.output_names
        return list(self._graph.output_names) if self._graph is not None else None

    @property
    def input_shape(self) -> PyTree:
        """The shape of the input of a functional model; a list of shapes for several inputs."""
        return _one_or_all([tensor.shape for tensor in self.inputs])

    @property
    def output_shape(self) -> PyTree:
        """The shape of the output of a functional model; a list of shapes for several outputs."""
        return _one_or_all([tensor.shape for tensor in self.outputs])

    @property
    def is_host_side(self) -> bool:  # type: ignore[override]
        """Whether all layers run on the host."""
        return self._graph is not None and bool(self._graph.host_nodes) and not self._graph.on_devices.nodes

    @property
    def _symbols(self) -> tuple[PyTree, PyTree] | None:
        return None if self._graph is None else (self._graph.inputs, self._graph.outputs)

    def transform(self, inputs: PyTree, **options: Any) -> PyTree:
        """Return the outputs of a model whose layers all run on the host, as numpy arrays."""
        graph: Any = self._graph
        return replaced(graph.outputs, graph.run_on_host(inputs))

    def output_like(self, inputs: PyTree, **options: Any) -> PyTree:
        """Return symbolic tensors like the outputs of a model whose layers all run on the host."""
        return jax.tree.map(lambda tensor: KerasTensor(tensor.shape, tensor.dtype), self._symbols_or_raise()[1])

    def _symbols_or_raise(self) -> tuple[PyTree, PyTree]:
        symbols = self._symbols
        if symbols is not None:
            return symbols
        if self._runtime.nodes:  # of the first call as a layer of another model
            return self._runtime.nodes[0].inputs, self._runtime.nodes[0].outputs
        summary = f"model {self.name!r} has no symbolic inputs and outputs"
        given = f"a {type(self).__name__} that was not made from symbolic tensors"
        raise NotAvailableError(summary, given=given, fix="call it on Input(shape) and make a Model of the two")

    def _check_one_side(self) -> None:
        if self._graph is not None and self._graph.host_nodes and not self.is_host_side:
            names = ", ".join(repr(node.operation.name) for node in self._graph.host_nodes)
            summary = f"model {self.name!r} cannot be a layer: it begins with layers that run on the host"
            fix = "make a model of each part, and call the second on what the first gives"
            raise ModelError(summary, given=f"{names}, then layers that run on devices", fix=fix)


def _one_or_all(shapes: list[Shape]) -> PyTree:
    return shapes[0] if len(shapes) == 1 else shapes
