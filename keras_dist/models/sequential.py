"""`Sequential`: a stack of layers."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from flax import nnx

from keras_dist._support.arguments import argument_error
from keras_dist._support.types import PyTree
from keras_dist.errors import ConfigError, ModelError, shorten
from keras_dist.layers import Input, InputLayer, Layer
from keras_dist.layers.base.host_layer import as_rows
from keras_dist.layers.base.names import name_members
from keras_dist.layers.core.foreign_modules import as_layer
from keras_dist.models.abstract_models import await_layout
from keras_dist.models.config import arguments_but, read_layer, write_layer
from keras_dist.models.functional import Graph, input_layers
from keras_dist.models.model import Model
from keras_dist.serialization import custom_object_scope, serialize_keras_object
from keras_dist.serialization.shared_objects import one_config_read, one_config_written
from keras_dist.symbolic.tensors import KerasTensor, Node, runs_on_host


@dataclasses.dataclass(frozen=True)
class _Chain:
    """The names of layers in the order of their calls; NNX treats it as one static value."""

    names: tuple[str, ...] = ()


class Sequential(Model):
    """A stack of layers, each with one input and one output.

    Args:
        layers: layers, or any `flax.nnx` modules. The first may be an `Input`; otherwise the weights are created when
            the model is first called.
        trainable: whether the weights are trained.
        name: name of the model; paths contain it only as an alias.

    Raises:
        ModelError: an entry is not a layer, or two layers have the same name.
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
        self, layers: Sequence[nnx.Module] | None = None, trainable: bool = True, name: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(name=name, trainable=trainable, **kwargs)
        self._members = nnx.Dict()
        self._chain = _Chain()
        if layers is not None and not isinstance(layers, Iterable):
            name = getattr(layers, "name", "layer")
            raise argument_error("layers", layers, f"a list of layers: Sequential([{name}])")
        self._extend(layers or ())

    @property
    def layers(self) -> list[Layer]:
        """The layers in the order of their calls, without an `InputLayer`; one may occur twice."""
        return [vars(self._members)[name] for name in self._chain.names]

    @property
    def output_names(self) -> list[str] | None:
        """The name of the last layer, in a list; None without layers.

        If the outputs are a dict, its keys name losses and metrics instead.
        """
        return super().output_names or [layer.name for layer in self.layers[-1:]] or None

    def add(self, layer: nnx.Module) -> None:
        """Add a layer at the end. The layers before it keep their values.

        Raises:
            ModelError: `layer` is not a layer, its name is taken, or fit is running.
        """
        self._check_idle("add")
        self._extend([layer])

    def pop(self) -> Layer:
        """Remove the last layer and return it. The layers before it keep their values.

        Raises:
            ModelError: the model has no layers, or fit is running.
        """
        self._check_idle("pop")
        layers = self.layers
        if not layers:
            raise ModelError("pop: the Sequential has no layers", given="an empty Sequential", fix="add one first")
        nodes = () if self._graph is None else self._graph.nodes
        output = nodes[-1].inputs if nodes else None
        self._arrange(layers[:-1], output, nodes[:-1])
        return layers[-1]

    def build(self, input_shape: PyTree = None) -> None:
        """Create the weights for inputs of this shape, the batch dim included; see `Model.build`.

        Raises:
            ModelError: the model has an `Input` of another shape, or a layer does not accept such inputs.
        """
        start = self._record.start
        if start is not None and isinstance(input_shape, list | tuple):
            pairs = zip(start.shape, input_shape, strict=False)
            is_alike = len(start.shape) == len(input_shape) and all(None in pair or len({*pair}) == 1 for pair in pairs)
            if not is_alike:
                summary = f"Sequential {self.name!r} has already been configured for inputs of shape {start.shape}"
                raise ModelError(summary, given=f"build({input_shape})", fix="leave out the shape, or the Input")
        super().build(input_shape)

    build.creates_weights = True  # type: ignore[attr-defined]

    def call(self, inputs: PyTree, training: bool | None = None, mask: PyTree = None) -> PyTree:
        """Return the output of the last layer."""
        if self._graph is not None:
            return super().call(inputs, training, mask)
        if not self.layers:
            raise ModelError(f"Sequential {self.name!r} has no layers", fix="model.add(layer) first")
        outputs = inputs
        for layer in self.layers:
            outputs = layer(outputs)
        return outputs

    def get_config(self) -> dict[str, Any]:
        """Return the configs of the layers; for a subclass without an argument `layers` its arguments.

        Raises:
            ConfigError: a layer or an argument cannot be serialized.
        """
        if not takes_layers(type(self)):
            return super().get_config()
        config = serialize_keras_object(arguments_but(self, "layers"))
        starts = input_layers(self._record.start)
        with one_config_written():
            config["layers"] = [write_layer(layer, layer.name) for layer in starts]
            config["layers"] += [
                write_layer(layer, name) for name, layer in zip(self._chain.names, self.layers, strict=True)
            ]
        built = super().get_build_config()
        if built is not None:
            config |= {f"build_{name}": value for name, value in built.items()}
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Self:
        """Create a Sequential from a config, with new weights on the current distribution.

        Args:
            config: the result of `get_config`.
            custom_objects: classes and functions by name, in addition to registered ones.

        Raises:
            ConfigError: the config is damaged, or names a class or function that is not registered.
        """
        if not takes_layers(cls):
            return super().from_config(config, custom_objects)
        if "layers" not in config:
            summary = "the config of a Sequential lacks its layers"
            raise ConfigError(summary, given=shorten(config), fix="write it again with model.get_config()")
        built = {name: config[f"build_{name}"] for name in _BUILT if config.get(f"build_{name}") is not None}
        others = {name: value for name, value in config.items() if name.removeprefix("build_") not in _BUILT}
        with custom_object_scope(custom_objects), one_config_read():
            model = super().from_config({**others, "layers": [read_layer(layer) for layer in config["layers"]]})
        if built and not model.built:
            model.build_from_config(built)
        return model

    def get_build_config(self) -> None:
        """Return None, since the config contains the shape of the input."""

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        """Call the model; see `Model`."""
        outputs = super().__call__(*args, **kwargs)
        if len(args) == 1 and not kwargs and any(isinstance(layer, Sequential) for layer in self.layers):
            self._see(args[0])  # their inputs are not known otherwise
        return outputs

    def _see(self, like: Any) -> None:
        """Note symbolic input and output for a tensor like this, unless there is an Input."""
        record, is_chain = self._record, type(self).call is Sequential.call
        if not (is_chain and isinstance(like, KerasTensor)) or record.start is not None or record.seen is not None:
            return
        tensors = [Input(batch_shape=like.shape, dtype=like.dtype)]
        for layer in self.layers:
            try:
                tensors.append(layer(tensors[-1]))
            except NotImplementedError:  # of its `compute_output_spec`: the model runs, but its shapes are unknown
                return
        record.seen = (tensors[0], tensors[-1])

    @property
    def _has_host_part(self) -> bool:
        return super()._has_host_part or (self._graph is None and any(map(runs_on_host, self.layers[:1])))

    def _prepared(self, x: PyTree) -> PyTree:
        if self._graph is None and self._has_host_part:  # only now the shape of the text is known
            rows, layers = as_rows(x, self.name), self.layers
            output = self._begin(Input(batch_shape=(None, *rows.shape[1:]), dtype=rows.dtype), [])
            nodes = []
            for layer in layers:
                output = layer(output)
                nodes.append(layer._record.nodes[-1])
            self._arrange(layers, output, nodes)
        return super()._prepared(x)

    @property
    def _symbols(self) -> tuple[PyTree, PyTree] | None:
        record = self._record
        if record.built is not None:
            with record.built.distribution.scope():  # layers may need its mesh
                self._see(record.built_for)
        elif record.membership is not None:
            record.membership.note_symbols()
        # without an Input the tensors of the first call; other calls may have other shapes
        return record.seen or super()._symbols or (None if record.start is None else (record.start, record.start))

    def _extend(self, added: Iterable[nnx.Module]) -> None:
        """Append layers."""
        layers, graph = self.layers, self._graph
        output, nodes = (self._record.start, []) if graph is None else (graph.outputs, [*graph.nodes])
        for layer in added:
            if isinstance(layer, KerasTensor | InputLayer):
                output = self._begin(layer, layers)
                continue
            layer = as_layer(layer)
            if not layers and output is None and layer._own_input_shape is not None:
                output = self._begin(Input(batch_shape=layer._own_input_shape), layers)
            if output is not None:
                output = layer(output)
                nodes.append(layer._record.nodes[-1])
            layers.append(layer)
        if layers:
            self._arrange(layers, output, nodes)

    def _begin(self, start: Any, layers: list[Layer]) -> KerasTensor:
        """Set the symbolic input."""
        tensor = start.output if isinstance(start, InputLayer) else start
        if layers or self._record.start is not None or tensor.node is None or tensor.node.args:
            summary = "Sequential: only the first layer may be an Input"
            raise ModelError(summary, given=shorten(start), fix="for several inputs use Model(inputs, outputs)")
        self._record.start = tensor
        return tensor

    def _arrange(self, layers: list[Layer], output: PyTree, nodes: Sequence[Node]) -> None:
        """Replace the layers, and if the input is known, the calls that lead to `output`."""
        record = self._record
        if record.built is not None:
            record.built.release_optimizers()
            record.built_before = record.built
        record.built = record.membership = record.built_for = record.seen = None
        self._is_built = False
        starts = input_layers(record.start)
        members = name_members([*starts, *{id(layer): layer for layer in layers}.values()])
        names = {id(layer): name for name, layer in members.items()}
        for layer in starts:
            layer.output.name = layer.name
            del members[names.pop(id(layer))]
        held = {name: vars(self._members)[name] for name in self._chain.names}
        if [*held.items()] == [*members.items()][: len(held)]:
            for name in [*members][len(held) :]:  # setting all for each layer would be quadratic
                setattr(self._members, name, members[name])
        else:
            self._members = nnx.Dict(members)
        self._chain = _Chain(tuple(names[id(layer)] for layer in layers))
        self._graph = Graph(record.start, output, tuple(nodes), names) if nodes else None
        await_layout(self)


_BUILT = ("input_shape", "input_dtype")


def takes_layers(cls: type) -> bool:
    """Whether the constructor of this class has an argument `layers`."""
    return "layers" in inspect.signature(cls.__init__).parameters
