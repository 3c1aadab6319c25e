"""`Pipeline`: the schedule of a stack of layers whose leading dim is sharded over an axis of the mesh.

Compiled steps make their plan known to layers in `trace_context`, as `jax.set_mesh` does with the mesh.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Sequence

from keras_dist.distribution import trace_context
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.mesh import DeviceMesh, axis_tuple
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.errors import DistributionError


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The pipeline of a stack of layers, an equal part on each stage; micro-batches pass from stage to stage."""

    layer: str  # path of the layers
    axis: Axis  # the mesh axis, or axes, of the stages
    stages: int  # number of stages
    micro_batches: int  # number of parts of a batch
    repeats: int = 1  # times that each micro-batch passes all stages: 1 for GPipe, more for a circular schedule

    @property
    def schedule(self) -> str:
        """`"gpipe"` or `"circular"`."""
        return "gpipe" if self.repeats == 1 else "circular"

    @property
    def turns(self) -> int:
        """Number of turns of a forward pass; in each turn, a stage computes at most one micro-batch."""
        return (self.repeats - 1) * self.period + self.micro_batches + self.stages - 1

    @property
    def period(self) -> int:
        """Number of turns after which a micro-batch begins to pass the stages again."""
        return max(self.micro_batches, self.stages)

    @property
    def bubble(self) -> float:
        """Share of the turns in which a stage has nothing to compute."""
        return 1 - self.repeats * self.micro_batches / self.turns

    def __str__(self) -> str:
        axes = " x ".join(map(repr, axis_tuple(self.axis)))
        schedule = self.schedule + (f" of {self.repeats} repeats" if self.repeats > 1 else "")
        return (
            f"{self.layer!r} over {axes}: {self.stages} stages, {self.micro_batches} micro-batches, {schedule}, "
            f"{self.turns} turns, bubble {self.bubble:.1%}"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Pipelining:
    """Where weights are in a step that is traced, and the number of parts of a batch."""

    plan: LayoutPlan
    batch_axes: tuple[str, ...]
    micro_batches: int | None

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh of the step."""
        return self.plan.mesh

    def stage_axis(self, weights: Sequence[str], dim: int) -> Axis:
        """Return the axes over which a dim of these weights is sharded; None for none."""
        found: dict[Axis, str] = {}
        known = {row.path: row.compute_axes for row in self.plan.rows}
        for path in weights:
            axis = known[path][dim] if path in known else None
            if axis is not None:
                found.setdefault(axis, path)
        if len(found) > 1:
            summary = "the weights of a stack of layers are sharded over different axes along its leading dim"
            given = ", ".join(f"{path!r} over {axis!r}" for axis, path in found.items())
            raise DistributionError(summary, given=given, fix="write one axis of stages in the rules of all of them")
        return next(iter(found), None)


def current_pipelining() -> Pipelining | None:
    """Return what layers need for a pipeline in the step that is traced; None outside of compiled steps."""
    return trace_context.current().pipelining


def pipelining(
    plan: LayoutPlan, batch_dim_name: Axis, micro_batches: int | None
) -> contextlib.AbstractContextManager[object]:
    """Let stacks of layers that the plan shards over an axis of stages be pipelined inside the context."""
    step = Pipelining(plan, axis_tuple(batch_dim_name), micro_batches)
    return trace_context.traced_with(pipelining=step)


def of_whole_batches() -> contextlib.AbstractContextManager[object]:
    """Trace for a batch that is not the last, partial one: micro-batches must divide it."""
    return trace_context.traced_with(is_whole_batch=True)


def is_whole_batch() -> bool:
    """Return whether micro-batches must divide the rows."""
    return trace_context.current().is_whole_batch


@contextlib.contextmanager
def pipelines_noted() -> Generator[dict[Pipeline, None]]:
    """Collect the pipelines of layers that are traced, in order and without duplicates."""
    found: dict[Pipeline, None] = {}
    with trace_context.traced_with(pipelines=found):
        yield found


def note_pipeline(pipeline: Pipeline) -> None:
    """Note a pipeline for the plan."""
    found = trace_context.current().pipelines
    if found is not None:
        found[pipeline] = None
