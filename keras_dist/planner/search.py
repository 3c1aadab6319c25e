"""The search for a layout: meshes, classes of dims over their axes, and fully sharded weights, each propagated."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from keras_dist.distribution.layout import Axis
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.planner.costs import (
    fully_sharded,
    nbytes_of,
    step_seconds,
    with_gathered_updates,
    with_gathers,
    with_state,
)
from keras_dist.planner.dim_classes import DimClass, DimClasses
from keras_dist.planner.propagation import Propagated
from keras_dist.planner.targets import Target

Objective = Literal["step_time", "memory"]

_MOST_CLASSES = 6
"""Of how many classes all combinations are tried: of those that gain most by themselves."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A layout that was tried, and what it costs.

    Attributes:
        mesh: the axes of the mesh, with their sizes.
        rules: for each class of dims that is sharded its axis, or axes.
        fully_sharded: whether weights and slots are sharded over the axes of the batch, too.
        step_seconds: the least time of a step, by the bytes that it moves, its FLOPs and its bytes of memory.
        state_nbytes: bytes of weights and slots on one device.
        activation_nbytes: bytes of intermediate results on one device, at most.
        moved_nbytes: bytes that one device exchanges in a step.
        compiled_seconds: the least time of the step as XLA compiles it for the target; None where that is not known.
        compiled_nbytes: bytes of one device in that program at once.
        shard_optimizer: whether the slots alone are sharded over the axis of the batch (ZeRO-1).
        remat: the `remat` of `compile`: layers that keep only their inputs for the backward pass; None for none.
    """

    mesh: Mapping[str, int]
    rules: Mapping[str, Axis]
    fully_sharded: bool
    step_seconds: float
    state_nbytes: int
    activation_nbytes: int
    moved_nbytes: int
    compiled_seconds: float | None = None
    compiled_nbytes: int | None = None
    shard_optimizer: bool = False
    remat: str | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of one device, at most."""
        return self.state_nbytes + self.activation_nbytes


@dataclasses.dataclass
class Search:
    """All layouts of a step that were tried.

    Args:
        classes: the classes of its dims.
        objective: what is to be small.
        memory_limit: bytes that a device has.
        target: the machine whose times count; None for none in particular.
        deadline: when to stop, by `time.monotonic()`.
        remat: that with which the step was traced.

    Attributes:
        candidates: what was tried, in order.
        skipped: how many candidates there was no time for.
    """

    classes: DimClasses
    objective: Objective
    memory_limit: int | None
    target: Target | None
    deadline: float
    remat: str | None = None
    candidates: list[Candidate] = dataclasses.field(default_factory=list)
    skipped: int = 0

    def run(self, meshes: Iterable[Mapping[str, int]], batch_axes: Sequence[str] | None = None) -> Candidate:
        """Return the best candidate on some meshes.

        Args:
            meshes: the axes of each.
            batch_axes: the axes that the rows of the batch lie over; by default the first of each mesh, and all.
        """
        for sizes in meshes:
            names = tuple(sizes)
            choices = [tuple(batch_axes)] if batch_axes else list(dict.fromkeys([names[:1], names]))
            for over in choices:
                self._on(sizes, over)
        return min(self.candidates, key=self.rank)

    def _on(self, sizes: Mapping[str, int], batch_axes: tuple[str, ...]) -> None:
        """Try classes over the axes that the batch leaves, one axis after the other."""
        rules: dict[str, Axis] = {"batch": batch_axes[0] if len(batch_axes) == 1 else batch_axes}
        best = self._try(sizes, rules)
        for axis in [name for name, size in sizes.items() if size > 1 and name not in batch_axes]:
            if best is None:
                return
            base = best
            singles = [self._try(sizes, {**base.rules, each.name: axis}) for each in self._shardable(base, axis)]
            gaining = sorted((each for each in singles if each and self.rank(each) < self.rank(base)), key=self.rank)
            names = [list(each.rules)[-1] for each in gaining[:_MOST_CLASSES]]
            tried = [base, *gaining]
            for count in range(2, len(names) + 1):
                for chosen in itertools.combinations(names, count):
                    if not _clash(chosen, self.classes):
                        found = self._try(sizes, {**base.rules, **dict.fromkeys(chosen, axis)})
                        tried += [found] if found else []
            best = self._improved(min(tried, key=self.rank), axis)

    def _improved(self, best: Candidate, axis: str) -> Candidate:
        """The best candidate that differs in one class, as long as there is a better one."""
        tried: dict[frozenset[str], Candidate] = {}
        while True:
            mine = [name for name, axes in best.rules.items() if axes == axis]
            others = [each.name for each in self._shardable(best, axis)]
            for name in (*mine, *others):
                rules = {key: axes for key, axes in best.rules.items() if key != name}
                rules |= {} if name in mine else {name: axis}
                over = [key for key, axes in rules.items() if axes == axis]
                if frozenset(over) not in tried and not _clash(over, self.classes):
                    found = self._known(best.mesh, rules) or self._try(best.mesh, rules)
                    if found is not None:
                        tried[frozenset(over)] = found
            better = min([best, *tried.values()], key=self.rank)
            if better is best:
                return best
            best = better

    def _shardable(self, base: Candidate, axis: str) -> Iterator[DimClass]:
        shards = base.mesh[axis]
        for each in self.classes:
            if each.name not in base.rules and any(parts % shards == 0 for parts in each.parts):
                yield each

    def _known(self, sizes: Mapping[str, int], rules: Mapping[str, Axis]) -> Candidate | None:
        return next(
            (
                each
                for each in self.candidates
                if not (each.fully_sharded or each.shard_optimizer)
                and each.mesh == sizes
                and each.rules == rules
                and each.remat == self.remat
            ),
            None,
        )

    def _try(self, sizes: Mapping[str, int], rules: Mapping[str, Axis]) -> Candidate | None:
        """Propagate a candidate, and say what it costs, also with fully sharded weights; None when time is over."""
        if time.monotonic() > self.deadline and self.candidates:
            self.skipped += 1
            return None
        classes, rows = self.classes, self.classes.program.state.rows
        layouts, _ = classes.layouts(rules, sizes)
        step = classes.screen.propagate(sizes, layouts)
        whole = nbytes_of(rows, layouts, sizes)
        found = self._candidate(sizes, rules, step, whole)
        batch = rules["batch"]
        axes = (batch,) if isinstance(batch, str) else tuple(batch or ())
        if math.prod(sizes[axis] for axis in axes) > 1:
            sharded = fully_sharded(rows, layouts, axes, sizes)
            own = [row for row in rows if row.role == "parameter" and sharded.get(row.path) != layouts.get(row.path)]
            state = nbytes_of(rows, sharded, sizes)
            gathered = with_gathers(with_state(step, state - whole), nbytes_of(own, layouts, sizes), axes)
            self._candidate(sizes, rules, gathered, state, fully_sharded=True)
            if len(sizes) == 1:  # `DataParallel` alone does it
                slots = fully_sharded([row for row in rows if row.role == "slot"], layouts, axes, sizes)
                state = nbytes_of(rows, slots, sizes)
                updated = with_gathered_updates(with_state(step, state - whole), nbytes_of(own, layouts, sizes), axes)
                self._candidate(sizes, rules, updated, state, shard_optimizer=True)
        return found

    def _candidate(
        self,
        sizes: Mapping[str, int],
        rules: Mapping[str, Axis],
        step: Propagated,
        state: int,
        fully_sharded: bool = False,
        shard_optimizer: bool = False,
    ) -> Candidate:
        seconds = step_seconds(sizes, step, self.target)
        moved = sum(each.nbytes_per_step for each in step.collectives)
        held = step.activation_nbytes
        figures = seconds, state, held, moved
        kind = {"shard_optimizer": shard_optimizer, "remat": self.remat}
        self.candidates.append(Candidate(dict(sizes), dict(rules), fully_sharded, *figures, **kind))
        return self.candidates[-1]

    def rank(self, candidate: Candidate) -> tuple[float, ...]:
        """What is smaller the better a candidate is: first the bytes by which it does not fit."""
        over = max(0, candidate.nbytes - self.memory_limit) if self.memory_limit is not None else 0
        ranked = candidate.step_seconds, candidate.nbytes
        return (over, *(ranked if self.objective == "step_time" else reversed(ranked)), len(candidate.rules))


