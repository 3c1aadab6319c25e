"""`ModelBinding`: where the weights of a layer are that lives in a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx

from keras_dist import _jax, _paths
from keras_dist._types import PyTree
from keras_dist.errors import ModelError
from keras_dist.layers import Layer, call_context
from keras_dist.layers.input_spec import check_inputs
from keras_dist.layers.shape_tracing import without_arrays
from keras_dist.layers.variable import Variable
from keras_dist.layers.weights import children_of, own_variables
from keras_dist.models.growing import grow
from keras_dist.models.live_module import added_losses
from keras_dist.models.naming import is_below
from keras_dist.models.session import Session
from keras_dist.models.variable import ModelVariable
from keras_dist.random import SeedGenerator


class ModelBinding:
    """Where the weights of one layer are: in the model of `session`, below `prefix`.

    Args:
        session: of the model that created the weights.
        prefix: path of the layer in that model; empty for the model itself.
        node: the layer as the model built it, without arrays.
    """

    def __init__(self, session: Session, prefix: str, node: Any) -> None:
        self.session = session
        self.prefix = prefix
        self._node = node

    def weights(self) -> list[ModelVariable]:
        """Handles on the weights of the layer and its sublayers."""
        return self.session.variables(self.prefix)

    def own_weights(self) -> list[ModelVariable]:
        """Handles on the weights of the layer itself."""
        paths = (_joined(self.prefix, _paths.join(_paths.visible(parts))) for parts, _ in own_variables(self._node))
        known = {weight.path for weight in self.session.variables()}
        own = {self.session.cell.row(path).path for path in paths} & known
        return [weight for weight in self.session.variables() if weight.path in own]

    def generators(self) -> list[ModelVariable]:
        """Handles on the states of the random generators of the layer and its sublayers."""
        return self.session.generators(self.prefix)

    def added_losses(self) -> list[jax.Array]:
        """What the layer and its sublayers added to the loss in the last call."""
        return [
            term for path, terms in self.session.added_losses.items() if is_below(path, self.prefix) for term in terms
        ]

    def penalties(self, weights: Sequence[Any]) -> list[jax.Array]:
        """What the regularizers of these weights give."""
        graph = self.session.cell.graph
        regularizers = dict(zip((spec.path for spec in graph.specs), graph.regularizers, strict=True))
        found = ((regularizers[weight.path], weight) for weight in weights)
        return [regularizer(weight.value) for regularizer, weight in found if regularizer is not None]

    def attribute(self, name: str) -> Any:
        """What building the layer has added to it under this name: a weight, a sublayer, or a plain value."""
        path = _joined(self.prefix, name)
        value = vars(self._node).get(name, _MISSING)
        if value is _MISSING:
            raise AttributeError(f"{type(self._node).__name__!r} object has no attribute {name!r}")
        return self._bound(value, path)

    def _bound(self, value: Any, path: str) -> Any:
        """A value in the module, with handles in place of variables, also in lists and dicts."""
        if isinstance(value, nnx.Variable):
            return self.session.variable(path)
        if isinstance(value, nnx.List | nnx.Dict) and any(own_variables(value)):
            if isinstance(value, nnx.List):
                return [self._bound(item, f"{path}/{index}") for index, item in enumerate(value)]
            return {name: self._bound(item, f"{path}/{name}") for name, item in children_of(value)}
        if isinstance(value, nnx.Module):
            bind(value, value, self.session, path)
        return value

    def made_by_building(self, layer: Layer) -> list[tuple[str | int, nnx.Variable | nnx.Module]]:
        """The sublayers, with their names, that building has added to what the user's layer holds."""
        if layer is self._node:
            return []
        return [(name, child) for name, child in children_of(self._node) if name not in vars(layer)]

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
        """What the layer gives for arrays, with its current weights.

        Raises:
            ModelError: another layer's call is running, which would take the weights for constants.
        """
        if call_context.current() is not None and any(map(_jax.is_traced, jax.tree.leaves((args, kwargs)))):
            raise ModelError(
                f"layer {self._node.name!r} is called inside of a model that it is not part of",
                given=f"{type(self._node).__name__} of another model, called in a function or layer",
                expected="layers that the model knows",
                fix="assign it to an attribute of the model or layer that calls it, or call it on the model's symbolic "
                "tensors",
            )
        layer = self.module()
        outputs = layer(*args, **kwargs)
        kept = {path: terms for path, terms in self.session.added_losses.items() if not is_below(path, self.prefix)}
        found = {_joined(self.prefix, path).rstrip("/"): terms for path, terms in added_losses(layer).items()}
        self.session.added_losses = {**kept, **found}
        return outputs

    def grow(self, change: Callable[[Any], None]) -> None:
        """Let `change`, which is given the layer, add weights to it and freeze others, in the model."""
        grow(self.session, self.prefix, self._find, change)
        vars(self._node).update(vars(self._find(self.session.cell.graph.described())))

    def check_inputs(self, args: tuple[Any, ...]) -> None:
        """Check that symbolic inputs are what the layer was built for."""
        if args:
            check_inputs(vars(self._node).get("input_spec"), args[0], self._node.name)

    def module(self) -> nnx.Module:
        """The layer with copies of its current values."""
        return self._find(self.session.module())

    def _find(self, module: Any) -> Any:
        """The layer in a module of the model."""
        for part in filter(None, self.prefix.split("/")):
            module = _child(module, part)
        return module


