"""`Sequential`: layers one after the other."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from flax import nnx

from keras_dist.errors import ModelError, shorten
from keras_dist.layers import Input, InputLayer, Layer
from keras_dist.layers.foreign import as_layer
from keras_dist.layers.symbolic import KerasTensor
from keras_dist.layers.weights import children_of
from keras_dist.models.config import one_config, read_layer, write_layer
from keras_dist.models.model import Model
from keras_dist.models.naming import name_members
from keras_dist.models.session import Session
from keras_dist.saving import custom_object_scope, serialize_keras_object


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
        super().__init__(name=name, trainable=trainable, **kwargs)
        self._members = nnx.Dict()
        self._chain: tuple[str, ...] = ()
        if layers is not None and not isinstance(layers, Iterable):
            raise ModelError(
                "Sequential: `layers` is not a list",
                given=f"{shorten(layers)} of type {type(layers).__name__}",
                expected="a list of layers",
                fix=f"Sequential([{getattr(layers, 'name', 'layer')}])",
            )
        self._extend(layers or ())

    @property
    def layers(self) -> list[Layer]:
        """Its layers in the order in which they are called, without an `InputLayer`; one may occur twice."""
        return [vars(self._members)[name] for name in self._chain]

    @property
    def output_names(self) -> list[str] | None:
        """The name of its last layer; None without layers.

        Losses and metrics of outputs that are a dict go by its keys.
        """
        return super().output_names or [layer.name for layer in self.layers[-1:]] or None

    def add(self, layer: Any) -> None:
        """Put a layer at the end. The layers before it keep their values.

        Raises:
            ModelError: it is not a layer, or its name is taken.
        """
        self._extend([layer])

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

    def get_config(self) -> dict[str, Any]:
        """Its layers with their configs; of a subclass that takes no layers the arguments of its constructor.

        Raises:
            ConfigError: a layer or an argument cannot be written down.

        Source: `keras.Sequential.get_config`.
        """
        if not takes_layers(type(self)):
            return super().get_config()
        config = serialize_keras_object(self._arguments_but("layers"))
        starts = [] if self._symbols_or_none() is None else self._input_layers()
        with one_config():
            config["layers"] = [write_layer(layer, layer.name) for layer in starts]
            config["layers"] += [write_layer(layer, name) for name, layer in zip(self._chain, self.layers, strict=True)]
        built = super().get_build_config()
        if built is not None:
            config |= {f"build_{name}": value for name, value in built.items()}
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Self:
        """A Sequential as `get_config` has described it, with new weights on the current distribution.

        Args:
            config: plain values.
            custom_objects: classes and functions by name, beside the registered ones.

        Raises:
            ConfigError: the config is damaged, or mentions what is not known.

        Source: `keras.Sequential.from_config`.
        """
        if not takes_layers(cls):
            return super().from_config(config, custom_objects)
        built = {name: config[f"build_{name}"] for name in _BUILT if config.get(f"build_{name}") is not None}
        others = {name: value for name, value in config.items() if name.removeprefix("build_") not in _BUILT}
        with custom_object_scope(custom_objects), one_config():
            model = super().from_config({**others, "layers": [read_layer(layer) for layer in config["layers"]]})
        if built and not model.built:
            model.build_from_config(built)
        return model

    def get_build_config(self) -> None:
        """Nothing: the config itself tells the shape of the input."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As of `Model`."""
        outputs = super().__call__(*args, **kwargs)
        if any(isinstance(layer, Sequential) for layer in self.layers):
            self._see(args, kwargs)  # what they are given is not known otherwise
        return outputs

    def _give_birth(self, *args: Any, **kwargs: Any) -> Session:
        session = super()._give_birth(*args, **kwargs)
        self._see(args, kwargs)
        return session

    def _see(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note what the layers give for a symbolic input, once, unless they were connected to an Input."""
        is_chain = type(self).call is Sequential.call and len(args) == 1 and not kwargs
        if not (is_chain and isinstance(args[0], KerasTensor)) or self._symbols_or_none() or vars(self).get("_seen"):
            return
        symbols = [Input(batch_shape=args[0].shape, dtype=args[0].dtype)]
        for layer in self.layers:
            symbols.append(layer(symbols[-1]))
        object.__setattr__(self, "_seen", (symbols[0], symbols[-1]))

    def _symbolic(self) -> tuple[Any, Any]:
        # of a model without Input what it was born for: calls take other shapes, too
        return vars(self).get("_seen") or super()._symbolic()

    def _extend(self, added: Iterable[Any]) -> None:
        layers = self.layers
        output = (self._symbols_or_none() or (None, None))[1]
        for layer in added:
            if isinstance(layer, KerasTensor | InputLayer):
                output = self._begin(layer, layers)
                continue
            layer = as_layer(layer)
            if not layers and output is None and layer._own_input_shape is not None:
                output = self._begin(Input(batch_shape=layer._own_input_shape), layers)
            output = None if output is None else layer(output)
            layers.append(layer)
        if layers:
            self._arrange(layers, output)

    def _begin(self, start: Any, layers: list[Layer]) -> KerasTensor:
        """Note the symbolic input."""
        tensor = start.output if isinstance(start, InputLayer) else start
        if layers or self._symbols_or_none() is not None or tensor.node is None or tensor.node.args:
            raise ModelError(
                "Sequential: only the first layer may be an Input",
                given=shorten(start),
                expected="Input(shape) at the beginning",
                fix="for several inputs use Model(inputs, outputs)",
            )
        object.__setattr__(self, "_symbols", (tensor, tensor))
        return tensor

    def _arrange(self, layers: list[Layer], output: Any) -> None:
        """Consist of these layers from now on; `output` is their symbolic output, if the input is known."""
        session = getattr(self, "_session", None)
        if session is not None:
            session.release_optimizers()
            object.__setattr__(self, "_session_before", session)
        object.__setattr__(self, "_session", None)
        object.__setattr__(self, "_home", None)
        object.__setattr__(self, "_born_for", None)
        object.__setattr__(self, "_seen", None)
        if output is None:
            unique = list({id(layer): layer for layer in layers}.values())
            self._members = nnx.Dict(name_members(unique))
        else:
            self._connect(self.input, output)
        names = {id(layer): str(name) for name, layer in children_of(self._members)}
        self._chain = tuple(names[id(layer)] for layer in layers)

    def _symbols_or_none(self) -> Any:
        return getattr(self, "_symbols", None)


_BUILT = ("input_shape", "input_dtype")


def takes_layers(cls: type) -> bool:
    """Whether a model of this class is made of a list of layers."""
    """Whether a model of this class is made of a list of layers."""
    return "layers" in inspect.signature(cls.__init__).parameters
