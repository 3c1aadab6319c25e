"""`find_frontier`: memory and time of a step for other batch sizes, with and without remat and slots on the host."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from keras_dist._support.arguments import argument_error
from keras_dist._support.text_tables import Table, render
from keras_dist._support.types import PyTree
from keras_dist.distribution.render import render_bytes, render_seconds
from keras_dist.errors import ConfigError, KerasDistError
from keras_dist.planner.propagated import Propagated
from keras_dist.planner.propagation import propagate
from keras_dist.planner.targets import Target
from keras_dist.planner.tracing import StepProgram
from keras_dist.planner.verdict import Verdict, judge

SEARCHED = ("batch", "remat", "offload")
_DOTS = "dots_with_no_batch_dims_saveable"
_MOST_DOUBLED, _MOST_COMPILED, _FAR = 2**10, 8, 2
"""The largest batch, in batches as given; the number of steps that are compiled; and how many times the memory of a
device a bound may be of a step that may still fit."""

Trace = Callable[..., StepProgram]
"""`trace(batch=..., remat=..., slot_memory=...)` traces the step."""


@dataclasses.dataclass(frozen=True)
class Point:
    """A step with a batch size and options of `compile`.

    Attributes:
        rows: rows of the batch, of all devices together.
        remat: `remat` of `compile`; None as the model was compiled.
        slot_memory: "pinned_host" for slots in the memory of the host.
        verdict: memory and least time on the target, compiled where the tier says so.
    """

    rows: int
    remat: str | None
    slot_memory: str | None
    verdict: Verdict

    @property
    def needed_nbytes(self) -> int:
        """Bytes of a device: of the compiled program, or else at most."""
        found = self.verdict.compiled
        return self.verdict.most_nbytes if found is None else found.peak_nbytes + self.verdict.ahead_nbytes

    @property
    def seconds_per_row(self) -> float:
        """Least time of a step that waits for its collectives [s], for each row."""
        return self.verdict.roofline.serial_step_seconds / self.rows

    @property
    def costs(self) -> tuple[int, float]:
        """Memory, and time for a row."""
        return self.needed_nbytes, self.seconds_per_row

    def is_beaten_by(self, other: Point) -> bool:
        """Whether the other point needs as little memory and time for a row, and less of one of them."""
        better = (theirs <= ours for theirs, ours in zip(other.costs, self.costs, strict=True))
        return other.costs != self.costs and all(better)


@dataclasses.dataclass(frozen=True, repr=False)
class Frontier:
    """Batch sizes and options of a step that no other beats in memory and time for a row. Printing it shows a table.

    Attributes:
        points: all that were tried.
        refused: options that the step cannot have, with the reason.
    """

    points: tuple[Point, ...]
    refused: tuple[str, ...] = ()

    @property
    def frontier(self) -> tuple[Point, ...]:
        """Points that no other beats."""
        first = {(each.needed_nbytes, each.seconds_per_row): each for each in reversed(self.points)}
        return tuple(
            one for one in self.points if one in first.values() and not any(map(one.is_beaten_by, self.points))
        )

    @property
    def best(self) -> Point | None:
        """The point with the least time for a row of those that fit."""
        fitting = [each for each in self.points if each.verdict.fits]
        return min(fitting, key=lambda each: (each.seconds_per_row, each.needed_nbytes), default=None)

    @property
    def exit_code(self) -> int:
        """Exit code for scripts: 0 if a point fits, 1 if none does, 4 if this is not known."""
        return 0 if self.best else 4 if any(each.verdict.fits is None for each in self.points) else 1

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as dicts, lists, strings and numbers."""
        names = ("rows", "remat", "slot_memory", "needed_nbytes", "seconds_per_row")
        kept = self.frontier
        found = [
            {name: getattr(each, name) for name in names}
            | {"on_frontier": each in kept, "fits": each.verdict.fits, "verdict": each.verdict.to_dict()}
            for each in self.points
        ]
        return {"points": found, "refused": list(self.refused)}

    def __str__(self) -> str:
        headers = ("rows", "remat", "slots", "memory", "from", "fits", "least time", "rows/s")
        lines = [_line(each) for each in sorted(self.frontier, key=lambda each: each.costs)]
        title = f"Least memory and time of a step on {self.points[0].verdict.target}, of one device"
        table = Table(title, headers, ("rows", "memory", "least time", "rows/s"), rows=[*lines])
        beaten = len(self.points) - len(lines)
        best = self.best
        notes = [f"{beaten} more need more memory or more time for a row"] * bool(beaten)
        notes.append("none is known to fit" if best is None else f"best that fits: {', '.join(_options(best))}")
        notes += dict.fromkeys(f"not compiled: {each.verdict.note}" for each in self.frontier if each.verdict.note)
        return render(table, *notes, *(f"not tried: {each}" for each in self.refused))


def _options(point: Point) -> Iterator[str]:
    yield f"{point.rows} rows"
    yield f"remat={point.remat!r}"
    yield f"slot_memory={point.slot_memory!r}"


