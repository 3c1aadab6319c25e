"""Modules that a model trains in place of layers: a `flax.nnx` module, its factory, or variables of a Keras model.

The arrays of a Keras model stay on the host from `from_keras` on and change only in `to_keras`: on a device they would
be whole, beside their shards.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np
from flax import nnx

from keras_dist import random
from keras_dist._support import tree_paths
from keras_dist._support.arguments import check_callable
from keras_dist._support.signatures import keywords_taken
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.distribution.consistency import check_agreement, facts_of_config, facts_of_plan, facts_of_values
from keras_dist.distribution.devices import check_not_forked
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.tracing import traced_in
from keras_dist.errors import ConfigError, ModelError, UnknownNameError, shorten, with_type
from keras_dist.layers.base.module_precision import precision_of_modules
from keras_dist.layers.base.other_frameworks import check_is_no_function, check_is_ours
from keras_dist.mixed_precision import DTypePolicy
from keras_dist.models.model_distribution import distribution_now, distribution_of_graph, initial_state, no_layout_yet
from keras_dist.serialization import deserialize_keras_object
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.graph import ModuleGraph, Trainable, in_nodes, split_module, trace_factory
from keras_dist.training.state_cell import StateCell
from keras_dist.training.step import Batch, Forward, ModuleCall
from keras_dist.variables import call_context

_FROM_CONFIG = (
    "make it anew: model = kd.models.model_from_json(keras_model.to_json()), then "
    "model.set_weights(keras_model.get_weights())"
)
_COMPILED = ("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics", "run_eagerly", "auto_scale_loss")


class KerasVariables(nnx.Module):
    """The variables of a Keras model, nested by the names in their paths."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self._members = in_nodes(tree)

    def variable(self, parts: tree_paths.Parts) -> nnx.Variable:
        """Return the variable that these names lead to."""
        node: Any = self._members
        for part in parts:
            node = node[part]
        return node


@dataclasses.dataclass(frozen=True, eq=False)
class KerasModel:
    """A Keras model object, and the positions of its variables in a module."""

    model: Any  # the `keras.Model`. Its variables hold arrays of the host, not of a device.
    places: Mapping[tree_paths.Parts, Any]  # variables by the names in their paths, in Keras's order

    @property
    def paths(self) -> list[str]:
        """The paths of the variables, in Keras's order."""
        return list(map(tree_paths.join, self.places))

    @property
    def output_names(self) -> list[str] | None:
        """The names of the outputs of a functional model; None for other models."""
        return getattr(self.model, "output_names", None)

    def module(self) -> KerasVariables:
        """Return the variables as an NNX module, with the values in the Keras model."""
        weights = {id(variable) for layer in _layers_in(self.model) for variable in layer._trainable_variables}
        tree: dict[str, Any] = {}
        for parts, variable in self.places.items():
            *around, name = map(str, parts)
            node = tree
            for part in around:
                node = node.setdefault(part, {})
            node[name] = _as_nnx(variable, id(variable) in weights)
        return KerasVariables(tree)

    def call(self, module: KerasVariables, x: PyTree, training: bool, rngs: nnx.Rngs) -> PyTree:
        """Call the Keras model with the values in a module, and store the updated values there."""
        del rngs  # Keras keeps the states of random generators in variables
        model = self.model
        values = {id(variable): module.variable(parts) for parts, variable in self.places.items()}
        trained, others = (
            [values[id(variable)][...] for variable in variables]
            for variables in (model.trainable_variables, model.non_trainable_variables)
        )
        options = keywords_taken(model.call, {"training": training})
        outputs, after, losses = model.stateless_call(trained, others, x, return_losses=True, **options)
        for variable, value in zip(model.non_trainable_variables, after, strict=True):
            values[id(variable)].set_raw_value(value)
        context = call_context.current()
        if context is not None:
            context.losses.extend(losses)
            context.set_mask(outputs, jax.tree.map(_mask_of, outputs))
        return outputs

    def compile_arguments(self) -> dict[str, Any]:
        """Return the Keras model's arguments of `compile`, as objects of keras_dist of the same names."""
        try:
            config = self.model.get_compile_config()
            found = {name: deserialize_keras_object(value) for name, value in config.items() if name in _COMPILED}
        except (ConfigError, UnknownNameError, ValueError, TypeError) as error:
            summary = "compile: what the Keras model was compiled with is not known here"
            fix = 'pass them: model.compile(optimizer, loss="mse")'
            raise ModelError(summary, given=shorten(error), fix=fix) from error
        if not found:
            given = f"compile() of a model that was made of the keras model {self.model.name!r}"
            fix = 'for example model.compile("adam", loss="mse")'
            raise ModelError("compile without arguments: the Keras model is not compiled", given=given, fix=fix)
        return found

    def take(self, path: str, value: np.ndarray) -> None:
        """Set the variable at this path."""
        _set(self.places[tuple(path.split("/"))], value)


