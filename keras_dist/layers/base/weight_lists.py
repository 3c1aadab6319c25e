"""Methods of `Layer` that list its weights, set them together, and store them in files of Keras."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from keras_dist import random
from keras_dist._support.types import ArrayLike
from keras_dist._unstable.flax_internals import variable_role
from keras_dist.errors import ModelError, shorten
from keras_dist.layers.base.layer_record import layers_inside
from keras_dist.layers.base.weights import direct_variables, keras_name, update_kinds, walk, walk_owned
from keras_dist.metrics import Metric
from keras_dist.variables.lending import Borrower, Lendable
from keras_dist.variables.values import check_value
from keras_dist.variables.variable import Key, Owners, Variable


def trainable(self: Any) -> bool:
    """Whether gradients update the weights. Setting it sets all sublayers; it takes effect with `compile`."""
    return self._trainable


def set_trainable(self: Any, value: bool) -> None:
    """Set `trainable` of the layer and its sublayers."""
    for layer in layers_inside(self):
        layer._trainable, layer._trainable_was_set = bool(value), True
    update_kinds(self)


def weights(self: Any, is_listed: Callable[[nnx.Variable], bool] = lambda variable: True) -> list[Any]:
    """The weights of the layer, trainable ones first, then the weights of its sublayers."""
    return [
        _listed(self, variable, "/".join(map(str, parts)), owners)
        for parts, variable, owners in walk_owned(self)
        if not isinstance(variable, nnx.RngState) and is_listed(variable)
    ]


def _listed(layer: Any, variable: nnx.Variable, path: str, owners: Owners) -> Any:
    """Return a weight of the layer, or the view of a weight of a flax module."""
    if isinstance(variable, Variable):
        # here, because a layer is not informed of what its sublayers build, or what is appended to its lists
        if not variable.keepers and len(owners) >= len(variable._owners):
            variable.belong_to(owners, path)
        return variable
    membership = layer._record.membership
    if membership is not None:
        return membership.handle(variable)
    views = layer._record.views
    owner: Any = views[path].borrower if path in views else None
    if owner is None or owner.variable is not variable:
        shape = jax.ShapeDtypeStruct(variable.shape, variable.dtype)
        views[path] = Variable.view(shape, path, keras_name(variable), variable_role(variable))
        views[path].lend_to(ForeignWeight(variable))
    views[path].belong_to(owners, path)
    return views[path]


def variables(self: Any) -> list[Any]:
    """The weights, then the states of random generators."""
    return self._with_states(self.weights)


def with_states(self: Any, weights: list[Any]) -> list[Any]:
    """Return weights, then the states of the random generators inside the layer."""
    generators = (node for _, node in nnx.iter_graph(self) if isinstance(node, random.SeedGenerator))
    states = [generator.state for generator in generators]
    others = [variable for _, variable in walk(self) if isinstance(variable, Key)]
    return [*{id(variable): variable for variable in (*weights, *states, *others)}.values()]


def trainable_weights(self: Any) -> list[Any]:
    """The weights that gradients update."""
    return [weight for weight in self.weights if self._trainable and weight.trainable]


def non_trainable_weights(self: Any) -> list[Any]:
    """The weights that gradients do not update."""
    return [weight for weight in self.weights if not (self._trainable and weight.trainable)]


def trainable_variables(self: Any) -> list[Any]:
    """Alias of `trainable_weights`."""
    return [weight for weight in self.variables if self._trainable and weight.trainable]


def non_trainable_variables(self: Any) -> list[Any]:
    """The non-trainable weights, then the states of random generators."""
    return [weight for weight in self.variables if not (self._trainable and weight.trainable)]


def get_weights(self: Any) -> list[np.ndarray]:
    """Return the values of `weights` on the host. All processes of a job must call it.

    While another thread trains, these are the values between two steps.
    """
    found: list[np.ndarray] = []
    for lock, weights in itertools.groupby(self.weights, lambda weight: getattr(weight, "_lock", None)):
        with lock or contextlib.nullcontext():
            found += [weight.numpy() for weight in weights]
    return found


def set_weights(self: Any, weights: Sequence[ArrayLike]) -> None:
    """Set the values of `weights`, in their order.

    Raises:
        ModelError: the number of values or a shape differs, or a value would overflow; nothing is set.
    """
    handles = self.weights
    values = list(weights)
    given = [np.shape(value) for value in values]
    expected = [handle.shape for handle in handles]
    if given != expected:
        wrong = [handle.path for handle, shape in zip(handles, given, strict=False) if handle.shape != shape]
        raise ModelError(
            f"set_weights of layer {self.name!r}: the values do not fit" + (f" {wrong[:5]}" if wrong else ""),
            given=f"{len(given)} values of shapes {shorten(given)}",
            expected=f"{len(expected)} values of shapes {shorten(expected)}" if expected else "a built layer",
            fix="pass what get_weights() of the same layer gives" if expected else "call or build it first",
        )
    for handle, value in zip(handles, values, strict=True):
        check_value(value, handle)
    for handle, value in zip(handles, values, strict=True):
        handle.assign(value)


def count_params(self: Any) -> int:
    """Return the number of elements of all weights.

    Raises:
        ModelError: the layer is not built.
    """
    if not self.built:
        raise not_built(self, "count_params")
    return sum(int(np.prod(weight.shape)) for weight in self.weights)


def metrics(self: Any) -> list[Metric]:
    """The metrics among the attributes of the layer and its sublayers."""
    return [value for owner in layers_inside(self) for value in vars(owner).values() if isinstance(value, Metric)]


def metrics_variables(self: Any) -> list[Any]:
    """The variables of `metrics`."""
    return [variable for metric in self.metrics for variable in metric.variables]


def save_own_variables(self: Any, store: MutableMapping[str, Any]) -> None:
    """Save the layer's own weights, without sublayers, as `store["0"]`, `store["1"]` and so on.

    Files of Keras (`.keras`, `.weights.h5`) call this method; a subclass may store other arrays.
    """
    for number, weight in enumerate(_own_weights(self)):
        store[str(number)] = weight.numpy()


def load_own_variables(self: Any, store: Mapping[str, Any]) -> None:
    """Load the layer's own weights from `store`; see `save_own_variables`.

    Raises:
        ModelError: the number of arrays differs.
    """
    weights = _own_weights(self)
    if len(store) != len(weights):
        summary = f"load_own_variables of layer {self.name!r}: the file has other weights"
        expected = f"{len(weights)} arrays: {shorten([weight.path for weight in weights])}"
        fix = "load it into a layer made like the one it was saved from"
        raise ModelError(summary, given=f"{len(store)} arrays: {shorten([*store])}", expected=expected, fix=fix)
    for number, weight in enumerate(weights):
        weight.assign(store[str(number)])


def _own_weights(layer: Any) -> list[Any]:
    own = {id(variable) for _, variable in direct_variables(layer)}
    return weights(layer, lambda variable: id(variable) in own)


def not_built(layer: Any, what: str) -> ModelError:
    """Return the error for a method of a layer that is not built."""
    fix = "start the model with Input(shape), call the layer on an array, or model.build(input_shape)"
    return ModelError(f"{what}: layer {layer.name!r} is not built", given="a layer that has seen no input", fix=fix)


class ForeignWeight(Borrower):
    """Owner of the array of a weight of a Flax module outside of a model."""

    def __init__(self, variable: nnx.Variable) -> None:
        self.variable = variable

    def array_of(self, variable: Lendable) -> jax.Array:
        """Return the array, which is never donated."""
        del variable
        return self.variable[...]

    def copy_of(self, variable: Lendable) -> jax.Array:
        """Return the array, which needs no copy."""
        return self.array_of(variable)

    def unshared(self, variable: Lendable) -> jax.Array:
        """Return a copy of the array."""
        return jnp.array(self.array_of(variable), copy=True)

    def take(self, variable: Lendable, array: jax.Array) -> None:
        """Set the array of the weight."""
        del variable
        self.variable[...] = array

    def set_to_copy(self, variable: Lendable, value: ArrayLike) -> None:
        """Set the weight to a copy of a value."""
        self.take(variable, jnp.array(value, self.variable.dtype))
