"""`Configuring`: a model as a config of plain values and back, and what `compile` chose, likewise."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any, Self

import jax
from flax import nnx

from keras_dist.errors import ConfigError, shorten
from keras_dist.layers import Layer
from keras_dist.layers.symbolic import KerasTensor
from keras_dist.layers.weights import children_of
from keras_dist.models.config import one_config, read_graph, write_graph
from keras_dist.models.graph import Graph, graph_of
from keras_dist.saving import custom_object_scope, deserialize_keras_object, serialize_keras_object

_GRAPH = {"layers", "input_layers", "output_layers"}


class Configuring(Layer):
    """A model as a config of plain values and back. Subclasses say what compiles it and what gives birth to it."""

    def get_config(self) -> dict[str, Any]:
        """The model without its weights, as plain values that JSON can hold.

        A model between symbolic tensors gives its layers and calls, as in Keras; others give the arguments of their
        constructor. Explicit layouts are lists of axes. Subclasses must be registered to be read again; one whose
        constructor takes more than plain values overrides `get_config` and `from_config`.

        Raises:
            ConfigError: a layer or an argument cannot be written down.

        Example:
            >>> import keras_dist as kd
            >>> from keras_dist import layers
            >>> inputs = kd.Input((8,), name="x")
            >>> model = kd.Model(inputs, layers.Dense(3, name="d1")(inputs))
            >>> again = kd.Model.from_config(model.get_config())
            >>> [weight.path for weight in again.weights]
            ['d1/kernel', 'd1/bias']

        Source: `keras.Model.get_config`.
        """
        graph = self._graph()
        if graph is None or not takes_graph(type(self)):
            self._check_described()
            return super().get_config()
        others = serialize_keras_object(self._arguments_but("inputs", "outputs"))
        with one_config():
            return others | write_graph(graph, self.input, self.output)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Self:
        """A model as `get_config` has described it, with new weights on the current distribution.

        Args:
            config: plain values.
            custom_objects: classes and functions by name, beside the registered ones.

        Raises:
            ConfigError: the config is damaged, or mentions what is not known.

        Source: `keras.Model.from_config`.
        """
        with custom_object_scope(custom_objects), one_config():
            if not (takes_graph(cls) and {*config} >= _GRAPH):
                return super().from_config(config)
            inputs, outputs = read_graph(config)
            others = {name: value for name, value in config.items() if name not in _GRAPH}
            return super().from_config({**others, "inputs": inputs, "outputs": outputs})

    def to_json(self, **kwargs: Any) -> str:
        """The model without its weights, as JSON; `models.model_from_json` reads it.

        Args:
            **kwargs: as of `json.dumps`.

        Raises:
            ConfigError: a layer or an argument cannot be written down.

        Source: `keras.Model.to_json`.
        """
        return json.dumps(serialize_keras_object(self), **kwargs)

    def get_build_config(self) -> dict[str, Any] | None:
        """What `build_from_config` needs to give birth to the weights; None when they are not born, or need nothing.

        Source: `keras.Layer.get_build_config`.
        """
        shapes = getattr(self, "_born_for", None)
        if shapes is None or self._graph() is not None:
            return None
        return {
            "input_shape": jax.tree.map(lambda leaf: list(leaf.shape), shapes),
            "input_dtype": jax.tree.map(lambda leaf: leaf.dtype, shapes),
        }

    def build_from_config(self, config: Mapping[str, Any]) -> None:
        """Give birth to the weights, for inputs as `get_build_config` has described them.

        Source: `keras.Layer.build_from_config`.
        """
        if "input_dtype" not in config:
            self.build(config["input_shape"])
            return
        dtypes, structure = jax.tree.flatten(config["input_dtype"])
        shapes = structure.flatten_up_to(config["input_shape"])
        tensors = [KerasTensor(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        self._build_for(structure.unflatten(tensors))

    def get_compile_config(self) -> dict[str, Any]:
        """The arguments of `compile` as plain values; empty when the model is not compiled.

        Raises:
            ConfigError: one of them is no name, no object of keras_dist, and not registered.

        Differs from Keras: what cannot be read again is an error here, and not only when it is read.

        Source: `keras.Model.get_compile_config`.
        """
        choices = getattr(self, "_choices", None)
        if choices is None:
            return {}
        return {name: _written_argument(name, value) for name, value in choices.arguments.items()}

    def compile_from_config(self, config: Mapping[str, Any]) -> None:
        """Compile the model as `get_compile_config` has described it.

        Raises:
            ConfigError: the config mentions what is not known.

        Source: `keras.Model.compile_from_config`.
        """
        if config:
            self.compile(**deserialize_keras_object(config))  # type: ignore[attr-defined]

    def _build_for(self, tensors: Any) -> None:
        """Give birth to the weights, for inputs like these symbolic tensors."""
        raise NotImplementedError

    def _graph(self) -> Graph | None:
        """Its calls between symbolic tensors; None where there are none."""
        symbols = getattr(self, "_symbols", None)
        if symbols is None or not isinstance(vars(self).get("_members"), nnx.Dict):
            return None
        inputs, outputs = symbols
        return graph_of(inputs, outputs, {id(layer): str(name) for name, layer in children_of(self._members)})

    def _arguments_but(self, *names: str) -> dict[str, Any]:
        """The other arguments of its constructor, with its name and whether it is trained as they are now."""
        others = {name: value for name, value in self._arguments.items() if name not in names}
        return others | {"name": self.name, "trainable": self.trainable}

    def _check_described(self) -> None:
        if getattr(self, "_session", None) is not None and getattr(self, "_home", None) is None:
            raise ConfigError(
                "a model of a flax.nnx module cannot be written down in a config",
                given="a model that from_nnx made",
                expected="layers, or a registered subclass that is made of plain arguments",
                fix="keep the code that makes the module, and call Model.from_nnx again",
            )


def takes_graph(cls: type) -> bool:
    """Whether a model of this class is made of symbolic inputs and outputs."""
    return {"inputs", "outputs"} <= {*inspect.signature(cls.__init__).parameters}


def _written_argument(name: str, value: Any) -> Any:
    """An argument of `compile` as plain values, which are known to be readable."""
    try:
        written = serialize_keras_object(value)
        deserialize_keras_object(written)
    except ConfigError as error:
        raise ConfigError(
            f"get_compile_config: `{name}` cannot be written down: {error.summary}",
            given=f"{name}={shorten(value)}",
            expected="names, objects of keras_dist, or registered classes and functions",
            fix="register it: @saving.register_keras_serializable(); in place of an optax transformation take an "
            "optimizer of keras_dist.optimizers, or subclass Optimizer",
        ) from error
    return written
