"""`plan`: what a train step needs, before it runs, on devices that need not exist."""

from __future__ import annotations

from typing import Any

from keras_dist._types import PyTree
from keras_dist.distribution.strategy import Distribution
from keras_dist.planner.origins import activations
from keras_dist.planner.propagation import propagate
from keras_dist.planner.report import PlanReport
from keras_dist.planner.reshards import hidden_reshards
from keras_dist.planner.tracing import trace_step


def plan(
    model_or_factory: Any,
    batch: PyTree,
    distribution: Distribution | None = None,
    optimizer: Any = None,
    loss: Any = None,
) -> PlanReport:
    """Say where the arrays of a train step would live, what it would move between devices, and what it computes.

    Nothing is allocated, compiled or run, and the devices of the mesh need not exist: a model may be far larger than
    this machine.

    Args:
        model_or_factory: a `keras_dist.Model` or a `flax.nnx.Module`, whose weights are not looked at; or what makes
            one: `factory()`, which is called under the distribution, or `factory(rngs=rngs)`.
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`: arrays or `jax.ShapeDtypeStruct`s, or pytrees of them.
        distribution: by default that of the model, else the current one.
        optimizer: in place of that of `compile`; without any `"adam"`, and the report says so.
        loss: in place of that of `compile`; without any the mean of the outputs, and the report says so.

    Raises:
        DataError: the arrays of the batch have different lengths, or the loss needs targets that are not there.
        LayoutError: the layout rules cannot be applied.
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
    program = trace_step(model_or_factory, batch, distribution, optimizer, loss)
    step = propagate(program.lowered)
    problems = (*program.state.problems, *hidden_reshards(step))
    return PlanReport(program.state, program.batch, step, activations(program), problems, program.assumed)
