"""Weights, losses and metrics of a layer, their order, and views of foreign weights."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx, traverse_util

from keras_dist import random
from keras_dist._support import tree_paths
from keras_dist._support.array_operators import value_of
from keras_dist._support.types import ArrayLike
from keras_dist._unstable.flax_internals import attribute_order, restore_order, variable_role
from keras_dist._unstable.jax_internals import hide_mesh_in, hides_mesh
from keras_dist.errors import ModelError, shorten
from keras_dist.layers.base.layer_record import LayerRecord
from keras_dist.metrics import Metric
from keras_dist.variables import call_context
from keras_dist.variables.lending import Borrower, Lendable
from keras_dist.variables.values import check_value
from keras_dist.variables.variable import Key, Owners, Variable, is_trained_by


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


def keras_name(variable: nnx.Variable) -> str | None:
    """Return the name that a variable got from `add_weight`."""
    return variable.get_metadata().get("keras_name")


def store_paths(module: nnx.Module) -> None:
    """Store the path of each weight of a module in its metadata."""
    for parts, variable in walk(module):
        if isinstance(variable, Variable):
            variable.set_metadata("keras_path", tree_paths.join(parts))


def walk(module: Any) -> Iterator[tuple[tree_paths.Parts, nnx.Variable]]:
    """Yield each variable of a module once, with its path, in Keras's order.

    The layer's own weights come first: trainable ones, then others, by creation. The weights of sublayers follow.
    """
    for parts, variable, _ in walk_owned(module):
        yield parts, variable


def walk_owned(module: Any) -> Iterator[tuple[tree_paths.Parts, nnx.Variable, Owners]]:
    """Yield what `walk` yields, and the layers that contain each variable, innermost first."""
    yield from _walk(module, (), (), set())


def _walk(
    node: Any, parts: tree_paths.Parts, owners: Owners, seen: set[int]
) -> Iterator[tuple[tree_paths.Parts, nnx.Variable, Owners]]:
    if id(node) in seen:
        return
    seen.add(id(node))
    if hasattr(node, "_trainable"):
        owners = (node, *owners)
    for inner, variable, inside in getattr(node, "_first_weights", tuple)():
        seen.add(id(variable))
        yield tree_paths.visible((*parts, *inner)), variable, (inside, *owners)
    for inner, variable in sorted(direct_variables(node), key=lambda item: _rank(item[1])):
        if id(variable) not in seen:
            seen.add(id(variable))
            yield tree_paths.visible((*parts, *inner)), variable, owners
    for name, value in children_of(node):
        if not isinstance(value, nnx.Variable):
            yield from _walk(value, (*parts, name), owners, seen)


def direct_variables(node: Any) -> Iterator[tuple[tree_paths.Parts, nnx.Variable]]:
    """Yield the variables that a module holds directly, also in lists and dicts, in the order of assignment."""
    for name, value in children_of(node):
        if isinstance(value, nnx.Variable):
            yield (name,), value
        elif isinstance(value, nnx.List | nnx.Dict):
            yield from (((name, *inner), variable) for inner, variable in direct_variables(value))
    if not hasattr(node, "_trainable"):  # flax.nnx.bridge keeps the variables of Linen modules in plain dicts
        for name, value in vars(node).items():
            if isinstance(value, dict):
                flat = traverse_util.flatten_dict(value)
                yield from (((name, *inner), one) for inner, one in flat.items() if isinstance(one, nnx.Variable))


def _rank(variable: nnx.Variable) -> tuple[bool, int]:
    metadata = variable.get_metadata()
    return not (variable_role(variable) == "parameter" or metadata.get("is_frozen")), metadata.get("number") or 0


def children_of(node: Any) -> list[tuple[str | int, nnx.Variable | nnx.Module]]:
    """Return the variables and modules of a module itself, in the order of assignment."""
    named = list(enumerate(node)) if isinstance(node, nnx.List) else list(vars(node).items())
    return [(name, value) for name, value in named if isinstance(value, nnx.Variable | nnx.Module)]


def has_deferred(module: Any) -> bool:
    """Return whether a variable of a module has no array yet."""
    return any(isinstance(variable, Variable) and variable.is_deferred for _, variable in walk(module))


def penalties(module: Any) -> list[jax.Array]:
    """Return the regularization losses of the trainable weights."""
    if not getattr(module, "_trainable", True):
        return []
    found = []
    for _, variable, owners in walk_owned(module):
        regularizer = variable.get_metadata().get("regularizer")
        if regularizer is not None and isinstance(variable, nnx.Param) and is_trained_by(owners):
            found.append(regularizer(variable[...]))
    return found


@hide_mesh_in
class WeightOwner:
    """The weights, losses and metrics of a layer."""

    __slots__ = ()

    name: str
    built: bool
    _trainable: bool
    _record: LayerRecord

    @property
    def weights(self) -> list[Any]:
        """The weights of the layer, trainable ones first, then the weights of its sublayers."""
        return self._weights_so_far()

    def _weights_so_far(self, is_listed: Callable[[nnx.Variable], bool] = lambda variable: True) -> list[Any]:
        return [
            self._listed(variable, "/".join(map(str, parts)), owners)
            for parts, variable, owners in walk_owned(self)
            if not isinstance(variable, nnx.RngState) and is_listed(variable)
        ]

    def _listed(self, variable: nnx.Variable, path: str, owners: Owners) -> Any:
        """Return a weight of the layer, or the view of a weight of a flax module."""
        if isinstance(variable, Variable):
            if not variable.keepers and len(owners) >= len(variable._owners):
                variable.belong_to(owners, path)
            return variable
        membership = self._record.membership
        if membership is not None:
            return membership.handle(variable)
        views = self._record.views
        owner: Any = views[path].borrower if path in views else None
        if owner is None or owner.variable is not variable:
            shape = jax.ShapeDtypeStruct(variable.shape, variable.dtype)
            views[path] = Variable.view(shape, path, keras_name(variable), variable_role(variable))
            views[path].lend_to(ForeignWeight(variable))
        views[path].belong_to(owners, path)
        return views[path]

    @property
    def variables(self) -> list[Any]:
        """The weights, then the states of random generators."""
        return self._with_states(self.weights)

    def _with_states(self, weights: list[Any]) -> list[Any]:
        generators = (node for _, node in nnx.iter_graph(self) if isinstance(node, random.SeedGenerator))
        states = [generator.state for generator in generators]
        others = [variable for _, variable in walk(self) if isinstance(variable, Key)]
        return [*{id(variable): variable for variable in (*weights, *states, *others)}.values()]

    @property
    def trainable_weights(self) -> list[Any]:
        """The weights that gradients update."""
        return [weight for weight in self.weights if self._trainable and weight.trainable]

    @property
    def non_trainable_weights(self) -> list[Any]:
        """The weights that gradients do not update."""
        return [weight for weight in self.weights if not (self._trainable and weight.trainable)]

    @property
    def trainable_variables(self) -> list[Any]:
        """Alias of `trainable_weights`."""
        return [weight for weight in self.variables if self._trainable and weight.trainable]

    @property
    def non_trainable_variables(self) -> list[Any]:
        """The non-trainable weights, then the states of random generators."""
        return [weight for weight in self.variables if not (self._trainable and weight.trainable)]

    def get_weights(self) -> list[np.ndarray]:
        """Return the values of `weights` on the host. All processes of a job must call it.

        While another thread trains, these are the values between two steps.
        """
        found: list[np.ndarray] = []
        for lock, weights in itertools.groupby(self.weights, lambda weight: getattr(weight, "_lock", None)):
            with lock or contextlib.nullcontext():
                found += [weight.numpy() for weight in weights]
        return found

    def set_weights(self, weights: Sequence[ArrayLike]) -> None:
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

    def count_params(self) -> int:
        """Return the number of elements of all weights.

        Raises:
            ModelError: the layer is not built.
        """
        if not self.built:
            raise self._not_built("count_params")
        return sum(int(np.prod(weight.shape)) for weight in self.weights)

    @property
    @hides_mesh
    def losses(self) -> list[jax.Array]:
        """The losses added in the last call by the layer and its sublayers, and regularization losses."""
        return [*(term for owner in self._owners() for term in owner._record.added), *penalties(self)]

    @property
    def metrics(self) -> list[Metric]:
        """The metrics among the attributes of the layer and its sublayers."""
        return [value for owner in self._owners() for value in vars(owner).values() if isinstance(value, Metric)]

    @property
    def metrics_variables(self) -> list[Any]:
        """The variables of `metrics`."""
        return [variable for metric in self.metrics for variable in metric.variables]

    def stateless_call(
        self,
        trainable_variables: Sequence[ArrayLike],
        non_trainable_variables: Sequence[ArrayLike],
        *args: Any,
        return_losses: bool = False,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Call the layer with the given values of its variables, without changing them.

        Args:
            trainable_variables: values for `trainable_variables`.
            non_trainable_variables: values for `non_trainable_variables`.
            *args: arguments of the call.
            return_losses: whether to return added losses.
            **kwargs: further arguments of the call, such as `training`.

        Returns:
            `(outputs, non_trainable_variables)` with updated values; with `return_losses` also the losses.

        Raises:
            ModelError: the layer is not built, or the number of values differs.

        Source: `keras.layers.Layer.stateless_call`.
        """
        if not self.built:
            raise self._not_built("stateless_call")
        listed = [*self.trainable_variables, *self.non_trainable_variables]
        counts = (len(trainable_variables), len(non_trainable_variables))
        expected = (len(self.trainable_variables), len(self.non_trainable_variables))
        if counts != expected:
            given = f"{counts[0]} trainable and {counts[1]} other values, instead of {expected[0]} and {expected[1]}"
            fix = "pass a value for each of trainable_variables and non_trainable_variables"
            raise ModelError(f"stateless_call of layer {self.name!r}: the values do not fit", given=given, fix=fix)
        order = {id(variable): index for index, variable in enumerate(self.variables)}
        copy = self._copy()
        variables = copy.variables
        places = [variables[order[id(variable)]] for variable in listed]
        for place, value in zip(places, [*trainable_variables, *non_trainable_variables], strict=True):
            place[...] = jnp.asarray(value_of(value), place.dtype)
        with call_context.entered(anew=True):
            outputs = copy(*args, **kwargs)
            losses = copy.losses
        rest = [place[...] for place in places[expected[0] :]]
        return (outputs, rest, losses) if return_losses else (outputs, rest)

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """Save the layer's own weights, without sublayers, as `store["0"]`, `store["1"]` and so on.

        Files of Keras (`.keras`, `.weights.h5`) call this method; a subclass may store other arrays.
        """
        for number, weight in enumerate(self._own_weights()):
            store[str(number)] = weight.numpy()

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Load the layer's own weights from `store`; see `save_own_variables`.

        Raises:
            ModelError: the number of arrays differs.
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
        own = {id(variable) for _, variable in direct_variables(self)}
        return self._weights_so_far(lambda variable: id(variable) in own)

    @classmethod
    def _overrides_own_variables(cls) -> bool:
        names = ("save_own_variables", "load_own_variables")
        return any(getattr(cls, name) is not getattr(WeightOwner, name) for name in names)

    def _copy(self) -> Any:
        graphdef, state = nnx.split(self)
        copy = nnx.merge(graphdef, state, copy=True)
        restore_order(copy, attribute_order(self))
        return copy

    def forget_losses(self) -> None:
        """Remove the losses added in earlier calls."""
        for owner in self._owners():
            owner._record.added = []

    def _owners(self) -> Iterator[Any]:
        """Yield this layer and all layers inside it, each once."""
        yield self
        yield from (node for _, node in nnx.iter_graph(self) if isinstance(node, WeightOwner) and node is not self)

    def _not_built(self, what: str) -> ModelError:
        fix = "start the model with Input(shape), call the layer on an array, or model.build(input_shape)"
        return ModelError(f"{what}: layer {self.name!r} is not built", given="a layer that has seen no input", fix=fix)
