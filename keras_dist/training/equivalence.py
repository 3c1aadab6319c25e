"""`check_equivalence`: compare a model on several distributions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from keras_dist import random
from keras_dist._support.types import PyTree
from keras_dist.data.arrays import ArraySource
from keras_dist.distribution.placement import host_copy
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.tracing import traced_in
from keras_dist.errors import EquivalenceError, ModelError, shorten, type_name
from keras_dist.training.graph import trace_factory
from keras_dist.training.objective import Objective, resolve_objective
from keras_dist.training.step import Forward, ModuleCall
from keras_dist.training.uneven_rows import real_rows, rows_multiple


@dataclasses.dataclass(frozen=True)
class EquivalenceReport:
    """The differences between distributions; the first one is the reference.

    Attributes:
        distributions: the distributions.
        losses: loss of one step on each of them.
        largest_gradient_difference: over all variables and distributions, relative to the largest gradient.
    """

    distributions: tuple[Distribution, ...]
    losses: tuple[float, ...]
    largest_gradient_difference: float


@dataclasses.dataclass(frozen=True)
class _Outcome:
    values: dict[str, np.ndarray]
    loss: float
    gradients: dict[str, np.ndarray]


def check_equivalence(
    factory: Callable[..., nnx.Module],
    batch: tuple[PyTree, ...],
    loss: PyTree,
    distributions: Sequence[Distribution],
    *,
    call: ModuleCall | None = None,
    seed: int = 0,
    tolerance: float = 1e-5,
) -> EquivalenceReport:
    """Check that a model is the same on every distribution: initial values, the loss of one step, its gradients.

    Args:
        factory: callable `factory(rngs=rngs)` that returns an NNX module.
        batch: `(x, y)` or `(x, y, sample_weight)`.
        loss: as for `Model.compile`.
        distributions: two or more distributions; the first is the reference.
        call: as for `Model.from_nnx`.
        seed: fixes initial values and Dropout.
        tolerance: for the loss, relative to it, and for gradients, relative to the largest gradient of the reference.
            Initial values must be bitwise equal.

    Raises:
        EquivalenceError: values differ, or the loss is not finite. The error names the first variable and both
            distributions.
        ModelError: there are fewer than two distributions, or an argument cannot be used.
    """
    _check_arguments(factory, batch, distributions)
    if len(distributions) < 2:
        summary = "check_equivalence has nothing to compare"
        fix = "put the one-device distribution first: DataParallel(devices=list_devices()[:1])"
        raise ModelError(summary, given=f"{len(distributions)} distribution(s)", fix=fix)
    seed = random.check_seed(seed)
    objective = resolve_objective(loss)
    reference, *others = (_run(factory, batch, objective, d, call, seed) for d in distributions)
    if not np.isfinite(reference.loss):
        given = f"{reference.loss!r} on {distributions[0]}"
        fix = "look at the batch and the loss: labels out of range, log of 0, or an overflow"
        raise EquivalenceError("the loss of one step is not finite", given=given, fix=fix)
    largest = max((float(np.max(np.abs(g), initial=0)) for g in reference.gradients.values()), default=0.0)
    worst = 0.0
    for distribution, other in zip(distributions[1:], others, strict=True):
        there, here = f" on {distribution}", f" as on {distributions[0]}"
        for path in dict.fromkeys((*reference.values, *other.values)):
            value, found = reference.values.get(path), other.values.get(path)
            if value is None or found is None or found.shape != value.shape or found.tobytes() != value.tobytes():
                summary = f"the initial value of {path!r} differs"
                expected = f"{_describe(value)}{here}, bit for bit"
                fix = "compute initial values from `rngs` and shapes only, not from devices, the mesh or the process"
                raise EquivalenceError(summary, given=_describe(found) + there, expected=expected, fix=fix)
        difference = abs(other.loss - reference.loss) / max(1.0, abs(reference.loss))
        given, expected = f"{other.loss!r}{there}", f"{reference.loss!r}{here}"
        _check_near("the loss of one step", difference, tolerance, given, expected)
        for path, gradient in reference.gradients.items():
            difference = float(np.max(np.abs(other.gradients[path] - gradient), initial=0)) / (largest or 1.0)
            given = f"a difference of {difference:.2e} of the largest gradient{there}"
            _check_near(f"the gradient of {path!r}", difference, tolerance, given, f"the gradient{here}")
            worst = max(worst, difference)
    return EquivalenceReport(tuple(distributions), (reference.loss, *(o.loss for o in others)), worst)


def _check_arguments(factory: Any, batch: Any, distributions: Any) -> None:
    problem = None
    if isinstance(factory, nnx.Module) or not callable(factory):
        problem = "factory", factory, "a callable factory(rngs=rngs): each distribution needs a separate module"
    elif not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
        problem = "batch", batch, "(x, y) or (x, y, sample_weight)"
    elif not isinstance(distributions, Sequence) or not all(isinstance(d, Distribution) for d in distributions):
        problem = "distributions", distributions, "a list of Distributions"
    if problem is not None:
        argument, value, expected = problem
        summary = f"check_equivalence: `{argument}` must be {expected}"
        fix = "check_equivalence(lambda rngs: MyNet(rngs=rngs), (x, y), loss, [distribution, another])"
        raise ModelError(summary, given=f"{shorten(value)} of type {type_name(value)}", fix=fix)


def _run(
    factory: Callable[..., nnx.Module],
    batch: tuple[PyTree, ...],
    objective: Objective,
    distribution: Distribution,
    call: ModuleCall | None,
    seed: int,
) -> _Outcome:
    with distribution.scope():
        graph, init = trace_factory(factory, None)
        plan = distribution.plan_variables(graph.specs, graph.treedef)
        leaves = jax.tree.leaves(plan.init(init, np.uint32(seed)))
        forward = Forward(graph=graph, call=call, distribution=distribution, seed=seed, plan=plan)
        source = ArraySource(*batch)
        rows = source.whole(rows_multiple(source.x, distribution))

        def loss_of(trainable: PyTree, rest: PyTree, arrays: PyTree) -> jax.Array:
            real = real_rows(arrays, rows.rows, distribution)
            y_pred, _ = forward(trainable, rest, 0, real[0], True)
            return objective.losses(real, y_pred)["loss"]

        arrays = jax.tree.map(
            lambda leaf: jax.device_put(leaf, distribution.get_data_layout(leaf.shape).backend_layout), rows.arrays
        )
        program = jax.jit(jax.value_and_grad(loss_of))
        value, gradients = traced_in(distribution, rows.rows, lambda: program(*graph.nest(leaves), arrays))
    paths = [spec.path for spec in graph.specs]
    gradient_paths = jax.tree.leaves(graph.nest(paths)[0])
    return _Outcome(
        {path: host_copy(leaf) for path, leaf in zip(paths, leaves, strict=True)},
        float(value),
        {path: host_copy(leaf) for path, leaf in zip(gradient_paths, jax.tree.leaves(gradients), strict=True)},
    )


def _check_near(what: str, difference: float, tolerance: float, given: str, expected: str) -> None:
    if not difference <= tolerance:
        fix = "look for code that depends on devices, the mesh or the process"
        raise EquivalenceError(f"{what} differs", given=given, expected=f"{expected}, within {tolerance}", fix=fix)


def _describe(value: np.ndarray | None) -> str:
    if value is None:
        return "none"
    flat = value.reshape(-1)
    return f"shape {value.shape}, first element {flat[0] if flat.size else 'none'}"