def _line(point: Point) -> tuple[str, ...]:
    verdict = point.verdict
    fits = {True: "yes", False: "no", None: "not known"}[verdict.fits]
    memory = render_bytes(point.needed_nbytes)
    tier, memory = ("propagated", f"at most {memory}") if verdict.compiled is None else ("compiled", memory)
    seconds = verdict.roofline.serial_step_seconds
    place = point.slot_memory or "device"
    return (
        f"{point.rows}",
        point.remat or "as compiled",
        place,
        memory,
        tier,
        fits,
        render_seconds(seconds),
        f"{1 / point.seconds_per_row:,.0f}",
    )


def find_frontier(
    trace: Trace,
    batch: PyTree,
    search: Any,
    target: Target | None,
    *,
    remat: str | None = None,
    slot_memory: str | None = None,
    flash_attention: bool = False,
    compiles: bool,
    timeout_seconds: float,
) -> Frontier:
    """Return memory and times for `search`, some of `SEARCHED`; see `plan`."""
    searched = _checked(search)
    if target is None or not target.hbm_nbytes:
        fix = 'name it: plan(..., search=("batch", "remat"), target="v5e:2x4")'
        summary = "plan(search=...) needs a target whose memory limits the batch"
        raise ConfigError(summary, given=f"target={target and target.name!r}", fix=fix)
    first = trace(batch=batch, remat=remat, slot_memory=slot_memory)  # with the errors of a plan
    given = next(len(leaf) for leaf in jax.tree.leaves(batch) if np.ndim(leaf))
    remats = ["none", _DOTS, first.blocks or "full"] if "remat" in searched else [remat]
    places = [None, "pinned_host"] if "offload" in searched else [slot_memory]
    trials = _Trials(trace, batch, target, [(each, place) for place in places for each in remats], flash_attention)
    trials.add(given)
    if "batch" in searched:
        rows = given
        while not trials.fits(rows) and rows > 1 and trials.add(rows // 2):
            rows //= 2
        rows = given
        while trials.may_fit(rows) and rows < _MOST_DOUBLED * given and trials.add(2 * rows):
            rows *= 2
        if rows >= _MOST_DOUBLED * given:
            trials.refused[f"more than {rows} rows, {_MOST_DOUBLED} batches as given"] = None
    return Frontier(tuple(trials.compiled(timeout_seconds) if compiles else trials.points), tuple(trials.refused))


class _Trials:
    """Plans of a step for several batches and options."""

    def __init__(
        self,
        trace: Trace,
        batch: PyTree,
        target: Target,
        options: Sequence[tuple[str | None, str | None]],
        flash_attention: bool,
    ) -> None:
        self._flash: Any = {"flash_attention": flash_attention}
        self._trace, self._batch, self._target, self._options = trace, batch, target, options
        self._steps: dict[int, tuple[StepProgram, Propagated]] = {}
        self.points: list[Point] = []
        self.refused: dict[str, None] = {}

    def add(self, rows: int) -> bool:
        """Plan the step for a number of rows with all options; return whether it can be planned."""
        batch, before = jax.tree.map(lambda leaf: _with_rows(leaf, rows), self._batch), len(self.points)
        for remat, place in self._options:
            try:
                program = self._trace(batch=batch, remat=remat, slot_memory=place)
            except KerasDistError as error:
                reason = f"{error.summary} ({error.given})"
                self.refused[f"{rows} rows, remat={remat!r}, slot_memory={place!r}: {reason}"] = None
                continue
            step = propagate(program.lowered)
            self._steps[len(self.points)] = program, step
            verdict = judge(program, step, self._target, compiles=False, timeout_seconds=0, **self._flash)
            held = "pinned_host" if program.state.host_nbytes_per_device else None
            self.points.append(Point(rows, remat, held, verdict))
        return len(self.points) > before

    def fits(self, rows: int) -> bool:
        """Whether the step fits with this number of rows."""
        return any(each.verdict.fits for each in self.points if each.rows == rows)

    def may_fit(self, rows: int) -> bool:
        """Whether the step may fit with this number of rows: not where bounds are far above the memory."""
        limit = _FAR * self._target.hbm_nbytes
        found = (each for each in self.points if each.rows == rows)
        return any(each.verdict.fits is not False and each.needed_nbytes <= limit for each in found)

    def compiled(self, timeout_seconds: float) -> list[Point]:
        """Return the points; those that no other beats are compiled, the largest batches that may fit first."""
        deadline, points = time.monotonic() + timeout_seconds, list(self.points)
        kept = Frontier(tuple(points)).frontier
        places = [index for index, each in enumerate(points) if each in kept and each.verdict.fits is not False]
        for index in sorted(places, key=lambda index: -points[index].rows)[:_MOST_COMPILED]:
            if (left := deadline - time.monotonic()) > 0:
                verdict = judge(*self._steps[index], self._target, compiles=True, timeout_seconds=left, **self._flash)
                points[index] = dataclasses.replace(points[index], verdict=verdict)
        return points


def _with_rows(leaf: Any, rows: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype)


def _checked(search: Any) -> tuple[str, ...]:
    names: tuple[Any, ...] = (
        tuple(search) if isinstance(search, Sequence) and not isinstance(search, str) else (search,)
    )
    if not names or not all(each in SEARCHED for each in names):
        raise argument_error("search", search, f"some of {', '.join(map(repr, SEARCHED))}", example=("batch", "remat"))
    return names