def is_possible(candidate: Candidate, classes: DimClasses) -> bool:
    """Whether a search can have made a candidate: whether its layouts are some, and its figures numbers of a step."""
    rules = {name: axis_tuple(axes) for name, axes in candidate.rules.items()}
    batch, names = rules.pop("batch", ()), tuple(candidate.mesh)
    if batch not in (names[:1], names) or not all(name in classes for name in rules):
        return False
    left = [(axis,) for axis in names if axis not in batch]
    over = [[name for name, axes in rules.items() if axes == axis] for axis in left]
    compiled = [each for each in (candidate.compiled_seconds, candidate.compiled_nbytes) if each is not None]
    return (
        all(axes in left for axes in rules.values())
        and not any(_clash(each, classes) for each in over)
        and all(math.isfinite(each) and each > 0 for each in (candidate.step_seconds, candidate.nbytes, *compiled))
        and min(candidate.state_nbytes, candidate.activation_nbytes, candidate.moved_nbytes) >= 0
        and not (candidate.shard_optimizer and (candidate.fully_sharded or len(names) > 1))
    )


def _clash(names: Sequence[str], classes: DimClasses) -> bool:
    """Whether two of these classes are dims of one array."""
    paths = [{path for path, _ in classes[name].members} for name in names]
    return any(one & other for one, other in itertools.combinations(paths, 2))


def meshes_of(devices: int) -> list[dict[str, int]]:
    """The meshes `data` x `model` that so many devices can form, those with more shards of the batch first."""
    sizes = [size for size in range(2, devices + 1) if devices % size == 0]
    return [{"data": devices}, *({"data": devices // size, "model": size} for size in sizes)]


def blocks_of(classes: DimClasses) -> str | None:
    r"""A `remat` of the blocks that a model repeats, such as `blocks/\d+`; None where there are none."""
    repeated: dict[str, set[str]] = {}
    for row in classes.program.state.rows:
        parts = row.path.split("/") if row.role == "parameter" else []
        numbers = [index for index, part in enumerate(parts[:-1]) if part.isdecimal()]
        if numbers and len(parts) > numbers[0] + 2:  # modules of modules, not single layers
            block = parts[: numbers[0]]
            repeated.setdefault("/".join([*map(re.escape, block), r"\d+"]), set()).add(parts[numbers[0]])
    found = [rule for rule, blocks in repeated.items() if len(blocks) > 1]
    return "|".join(found) or None
