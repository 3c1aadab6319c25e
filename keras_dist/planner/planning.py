"""`plan`: what a train step needs, before it runs, on devices that need not exist."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from keras_dist._support.types import PyTree
from keras_dist.distribution.data_parallel import DataParallel
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.planner.hidden_reshards import hidden_reshards
from keras_dist.planner.origins import activations
from keras_dist.planner.propagation import propagate
from keras_dist.planner.report import PlanReport
from keras_dist.planner.resharding_hints import remedy
from keras_dist.planner.targets import Target, as_target, devices
from keras_dist.planner.theory import theory_of
from keras_dist.planner.tracing import Traceable, trace_step
from keras_dist.planner.verdict import judge


def plan(
    model_or_factory: Any,
    batch: PyTree,
    distribution: Distribution | None = None,
    optimizer: Any = None,
    loss: Any = None,
    target: str | Target | None = None,
    *,
    compiles: bool = True,
    timeout_seconds: float = 600,
) -> PlanReport:
    """Say where the arrays of a train step would live, what it would move between devices, and what it costs.

    Nothing is allocated or run, and the devices of the mesh need not exist: a model may be far larger than this
    machine. Each figure of the report says from which of three tiers it is: *exact*, from the layout plan;
    *propagated*, from the lowered step as JAX's partitioner Shardy understands it; *compiled*, from what XLA makes of
    it for a target.

    Args:
        model_or_factory: a `keras_dist.Model` or a `flax.nnx.Module`, whose weights are not looked at; or what makes
            one: `factory()`, which is called under the distribution, or `factory(rngs=rngs)`.
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`: arrays or `jax.ShapeDtypeStruct`s, or pytrees of them.
        distribution: by default that of the model, else the current one.
        optimizer: in place of that of `compile`; without any `"adam"`, and the report says so.
        loss: in place of that of `compile`; without any the mean square of the outputs, and the report says so.
        target: the machine it is meant for, such as `"v5p:4x4x4"`; see `planner.target`. The report says then whether
            the step fits and how long it takes at least. Without a distribution, data parallel on all of its devices.
        compiles: whether the step is compiled for the target, in a process of its own; needs the extra `tpu` or `cuda`,
            without which the other tiers remain.
        timeout_seconds: after which compiling is given up; the other tiers remain.

    Raises:
        ConfigError: the target is none.
        DataError: the arrays of the batch have different lengths, or the loss needs targets that are not there.
        LayoutError: the layout rules cannot be applied.
        MeshError: the mesh has another number of devices than the target.
        ModelError: there is no model, or it does not take the batch.

    Example:
        >>> import jax, keras_dist as kd
        >>> devices = [f"tpu:{index}" for index in range(1024)]
        >>> mesh = kd.DeviceMesh("data=64,model=16", devices=devices)
        >>> rules = kd.LayoutMap(mesh)
        >>> rules["up/kernel"], rules["down/kernel"] = (None, "model"), ("model", None)
        >>> def factory():
        ...     up = kd.layers.Dense(65536, "relu", use_bias=False, name="up")
        ...     return kd.Sequential([kd.Input((16384,)), up, kd.layers.Dense(16384, use_bias=False, name="down")])
        >>> x = jax.ShapeDtypeStruct((4096, 16384), "float32")
        >>> report = kd.plan(factory, (x, x), kd.ModelParallel(rules), "adam", "mse")
        >>> report.nbytes_by_role["parameter"] == 4 * 2 * 16384 * 65536 // 16
        True
    """
    machine = None if target is None else as_target(target)
    if machine is not None and distribution is None and not _has_place(model_or_factory):
        distribution = DataParallel(DeviceMesh({"batch": machine.device_count}, devices=devices(machine)))
    platform = None if machine is None else machine.platform
    program = trace_step(model_or_factory, batch, distribution, optimizer, loss, platform=platform)
    step = propagate(program.lowered)
    problems = (
        *program.state.problems,
        *hidden_reshards(step, functools.partial(remedy, program), _rule_of(program.distribution)),
    )
    verdict, theory = None, theory_of(program.state, program.distribution)
    if machine is not None:
        verdict = judge(program, step, machine, compiles=compiles, timeout_seconds=timeout_seconds)
    return PlanReport(
        program.state, program.batch, step, activations(program), problems, program.assumed, verdict, theory
    )


def _has_place(model_or_factory: Any) -> bool:
    """Whether something says already on which devices a model is to live."""
    return isinstance(model_or_factory, Traceable) or current_distribution() is not None


def _rule_of(distribution: Distribution) -> Callable[[str], str | None]:
    rules = distribution.layout_map
    return (lambda path: None) if rules is None else rules.match