_MISSING = object()


def bind(layer: Any, node: Any, session: Session, prefix: str = "", instead_of: Session | None = None) -> None:
    """Tell a layer and all its sublayers where their weights are, unless they live elsewhere already.

    Args:
        layer: what the user holds.
        node: the same as the model built it, without arrays.
        session: of the model.
        prefix: path of the layer in the model.
        instead_of: what the model had before layers were added or taken out; those that lived there move.
    """
    if isinstance(layer, Layer):
        binding: Any = layer._outside.binding
        if binding is not None and binding.session is not instead_of:
            return
        layer._outside.binding = ModelBinding(session, prefix, node)
        if layer is node:
            return
    if isinstance(layer, SeedGenerator) and layer is not node:
        if hasattr(node, "seed_generator_state"):  # unless nothing is drawn from it
            layer.live_in_model(session.variable(_joined(prefix, "seed_generator_state")))
        return
    for name, child in children_of(layer):
        items = child if isinstance(child, nnx.List) else [child]
        was_filled = isinstance(child, nnx.List | nnx.Dict) and not len(child) and len(_item(node, name)) > 0
        if isinstance(layer, Layer) and (was_filled or any(isinstance(item, nnx.Variable) for item in items)):
            for parts, variable in own_variables(layer):
                if parts[0] == name and isinstance(variable, Variable):
                    variable.live_in_model(session.variable(_joined(prefix, _paths.join(parts))))
            if all(isinstance(item, Variable) for item in items):  # its constructor may have made it, not `build`
                layer._outside.given_up[str(name)] = without_arrays(child)
            delattr(layer, str(name))  # from now on it is the model's
            layer._is_built = False  # a copy for another model builds anew
        elif isinstance(child, nnx.Module):
            inner = prefix if name == _paths.MEMBERS else _joined(prefix, name)
            bind(child, _item(node, name), session, inner, instead_of)


def _item(node: Any, name: str | int) -> Any:
    return node[name] if isinstance(name, int) else vars(node)[name]


def _child(module: Any, part: str) -> Any:
    """The submodule that a part of a path leads to."""
    if isinstance(module, nnx.List):
        return module[int(part)]
    members = vars(module).get(_paths.MEMBERS)
    if members is not None and part in vars(members):
        return vars(members)[part]
    return vars(module)[part]


def _joined(prefix: str, name: str | int) -> str:
    return f"{prefix}/{name}" if prefix else str(name)
