"""`ModuleSource`: the `flax.nnx` module, or module factory, of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx

from keras_dist import random
from keras_dist._support.arguments import check_callable
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.distribution.devices import check_not_forked
from keras_dist.distribution.jobs.consistency import check_agreement, facts_of_config, facts_of_plan, facts_of_values
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.tracing import traced_in
from keras_dist.errors import ModelError, with_type
from keras_dist.layers.module_precision import precision_of_modules
from keras_dist.layers.other_frameworks import check_is_no_function, check_is_ours
from keras_dist.mixed_precision import DTypePolicy
from keras_dist.models.keras_models import KerasModel, added_loss, is_trained
from keras_dist.models.model_distribution import distribution_now, initial_state, no_layout_yet, place_of
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.graph import ModuleGraph, Trainable, split_module, trace_factory
from keras_dist.training.state_cell import StateCell
from keras_dist.training.step import Forward, ModuleCall


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
    def of_keras(cls, source: KerasModel, seed: int | None) -> ModuleSource:
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
        return Forward(graph, self.call, distribution_now(found), seed, self.compute_loss, precision=precision)

    def session(self, asked: Distribution | None) -> BuiltModel:
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
            cell, self.call, distribution, seed, module, self.order, self.compute_loss, precision=self._precision
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
            return graph, state, place_of(asked, None, graph)

        def trace(distribution: Distribution) -> tuple[ModuleGraph, Callable[[ArrayLike], PyTree]]:
            return traced_in(distribution, None, lambda: trace_factory(self.given, self.trainable))

        graph, init = trace(distribution_now(asked))
        found = place_of(asked, None, graph)
        if found is not asked and found is not None:
            graph, init = trace(found)
        return graph, init, found


def module_is_apart(name: str) -> ModelError:
    """Return the error for a model of a module that is used as if it were the module."""
    given = "a model of from_nnx or from_keras, passed to a function of flax.nnx, to from_nnx or to another model"
    fix = "pass model.module: nnx.grad(loss)(model.module), Model.from_nnx(model.module), layers.NNXLayer(model.module)"
    return ModelError(f"model {name!r} is not the module that it trains, and does not contain it", given=given, fix=fix)