def held_on_host(model: Any) -> KerasModel:
    """Let the variables of a Keras model object hold copies on the host, so that no device holds a whole one."""
    _check(model)
    for variable in model.variables:
        _set(variable, np.array(variable.value))
    return KerasModel(model, _places(model.variables))


def added_loss(module: Any, batch: Batch, y_pred: PyTree, training: bool) -> jax.Array:
    """Return the loss of `compile` plus the losses of layers and regularizers added in this call."""
    context = call_context.current()
    if context is None or context.compiled_loss is None:
        raise RuntimeError("added_loss outside of a step")
    chosen = context.compiled_loss(batch, y_pred)
    losses = [*([] if chosen is None else [chosen]), *context.losses]
    if not losses:
        given = "compile without a loss, and no layer or regularizer of the Keras model that adds one"
        fix = 'for example model.compile("adam", loss="mse")'
        raise ModelError("there is nothing to minimise", given=given, fix=fix)
    return sum(losses[1:], losses[0])


def _check(model: Any) -> None:
    keras = sys.modules.get("keras")
    if keras is None or not isinstance(model, keras.Model):
        fix = "for a flax.nnx module Model.from_nnx; a model of keras_dist is used as it is"
        raise ModelError("from_keras: not a model of Keras 3", given=with_type(model), fix=fix)
    if keras.config.backend() != "jax":
        given = f"the keras model {model.name!r} on the backend {keras.config.backend()!r}"
        fix = f'os.environ["KERAS_BACKEND"] = "jax" before keras is imported; or {_FROM_CONFIG}'
        raise ModelError(f"from_keras: Keras runs on {keras.config.backend()}", given=given, fix=fix)
    if keras.config.is_nnx_enabled():
        given = "keras.config.is_nnx_enabled()"
        fix = f'leave out KERAS_NNX_ENABLED="true"; or {_FROM_CONFIG}'
        raise ModelError("from_keras: Keras's variables must not be NNX variables", given=given, fix=fix)
    unbuilt = [layer.name for layer in _layers_in(model) if not layer.built]
    if not model.built or len(unbuilt) == len(_layers_in(model)):
        given = f"a {type(model).__name__} that has seen no input"
        fix = "keras_model(x) with a batch of inputs, or keras_model.build((None, 28, 28, 1)), before from_keras"
        raise ModelError(f"from_keras: the Keras model {model.name!r} is not built", given=given, fix=fix)
    if keras.distribution.distribution() is not None or any(variable._layout for variable in model.variables):
        raise ModelError(
            "from_keras: a distribution of Keras is set, or was when the model was made",
            given=f"{keras.distribution.distribution() or 'variables with layouts of Keras'}",
            fix="make it without keras.distribution.set_distribution, and give the rules to kd.LayoutMap",
        )


def _layers_in(model: Any) -> list[Any]:
    return list(model._flatten_layers(include_self=True))


def _places(variables: list[Any]) -> dict[tree_paths.Parts, Any]:
    """The variables by the names in their paths, of which Keras may give one to several: `dense/kernel_1` then."""
    found: dict[tree_paths.Parts, Any] = {}
    around: set[tree_paths.Parts] = set()
    for variable in variables:
        parts, number = tuple(variable.path.split("/")), 0
        while parts in found or parts in around or any(parts[:end] in found for end in range(1, len(parts))):
            number += 1
            parts = tuple(f"{variable.path}_{number}".split("/"))
        found[parts] = variable
        around.update(parts[:end] for end in range(1, len(parts)))
    return found


def _as_nnx(variable: Any, is_weight: bool) -> nnx.Variable:
    value = variable.value
    if variable.name == "seed_generator_state":
        return nnx.RngState(value, tag="seed_generator_state")
    if not is_weight:
        return nnx.Variable(value)
    return nnx.Param(value, constraint=variable.constraint, is_frozen=not variable.trainable)


def is_trained(path: Any, variable: Any) -> bool:
    """Return whether a variable is trained; an NNX filter."""
    return isinstance(variable, nnx.Param) and not variable.get_metadata("is_frozen")


def _set(variable: Any, value: np.ndarray) -> None:
    variable._value = value  # `assign` would put it on a device, whole


