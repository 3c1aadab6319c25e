"""The training state, and the optimizers of a model by name, each with its variables."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Self

import jax
import optax
from flax import traverse_util

from keras_dist import optimizers
from keras_dist._support import tree_paths
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.errors import ModelError, nearest, unknown_name_error
from keras_dist.optimizers.host_slots import on_device, update_in_turn
from keras_dist.optimizers.whole_matrices import Placement
from keras_dist.training.activations import optimizer_scope
from keras_dist.training.graph import ModuleGraph, compile_rule


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The state that a training carries from step to step: pytrees of arrays, laid out as planned.

    Attributes:
        trainable: trained variables, as nested dicts of attribute names.
        rest: all other variables: frozen parameters, statistics, RNG streams, buffers.
        slots: state of each optimizer by name.
        step: number of steps taken, a scalar.
    """

    trainable: Any
    rest: Any
    slots: dict[str, Any]
    step: Any

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values of some attributes."""
        return dataclasses.replace(self, **changes)


DEFAULT = "optimizer"  # the name of the only optimizer of an ordinary model


@dataclasses.dataclass(frozen=True, eq=False)
class Optimizer:
    """An optimizer and the names of the variables it updates."""

    transformation: optimizers.Optimizer | optimizers.OptaxOptimizer
    parts: frozenset[tree_paths.Parts]

    def select(self, trainable: PyTree) -> PyTree:
        """Return the variables that the optimizer updates, as nested dicts."""
        flat = traverse_util.flatten_dict(trainable)
        return traverse_util.unflatten_dict({parts: leaf for parts, leaf in flat.items() if parts in self.parts})


def joined(one: PyTree, other: PyTree) -> PyTree:
    """Return the entries of both nested dicts; `other` takes precedence."""
    return traverse_util.unflatten_dict({**traverse_util.flatten_dict(one), **traverse_util.flatten_dict(other)})


def as_optimizer(given: Any, name: str) -> optimizers.Optimizer | optimizers.OptaxOptimizer:
    """Return the argument `optimizer` of `compile` as an optimizer with variables."""
    if isinstance(given, optimizers.OptaxOptimizer):
        return given
    found = optimizers.get(given)
    if found is None:
        raise ModelError("`optimizer` is missing", given="optimizer=None", fix='for example optimizer="adam"')
    return found if isinstance(found, optimizers.Optimizer) else optimizers.OptaxOptimizer(found, name)


def resolve_optimizers(given: Any, graph: ModuleGraph) -> dict[str, Optimizer]:
    """Resolve `compile(optimizer=...)` to optimizers by name, with their part of the trained variables of a graph."""
    names = dict(zip(graph.parts, graph.dim_names, strict=True))
    parts = [one for one, is_trained in zip(graph.parts, graph.trained, strict=True) if is_trained]
    if not isinstance(given, Mapping) or optimizers.is_config(given):
        named = {DEFAULT: Optimizer(as_optimizer(given, DEFAULT), frozenset(parts))}
    elif not given:
        fix = 'for example optimizer={"generator": "adam", "discriminator": "adam"}'
        raise ModelError("`optimizer` is an empty dict", given="optimizer={}", fix=fix)
    else:
        named = {name: _named(name, entry, parts) for name, entry in given.items()}
    _check_pairs(named)
    for one in named.values():
        one.transformation.know_dims({tree_paths.join(p): names[p] for p in one.parts})
    return named


def kinds_of_updates(named: Mapping[str, Optimizer], graph: ModuleGraph) -> dict[str, str]:
    """Return how each weight is updated, by its path."""
    shapes = {parts: spec.shape for parts, spec in zip(graph.parts, graph.specs, strict=True)}
    pairs = [(one.transformation, parts) for one in named.values() for parts in shapes if parts in one.parts]
    return {(path := tree_paths.join(parts)): of.kind_of(path, shapes[parts]) for of, parts in pairs}


def apply_gradients(
    state: TrainState,
    named: Mapping[str, Optimizer],
    grads: PyTree,
    name: str | None = None,
    *,
    value: jax.Array | None = None,
    value_fn: Callable[[PyTree], jax.Array] | None = None,
    batch_weight: ArrayLike | None = None,
    placements: Mapping[str, Placement] | None = None,
) -> TrainState:
    """Return `state` after one update by the optimizer `name`, or by all.

    `value` is the loss, and `value_fn` the loss as a function of all trained variables, for line searches (lbfgs).
    `batch_weight` is the weight of the gradients if they are accumulated, `placements` tells where they are, by path.
    """
    if name is not None and name not in named:
        raise unknown_name_error("unknown optimizer", name, named, error=ModelError)
    trainable, slots = state.trainable, dict(state.slots)
    for key in [name] if name is not None else list(named):
        optimizer = named[key]
        part = _gradients_of(optimizer, grads)
        extra = {}
        if value_fn is not None:
            extra = {"value": value, "grad": part, "value_fn": lambda params: value_fn(joined(state.trainable, params))}
        if batch_weight is not None:
            extra["batch_weight"] = batch_weight
        if placements and isinstance(optimizer.transformation, optimizers.Optimizer):
            extra["placements"] = placements
        update = functools.partial(_updated, optimizer, extra)
        with optimizer_scope(key):
            params, slots[key] = update_in_turn(update, part, slots[key], optimizer.select(trainable))
        trainable = joined(trainable, params)
    return state.replace(trainable=trainable, slots=slots)


def _updated(
    optimizer: Optimizer, extra: Mapping[str, Any], grads: PyTree, slots: PyTree, params: PyTree
) -> tuple[PyTree, PyTree]:
    """Return the variables and the slots after a step of one optimizer."""
    updates, slots = optimizer.transformation.update(grads, slots, params, **extra)
    return optax.apply_updates(params, updates), slots


def scale_loss(named: Mapping[str, Optimizer], loss: jax.Array, slots: Mapping[str, PyTree]) -> Any:
    """Scale the loss before differentiation, so that gradients do not vanish in half precision."""
    name, optimizer = next(iter(named.items()))
    scaling = optimizer.transformation
    return scaling.scale_loss(loss, slots[name]) if isinstance(scaling, optimizers.Optimizer) else loss


def check_loss_scales(named: Mapping[str, Optimizer]) -> None:
    """Check that all optimizers scale the loss alike."""
    dynamic = [name for name, one in named.items() if isinstance(one.transformation, optimizers.LossScaleOptimizer)]
    if dynamic and len(named) > 1:
        summary = f"optimizer {dynamic[0]!r} scales the loss, which it shares with other optimizers"
        fix = "give all of them the same loss_scale_factor instead, and compile(..., auto_scale_loss=False)"
        raise ModelError(summary, given=f"a LossScaleOptimizer among {list(named)}", fix=fix)
    scales = {name: getattr(optimizer.transformation, "loss_scale_factor", None) for name, optimizer in named.items()}
    if len(set(scales.values())) > 1:
        summary = "the optimizers scale one loss by different factors"
        given = ", ".join(f"{name}: loss_scale_factor={scale}" for name, scale in scales.items())
        raise ModelError(summary, given=given, fix="give all of them one factor, or none")


@contextlib.contextmanager
def scaling_checked(given: Iterable[Any]) -> Generator[None]:
    """Context manager: raise unless optimizers that unscale gradients have scaled the loss."""
    scaling = [one for one in given if getattr(one, "scales_loss", False)]
    for optimizer in scaling:
        optimizer._has_scaled = False
    yield
    for optimizer in scaling:
        if not optimizer._has_scaled:
            raise ModelError(
                "train_step takes gradients of a loss that is not scaled",
                given=f"the optimizer {optimizer.name!r}, which divides gradients by its loss scale",
                fix="differentiate self.optimizer.scale_loss(loss), in a pure train_step "
                'model.optimizer.scale_loss(loss, state.slots["optimizer"]); or '
                "compile(..., auto_scale_loss=False)",
            )


def finalize(state: TrainState, named: Mapping[str, Optimizer]) -> PyTree:
    """Return the trained variables at the end of a training: their averages, if an optimizer keeps them."""
    trainable = state.trainable
    for name, optimizer in named.items():
        if isinstance(optimizer.transformation, optimizers.Optimizer):
            final = optimizer.transformation.finalize(on_device(state.slots[name]), optimizer.select(trainable))
            trainable = joined(trainable, final)
    return trainable


def _gradients_of(optimizer: Optimizer, grads: PyTree) -> PyTree:
    """Return the gradients of the variables that the optimizer updates."""
    flat_grads = traverse_util.flatten_dict(grads)
    missing = [tree_paths.join(parts) for parts in optimizer.parts if parts not in flat_grads]
    if missing:
        summary = "apply_gradients: gradients are missing"
        fix = "differentiate with respect to all of state.trainable, or the part the optimizer updates"
        raise ModelError(summary, given=f"no gradient for {sorted(missing)[:5]}", fix=fix)
    return optimizer.select(grads)


def _check_pairs(named: Mapping[str, Optimizer]) -> None:
    """Check that optimizers are distinct objects and update distinct variables."""
    for (one, first), (other, second) in itertools.combinations(named.items(), 2):
        if first.transformation is second.transformation:
            summary = f"optimizers {one!r} and {other!r} are one object"
            fix = "make another: type(optimizer).from_config(optimizer.get_config())"
            raise ModelError(summary, given=f"{first.transformation!r} twice", fix=fix)
        if both := first.parts & second.parts:
            summary = f"optimizers {one!r} and {other!r} both update {min(map(tree_paths.join, both))!r}"
            given = f"rules that share {len(both)} variable(s)"
            raise ModelError(summary, given=given, fix=f"make the rule of {one!r} or of {other!r} more specific")


def _named(name: str, entry: Any, parts: list[tree_paths.Parts]) -> Optimizer:
    if isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[1], str):
        transformation, rule = as_optimizer(entry[0], name), entry[1]
        pattern = compile_rule(rule, f"optimizer[{name!r}]")
        chosen = [p for p in parts if pattern.fullmatch(tree_paths.join(p))]
    else:
        transformation, rule = as_optimizer(entry, name), f"{name}/.*"
        chosen = [p for p in parts if p[0] == name]
    if not chosen:
        paths = [tree_paths.join(p) for p in parts]
        near = nearest(rule, paths)
        fix = f"optimizer={{{name!r}: (optimizer, rule)}} with a rule for some of {paths[:6]}"
        fix += f"; the nearest path is {near!r}" if near else ""
        raise ModelError(f"optimizer {name!r} updates no variable", given=f"variables {rule!r}", fix=fix)
    return Optimizer(transformation, frozenset(chosen))
