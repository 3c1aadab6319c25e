"""Values that `compile(report=...)` logs beside loss and metrics."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.errors import ModelError, shorten, unknown_name_error, with_type
from keras_dist.optimizers.host_slots import on_device
from keras_dist.training.accumulators import Count, Latest, OpenMean
from keras_dist.training.objective import Objective
from keras_dist.training.optimization import DEFAULT, Optimizer
from keras_dist.training.train_state import TrainState

NAMES = ("gradient_norm", "learning_rate", "tokens_per_second", "examples_per_second")


def check_report(report: Any, has_own_step: bool) -> tuple[str, ...]:
    """Return the names in the argument `report` of `compile`."""
    names = () if report is None else (report,) if isinstance(report, str) else report
    if not isinstance(names, Collection) or isinstance(names, Mapping):
        fix = f"for example report=['gradient_norm']; there are {', '.join(map(repr, NAMES))}"
        raise ModelError("`report` must be a list of names", given=f"report={with_type(report)}", fix=fix)
    for name in names:
        if name not in NAMES:
            given = f"report={shorten(report)}"
            raise unknown_name_error("`report` has an unknown name", name, NAMES, given=given, error=ModelError)
    if names and has_own_step:
        fix = "leave it out, and log {'gradient_norm': optax.tree.norm(grads)} in train_step"
        raise ModelError("`report` goes with the train step of `compile`", given=f"report={shorten(report)}", fix=fix)
    return tuple(dict.fromkeys(names))


def reported(
    names: Collection[str],
    objective: Objective,
    optimizers: Mapping[str, Optimizer],
    states: tuple[TrainState, TrainState],
    grads: PyTree,
    batch: tuple[PyTree, PyTree, PyTree],
    outputs: tuple[PyTree, PyTree],
    batch_weight: ArrayLike | None,
) -> dict[str, Any]:
    """Return the values of one step by name (traced), from the states before and after it."""
    before, after = states
    found: dict[str, Any] = {}
    for name in names:
        if name == "gradient_norm":
            weight = 1.0 if batch_weight is None else batch_weight
            norms = [
                one.transformation.squared_norm(one.select(grads), on_device(before.slots[key]), weight)
                for key, one in optimizers.items()
            ]
            squared = sum((jnp.where(is_due, norm, 0.0) for norm, is_due in norms), jnp.zeros((), jnp.float32))
            is_due = jnp.any(jnp.array([is_due for _, is_due in norms]))
            found[name] = OpenMean(jnp.sqrt(squared), is_due.astype(jnp.float32))
        elif name == "learning_rate":
            for key, one in optimizers.items():
                rate = one.transformation.rate_of_step(before.slots[key], after.slots[key])
                found[name if key == DEFAULT else f"{key}_{name}"] = Latest(jnp.asarray(rate, jnp.float32))
        elif name == "tokens_per_second":
            found[name] = Count(objective.tokens(batch, *outputs))
        else:
            found[name] = Count(float(len(jax.tree.leaves(batch[0])[0])))
    return found
