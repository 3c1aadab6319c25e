"""The distribution of a model and the layouts of its arrays, chosen and planned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from keras_dist._support.types import PyTree
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.strategy import Distribution, check_distribution
from keras_dist.errors import ModelError
from keras_dist.models.model_base import ModelBase

if TYPE_CHECKING:
    from keras_dist.planner import PlanReport, Target


def distribution(model: ModelBase) -> Distribution:
    """The distribution of the model, as it was when its weights were created or moved."""
    return model._with_weights().distribution


def layout_plan(model: ModelBase) -> LayoutPlan:
    """The layout of every variable; printed as a table."""
    return model._with_weights().cell.plan


def state_plan(model: ModelBase) -> LayoutPlan:
    """The layout of the whole training state: variables, optimizer slots, the step."""
    return model._with_weights().cell.state_plan


def redistribute(model: ModelBase, distribution: Distribution) -> None:
    """Move the model and its training state to another distribution.

    Raises:
        DistributionError: `distribution` is not a distribution.
        LayoutError: its rules cannot be applied; the model keeps its layouts.
        ModelError: fit is running, or another model shares layers.
    """
    model._check_idle("redistribute")
    model._with_weights().redistribute(check_distribution("distribution", distribution))
    model._record.made_under = distribution


def plan(
    model: ModelBase,
    x: Any = None,
    y: PyTree = None,
    sample_weight: PyTree = None,
    distribution: Distribution | None = None,
    target: str | Target | None = None,
    *,
    remat: str | None = None,
    slot_memory: Literal["pinned_host"] | None = None,
    compiles: bool = True,
    timeout_seconds: float = 600,
    flash_attention: bool = False,
) -> PlanReport:
    """Report memory and communication of the train step for a batch, without running it; see `keras_dist.plan`.

    Args:
        x: a batch of inputs: arrays or `jax.ShapeDtypeStruct`s, or a dict, list or tuple of them. By default the
            batch is of the running or last `fit`.
        y: targets of the batch.
        sample_weight: weights of the batch.
        distribution: by default the distribution of the model.
        target: the machine for which the report is made, such as `"v5p:4x4x4"`; `"here"` for the devices of the
            model, if their figures are known.
        remat: replaces `remat` of `compile`.
        slot_memory: replaces `slot_memory` of `compile`.
        compiles: whether the step is compiled for the target.
        timeout_seconds: time limit of the compilation [s].
        flash_attention: whether the machine will compute attention without storing scores; see `keras_dist.plan`.

    Raises:
        ModelError: the model is not compiled; or there is neither a batch nor a `fit`.
    """
    from keras_dist import planner  # noqa: PLC0415  # loads pydantic, in 0.3 s

    model._check_compiled("plan")
    batch = model._record.batch if x is None else (model._prepared(x), y, sample_weight)
    if batch is None:
        fix = "model.plan(x, y), or model.plan() after fit"
        raise ModelError("plan needs a batch", given="x=None, before the first fit", fix=fix)
    if target == "here":
        target = planner.target_of(model.distribution.device_mesh.backend_mesh.devices.flat)
    options: Any = {"target": target, "remat": remat, "compiles": compiles, "timeout_seconds": timeout_seconds}
    options |= {"flash_attention": flash_attention, "slot_memory": slot_memory}
    return planner.plan(model, batch, distribution, **options)
