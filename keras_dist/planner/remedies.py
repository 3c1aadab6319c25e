"""`find_remedy`: other layout rules for a step that moves, computes or holds more than it must, found by trying them.

A remedy that follows from the problem alone is often wrong: the layer that gathers is the victim of a rule elsewhere.
So layouts are changed class by class of dims, each change is propagated, and the best is kept, until none helps.
A search propagates the step at most `MOST_TRIED` times, each in the time of the plan's own propagation or less, and it
tries nothing new after a minute. Constraints of activations that layers derive from rules, as experts and pipelines do,
are not in a screened step. So the step is traced anew under the rules that were found, which must cost less there, too.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import operator
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from keras_dist.distribution.fully_sharded import FullySharded
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.lint import names_tensor
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.distribution.model_parallel import ModelParallel
from keras_dist.distribution.plan import FOLLOWS, Row
from keras_dist.distribution.render import render_bytes
from keras_dist.distribution.strategy import Distribution
from keras_dist.errors import KerasDistError, LayoutWarning
from keras_dist.planner.candidates import Screen
from keras_dist.planner.dim_classes import DimClass, classes_of
from keras_dist.planner.edited_rules import edited_rules
from keras_dist.planner.propagation import Propagated, propagate
from keras_dist.planner.search import fully_sharded, nbytes_of
from keras_dist.planner.tracing import StepProgram

Layouts = Mapping[str, tuple[Axis, ...]]
Retrace = Callable[[Distribution], StepProgram]
"""Traces the same step under another distribution."""

MOST_TRIED = 64
"""Largest number of layouts that are propagated to find a remedy."""

_MOST_SECONDS = 60.0
_MOST_ROUNDS, _LEAST_GAIN, _SAME, _LARGE = 5, 0.01, 0.001, 0.02


@dataclasses.dataclass(frozen=True)
class Figures:
    """Costs of a step on one device.

    Attributes:
        moved_nbytes: bytes of collectives.
        flops: FLOPs of matrix multiplications and convolutions.
        held_nbytes: bytes of weights and slots.
    """

    moved_nbytes: int
    flops: int
    held_nbytes: int

    def __str__(self) -> str:
        moved, held = render_bytes(self.moved_nbytes), render_bytes(self.held_nbytes)
        return f"{moved} moved, {self.flops:,} FLOPs, {held} of weights and slots"


@dataclasses.dataclass(frozen=True)
class Remedy:
    """Rules under which a step costs less.

    Attributes:
        changes: the changes, in the order of their effect: new layouts of weights or of the batch, by path, or an empty
            one for a rule for activations that is left out.
        code: Python code that creates the distribution on `mesh`.
        before: costs of the step now.
        after: costs of the step under the rules.
        program: the step, traced under the rules.
        step: the same, propagated.
    """

    changes: tuple[Layouts, ...]
    code: str
    before: Figures
    after: Figures
    program: StepProgram
    step: Propagated

    @property
    def gain(self) -> float:
        """Part of the costs that ends: of bytes moved, FLOPs or bytes held, the largest."""
        before, after = dataclasses.astuple(self.before), dataclasses.astuple(self.after)
        return max(1 - new / max(old, 1) for old, new in zip(before, after, strict=True))

    def __str__(self) -> str:
        return f"# all rules, for the same mesh:\n{self.code}\n# before: {self.before}\n# after: {self.after}"


def find_remedy(program: StepProgram, step: Propagated, retrace: Retrace) -> Remedy | None:
    """Return the best rules of those that were tried; None if none is better than the rules of the step."""
    search = _Search(program, step)
    found = search.run()
    before = _figures(program, step)
    for count in range(len(found), 0, -1):
        changes, layouts = tuple(each for each, _ in found[:count]), found[count - 1][1]
        distribution, code = search.distribution_of(layouts)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LayoutWarning)
                traced = retrace(distribution)
        except KerasDistError:  # such as micro-batches that do not divide the batch
            continue
        other = propagate(traced.lowered)
        after = _figures(traced, other)
        if after.flops <= (1 + _LEAST_GAIN) * before.flops and _score(after) < _score(before) - _LEAST_GAIN:
            return Remedy(changes, code, before, after, traced, other)
    return None


def _figures(program: StepProgram, step: Propagated) -> Figures:
    rows = program.state.rows
    held = nbytes_of(rows, {row.path: row.axes for row in rows}, program.state.mesh.axis_sizes)
    return Figures(sum(each.nbytes_per_step for each in step.collectives), step.flops, held)


def _score(figures: Figures) -> float:
    """Return a number that is lower the better; ratios count, since a step may be of any size."""
    held = max(figures.held_nbytes, 1)
    return 2 * math.log((figures.moved_nbytes + held / 8) * max(figures.flops, 1)) + math.log(held)


class _Search:
    def __init__(self, program: StepProgram, step: Propagated) -> None:
        self._program, self._step = program, step
        self._mesh, self._rules = program.state.mesh, program.distribution.layout_map or LayoutMap(program.state.mesh)
        self._sizes = self._mesh.axis_sizes
        rows = [row for row in program.state.rows if row.role in ("parameter", "statistic")]
        self._weights = {row.path: dataclasses.replace(row, axes=row.compute_axes) for row in rows}
        self._slots = {row.path: _followed(row) for row in program.state.rows if row.role == "slot"}
        self._batch = [row for row in program.batch.rows if row.shape]
        self._classes = list(classes_of(program))
        self._screens: dict[tuple[str, ...], Screen] = {}
        self._tried, self._deadline = 0, time.monotonic() + _MOST_SECONDS

    def run(self) -> list[tuple[Layouts, Layouts]]:
        """Return changes, each with all layouts after it."""
        layouts = {row.path: row.axes for row in (*self._weights.values(), *self._batch)}
        best, changes = self._figures(self._propagated(layouts), layouts), list[tuple[Layouts, Layouts]]()
        while len(changes) < _MOST_ROUNDS:
            found = [
                (_score(after), after, {**layouts, **each}, each)
                for each, after in self._tries(layouts)
                if after.flops <= (1 + _LEAST_GAIN) * best.flops  # moving less must not repeat work
            ]
            least = min((score for score, *_ in found), default=math.inf)
            if least > _score(best) - _LEAST_GAIN:
                break
            same = [each for each in found if each[0] < least + _SAME]
            _, best, layouts, change = min(same, key=lambda each: len(self._edited(each[2])))
            changes.append((change, layouts))
        return changes

    def _tries(self, layouts: Layouts) -> Iterator[tuple[Layouts, Figures]]:
        for each in self._candidates(layouts):
            if self._tried < MOST_TRIED and time.monotonic() < self._deadline:
                self._tried += 1
                after = {**layouts, **each}
                yield each, self._figures(self._propagated(after), after)

    def _edited(self, layouts: Layouts) -> LayoutMap:
        return edited_rules(self._rules, list(self._weights.values()), layouts)

    def _propagated(self, layouts: Layouts) -> Propagated:
        kept = tuple(rule for rule in self._rules if rule not in layouts or rule in self._weights)
        if kept not in self._screens:
            self._screens[kept] = Screen(self._program, kept)
        return self._screens[kept].propagate(self._sizes, self._with_slots(layouts))

    def _with_slots(self, layouts: Layouts) -> Layouts:
        return {**layouts, **{slot: layouts[path] for slot, path in self._slots.items() if path in layouts}}

    def _figures(self, step: Propagated, layouts: Layouts) -> Figures:
        rows, every = self._program.state.rows, self._with_slots(layouts)
        gathered = self._program.distribution.gathered_axes
        held = fully_sharded(rows, every, gathered, self._sizes) if gathered else every
        moved = sum(each.nbytes_per_step for each in step.collectives)
        return Figures(moved, step.flops, nbytes_of(rows, held, self._sizes))

    def _candidates(self, layouts: Layouts) -> Iterator[Layouts]:
        """Yield changes, most likely first."""
        yield from ({rule: ()} for rule in self._rules if names_tensor(rule) and rule not in layouts)
        used = {axis for row in self._weights for entry in layouts[row] for axis in axis_tuple(entry)}
        busy = used | {axis for row in self._batch for entry in layouts[row.path] for axis in axis_tuple(entry)}
        idle = [axis for axis, size in self._sizes.items() if size > 1 and axis not in busy]
        again = {axis for each in self._step.repeated for axis in each.axes} - set(idle)
        yield from self._batches(layouts, [*idle, *(axis for axis in self._sizes if axis in again)])
        yield from filter(None, (self._renamed(layouts, old, new) for new in idle for old in self._sizes if old != new))
        suspects, axes = self._suspects(layouts), [axis for axis in self._sizes if axis in used or axis in idle]
        entries = {each.name: {layouts[path][dim] for path, dim in self._members(each)} for each in self._classes}
        for each in sorted(self._classes, key=lambda each: (len(entries[each.name]) < 2, -each.nbytes)):
            if len(entries[each.name]) > 1 or any(path in suspects for path, _ in each.members):
                tried = [*axes, *sorted(entry for entry in entries[each.name] if isinstance(entry, tuple)), None]
                yield from filter(None, (self._assigned(each, entry, layouts) for entry in tried))

    def _members(self, each: DimClass) -> list[tuple[str, int]]:
        return [(path, dim) for path, dim in each.members if path in self._weights]

    def _batches(self, layouts: Layouts, axes: Sequence[str]) -> Iterator[Layouts]:
        now = layouts[self._batch[0].path][0]
        used = {axis for row in self._batch for entry in layouts[row.path] for axis in axis_tuple(entry)}
        for axis in (axis for axis in axes if axis not in used):
            for entry in dict.fromkeys((axis, _joined(now, axis))):
                if not any(row.shape[0] % self._shards(entry) for row in self._batch):
                    yield {row.path: (entry, *layouts[row.path][1:]) for row in self._batch}

    def _shards(self, entry: Axis) -> int:
        return math.prod(self._sizes[name] for name in axis_tuple(entry))

    def _renamed(self, layouts: Layouts, old: str, new: str) -> Layouts:
        """Return the layouts of weights that change if one axis replaces another."""
        found: dict[str, tuple[Axis, ...]] = {}
        for row in self._weights.values():
            axes = tuple(new if entry == old else entry for entry in layouts[row.path])
            if axes != layouts[row.path] and not any(map(operator.mod, row.shape, map(self._shards, axes))):
                found[row.path] = axes
        return found

    def _suspects(self, layouts: Layouts) -> set[str]:
        """Return weights of submodules with hidden reshards or repeated work, and sliced, large or unlike weights."""
        layers = {each.layer for each in self._step.repeated}
        for each in self._step.collectives:
            layers |= set() if each.is_asked else {each.layer, each.needed_by}
        found = {self._program.arguments[index] for index, _ in self._step.sliced}
        least = _LARGE * sum(row.nbytes for row in self._weights.values())
        for path, row in self._weights.items():
            if path.rpartition("/")[0] in layers or (row.nbytes > least and not any(layouts[path])):
                found.add(path)
        for each in self._classes:
            entries = {path: layouts[path][dim] for path, dim in self._members(each)}
            usual = next(iter(collections.Counter(entries.values()).most_common(1)), (None,))[0]
            found |= {path for path, entry in entries.items() if entry != usual}
        return found

    def _assigned(self, each: DimClass, entry: Axis, layouts: Layouts) -> Layouts:
        """Return the layouts that change if this entry shards all weights' dims of a class, and no others of them."""
        found: dict[str, tuple[Axis, ...]] = {}
        for (path, dim), parts in zip(each.members, each.parts, strict=True):
            if path in self._weights and parts % self._shards(entry) == 0:
                axes = [None if set(axis_tuple(old)) & set(axis_tuple(entry)) else old for old in layouts[path]]
                axes[dim] = entry
                found[path] = tuple(axes)
        return {path: axes for path, axes in found.items() if axes != layouts[path]}

    def distribution_of(self, layouts: Layouts) -> tuple[Distribution, str]:
        """Return a distribution with these layouts, and the code that creates it on `mesh`."""
        now, rules = self._program.distribution, self._edited(layouts)
        lines = ["rules = kd.LayoutMap(mesh)"]
        lines += [f"rules[{rule!r}] = {layout.axes!r}" for rule, layout in rules.snapshot()]
        batch = now.batch_dim_name
        if any(layouts[row.path][0] != row.axes[0] for row in self._batch):
            batch = layouts[self._batch[0].path][0]
        given = {"axis_names": dict(now.axis_names), "sequence_axis": getattr(now, "sequence_axis", None)}
        given |= {"min_size_bytes": getattr(now, "min_size_bytes", 0), "strict": now.strict}
        options: dict[str, Any] = {name: value for name, value in given.items() if value}
        if not now.auto_shard_dataset:
            options["auto_shard_dataset"] = False
        named = "".join(f", {name}={value!r}" for name, value in options.items())
        if isinstance(now, FullySharded):
            lines.append(f"distribution = kd.FullySharded(mesh, {now.axis!r}, rules, {batch!r}{named})")
            return FullySharded(self._mesh, now.axis, rules, batch, **options), "\n".join(lines)
        batch = () if batch is None else batch
        lines.append(f"distribution = kd.ModelParallel(rules, {batch!r}{named})")
        return ModelParallel(rules, batch, **options), "\n".join(lines)


def _joined(entry: Axis, axis: str) -> Axis:
    return (*axis_tuple(entry), axis) if entry else axis


def _followed(row: Row) -> str:
    return (row.rule or "").removeprefix(FOLLOWS).partition(", ")[0]