def _mask_of(tensor: Any) -> Any:
    return sys.modules["keras.src.backend"].get_keras_mask(tensor)


@dataclasses.dataclass(frozen=True, eq=False)
class ModuleSource:
    """The module, or module factory, of a model, with the arguments of `Model.from_nnx`."""

    given: Any
    call: ModuleCall | None = None
    trainable: Trainable = None
    seed: int | None = None
    policy: DTypePolicy | None = None
    order: Sequence[str] | None = None  # paths in the order of `model.variables`; None for the order of the plan
    compute_loss: Callable[..., jax.Array] | None = None

    def __post_init__(self) -> None:
        if self.call is not None:
            check_callable("call", self.call, "module, x, training, rngs")
        check_is_ours("from_nnx: what was given", self.given)
        if self.seed is not None:
            random.check_seed(self.seed)
        if self._is_ready:
            if getattr(self.given, "_has_module", False) is True:
                raise module_is_apart(self.given.name)
            return
        check_is_no_function(self.given)
        if not callable(self.given):
            fix = "Model.from_nnx(lambda rngs: MyNet(rngs=rngs))"
            raise ModelError("from_nnx: neither a module nor a factory", given=with_type(self.given), fix=fix)

    @classmethod
    def of_keras(cls, source: KerasModel, seed: int | None) -> Self:
        """Create the source of a Keras model object; see `Model.from_keras`."""
        return cls(source.module(), source.call, is_trained, seed, None, source.paths, added_loss)

    @property
    def _is_ready(self) -> bool:
        return isinstance(self.given, nnx.Module)

    def forward(self, asked: Distribution | None) -> Forward:
        """Return the abstract forward pass under a distribution."""
        graph, _, found = self._traced(asked, needs_values=False)
        precision = self._precision
        seed = random.current_seed() if self.seed is None else self.seed
        return Forward(
            graph=graph,
            call=self.call,
            distribution=distribution_now(found),
            seed=seed,
            compute_loss=self.compute_loss,
            precision=precision,
        )

    def build(self, asked: Distribution | None) -> BuiltModel:
        """Create the weights under a distribution, by default on the first device."""
        check_not_forked()
        if asked is not None and asked.is_searched:
            raise no_layout_yet("a model of from_nnx or from_keras that has seen no batch")
        seed = random.next_seed() if self.seed is None else self.seed
        graph, state_or_init, found = self._traced(asked)
        distribution = distribution_now(found)
        plan = distribution.plan_variables(graph.specs, graph.treedef)
        if self._is_ready:
            check_agreement(
                "take weights",
                plan.mesh,
                lambda: {
                    **facts_of_config("module", self.given),
                    **facts_of_plan(plan, seed),
                    **facts_of_values(plan, state_or_init),
                },
            )
            state = plan.place(state_or_init)
        else:
            state = initial_state(plan, state_or_init, seed)
        cell, module = StateCell.of_own_module(graph, plan, state)
        return BuiltModel(
            cell=cell,
            call=self.call,
            distribution=distribution,
            seed=seed,
            model=module,
            order=self.order,
            compute_loss=self.compute_loss,
            precision=self._precision,
        )

    @property
    def _precision(self) -> Any:
        return None if self.policy is None else precision_of_modules(self.policy)

    def _traced(
        self, asked: Distribution | None, *, needs_values: bool = True
    ) -> tuple[ModuleGraph, Any, Distribution | None]:
        """Return the graph, the state or its initializer, and the distribution."""
        if self._is_ready:
            graph, state = split_module(self.given, self.trainable, needs_values=needs_values)
            return graph, state, distribution_of_graph(asked, None, graph)

        def trace(distribution: Distribution) -> tuple[ModuleGraph, Callable[[ArrayLike], PyTree]]:
            return traced_in(distribution, None, lambda: trace_factory(self.given, self.trainable))

        graph, init = trace(distribution_now(asked))
        found = distribution_of_graph(asked, None, graph)
        if found is not asked and found is not None:
            graph, init = trace(found)
        return graph, init, found


def module_is_apart(name: str) -> ModelError:
    """Return the error for a model of a module that is used as if it were the module."""
    given = "a model of from_nnx or from_keras, passed to a function of flax.nnx, to from_nnx or to another model"
    fix = "pass model.module: nnx.grad(loss)(model.module), Model.from_nnx(model.module), layers.NNXLayer(model.module)"
    return ModelError(f"model {name!r} is not the module that it trains, and does not contain it", given=given, fix=fix)
