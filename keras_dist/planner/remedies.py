"""`find_remedy`: other layout rules for a step that moves, computes or holds more than it must, found by trying them.

A remedy that follows from the problem alone is often wrong: the layer that gathers is the victim of a rule elsewhere.
So layouts are changed class by class of dims, each change is propagated, and the best is kept, until none helps.
A search propagates the step at most `MOST_TRIED` times, each in the time of the plan's own propagation or less, and it
tries nothing new after a minute.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import operator
import time
from collections.abc import Iterator, Mapping, Sequence

from keras_dist.distribution.fully_sharded import FullySharded
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.lint import names_tensor
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.distribution.plan import FOLLOWS, Row
from keras_dist.distribution.render import render_bytes
from keras_dist.planner.candidates import Screen
from keras_dist.planner.dim_classes import DimClass, classes_of
from keras_dist.planner.edited_rules import edited_rules
from keras_dist.planner.propagation import Propagated
from keras_dist.planner.search import fully_sharded, nbytes_of
from keras_dist.planner.tracing import StepProgram

Layouts = Mapping[str, tuple[Axis, ...]]

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
class Change:
    """One change of layouts: a class of dims gets other axes, weights change axes, or a rule is left out.

    Attributes:
        layouts: the layouts that it changes.
        dropped: the rule for activations or inputs that it leaves out, or an empty string.
    """

    layouts: Layouts = dataclasses.field(default_factory=dict[str, tuple[Axis, ...]])
    dropped: str = ""


@dataclasses.dataclass(frozen=True)
class Remedy:
    """Rules under which a step costs less.

    Attributes:
        changes: the changes, in the order of their effect.
        rules: the rules.
        code: Python code that creates the distribution on `mesh`.
        before: costs of the step now.
        after: costs of the step under the rules.
        step: the step under the rules.
    """

    changes: tuple[Change, ...]
    rules: LayoutMap
    code: str
    before: Figures
    after: Figures
    step: Propagated

    def __str__(self) -> str:
        return f"# all rules, for the same mesh:\n{self.code}\n# before: {self.before}\n# after: {self.after}"


def find_remedy(program: StepProgram, step: Propagated) -> Remedy | None:
    """Return the best rules of those that were tried; None if none is better than the rules of the step."""
    return _Search(program, step).run()


class _Search:
    def __init__(self, program: StepProgram, step: Propagated) -> None:
        self._program, self._step = program, step
        self._mesh, self._rules = program.state.mesh, program.distribution.layout_map
        self._sizes = self._mesh.axis_sizes
        self._weights = [row for row in program.state.rows if row.role in ("parameter", "statistic")]
        self._paths = {row.path for row in self._weights}
        self._classes = list(classes_of(program))
        self._screens: dict[frozenset[str], Screen] = {}
        self._tried, self._deadline = 0, time.monotonic() + _MOST_SECONDS

    @functools.cached_property
    def _now(self) -> dict[str, tuple[Axis, ...]]:
        return {row.path: row.compute_axes for row in self._weights} | {
            row.path: row.axes for row in self._program.batch.rows
        }

    def run(self) -> Remedy | None:
        layouts, dropped, changes = self._now, frozenset[str](), list[Change]()
        before = best = self._figures(layouts, dropped)
        while len(changes) < _MOST_ROUNDS:
            found = [
                (self._score(after, before), after, each)
                for each in self._candidates(layouts, dropped)
                if self._tried < MOST_TRIED
                and time.monotonic() < self._deadline
                and (after := self._with(each, layouts, dropped))
            ]
            least = min((score for score, *_ in found), default=math.inf)
            if least > self._score(best, before) - _LEAST_GAIN:
                break
            same = [each for each in found if each[0] < least + _SAME]
            _, after, change = min(same, key=lambda each: self._count(each[-1], layouts, dropped))
            best, layouts, dropped = after, {**layouts, **change.layouts}, dropped | ({change.dropped} - {""})
            changes.append(change)
        if not changes:
            return None
        rules = self._edited(layouts, dropped)
        step = self._propagated(layouts, dropped)
        return Remedy(tuple(changes), rules, self._code(rules, layouts), before, best, step)

    def _count(self, change: Change, layouts: Layouts, dropped: frozenset[str]) -> int:
        return len(self._edited({**layouts, **change.layouts}, dropped | {change.dropped}))

    def _edited(self, layouts: Layouts, dropped: frozenset[str]) -> LayoutMap:
        now = [dataclasses.replace(row, axes=row.compute_axes) for row in self._weights]
        rules = LayoutMap(self._mesh) if self._rules is None else self._rules
        return edited_rules(rules, now, layouts, dropped)

    def _with(self, change: Change, layouts: Layouts, dropped: frozenset[str]) -> Figures | None:
        if self._tried >= MOST_TRIED or time.monotonic() > self._deadline:
            return None
        self._tried += 1
        return self._figures({**layouts, **change.layouts}, dropped | ({change.dropped} - {""}))

    def _propagated(self, layouts: Layouts, dropped: frozenset[str]) -> Propagated:
        if dropped not in self._screens:
            kept = None if self._rules is None else [rule for rule in self._rules if rule not in dropped]
            self._screens[dropped] = Screen(self._program, kept)
        return self._screens[dropped].propagate(self._sizes, self._with_slots(layouts))

    def _with_slots(self, layouts: Layouts) -> Layouts:
        slots = [row for row in self._program.state.rows if row.role == "slot"]
        return {**layouts, **{row.path: layouts[path] for row in slots if (path := _followed(row)) in layouts}}

    def _figures(self, layouts: Layouts, dropped: frozenset[str]) -> Figures:
        step, rows, every = self._propagated(layouts, dropped), self._program.state.rows, self._with_slots(layouts)
        gathered = self._program.distribution.gathered_axes
        held = fully_sharded(rows, every, gathered, self._sizes) if gathered else every
        moved = sum(each.nbytes_per_step for each in step.collectives)
        return Figures(moved, step.flops, nbytes_of(rows, held, self._sizes))

    @staticmethod
    def _score(figures: Figures, before: Figures) -> float:
        """Return a number that is lower the better, without units: a step may be of any size."""
        moved = figures.moved_nbytes + figures.held_nbytes / 8
        return 2 * math.log(moved * max(figures.flops, 1)) + math.log(figures.held_nbytes)

    def _candidates(self, layouts: Layouts, dropped: frozenset[str]) -> Iterator[Change]:
        """Yield changes, most likely first."""
        for rule in self._rules or ():
            if names_tensor(rule) and rule not in dropped:
                yield Change(dropped=rule)
        idle = self._idle(layouts)
        yield from self._batches(layouts, idle)
        for axis in idle:
            for other in self._sizes:
                if other != axis and (renamed := self._renamed(layouts, other, axis)):
                    yield Change(renamed)
        suspects = self._suspects(layouts)
        ranked = sorted(self._classes, key=lambda each: (len(self._entries(each, layouts)) < 2, -each.nbytes))
        for each in ranked:
            entries = self._entries(each, layouts)
            if len(entries) > 1 or any(path in suspects for path, _ in each.members):
                for entry in dict.fromkeys((*filter(None, entries), *self._axes_of_weights(layouts), *idle, None)):
                    changed = self._assigned(each, entry, layouts)
                    if changed:
                        yield Change(changed)

    def _entries(self, each: DimClass, layouts: Layouts) -> dict[Axis, None]:
        """Return the axes of the weights' dims of a class."""
        return dict.fromkeys(layouts[path][dim] for path, dim in each.members if path in self._paths)

    def _axes_of_weights(self, layouts: Layouts) -> list[str]:
        used = (layouts[row.path] for row in self._weights)
        return list(dict.fromkeys(axis for axes in used for entry in axes for axis in axis_tuple(entry)))

    def _idle(self, layouts: Layouts) -> list[str]:
        """Return axes of the mesh over which nothing is sharded."""
        used = {axis for axes in layouts.values() for entry in axes for axis in axis_tuple(entry)}
        return [axis for axis, size in self._sizes.items() if size > 1 and axis not in used]

    def _batches(self, layouts: Layouts, idle: Sequence[str]) -> Iterator[Change]:
        rows = [row for row in self._program.batch.rows if row.shape]
        for axis in idle:
            for entry in (axis, (*axis_tuple(layouts[rows[0].path][0]), axis)):
                shards = math.prod(self._sizes[name] for name in axis_tuple(entry))
                if all(row.shape[0] % shards == 0 for row in rows):
                    yield Change({row.path: (entry, *layouts[row.path][1:]) for row in rows})

    def _renamed(self, layouts: Layouts, old: str, new: str) -> Layouts:
        """Return the layouts of weights that change if one axis replaces another."""
        found: dict[str, tuple[Axis, ...]] = {}
        for row in self._weights:
            axes = tuple(new if entry == old else entry for entry in layouts[row.path])
            shards = [math.prod(self._sizes[name] for name in axis_tuple(entry)) for entry in axes]
            if axes != layouts[row.path] and not any(map(operator.mod, row.shape, shards)):
                found[row.path] = axes
        return found

    def _suspects(self, layouts: Layouts) -> set[str]:
        """Return weights of submodules with hidden reshards or repeated work, and sliced, large or unlike weights."""
        arguments = self._program.arguments
        layers = {each.layer for each in self._step.repeated}
        for each in self._step.collectives:
            layers |= set() if each.is_asked else {each.layer, each.needed_by}
        sliced = {arguments[index] for index, _ in self._step.sliced}
        found = {row.path for row in self._weights if row.path in sliced or row.path.rpartition("/")[0] in layers}
        total = sum(row.nbytes for row in self._weights)
        found |= {row.path for row in self._weights if not any(layouts[row.path]) and row.nbytes > _LARGE * total}
        for each in self._classes:
            entries = {path: layouts[path][dim] for path, dim in each.members if path in self._paths}
            usual = collections.Counter(entries.values()).most_common(1)
            found |= {path for path, entry in entries.items() if entry != usual[0][0]}
        return found

    def _assigned(self, each: DimClass, entry: Axis, layouts: Layouts) -> Layouts:
        """Return the layouts that change if this entry shards all weights' dims of a class, and no others of them."""
        shards = math.prod(self._sizes[name] for name in axis_tuple(entry))
        found: dict[str, tuple[Axis, ...]] = {}
        for (path, dim), parts in zip(each.members, each.parts, strict=True):
            if path in self._paths and parts % shards == 0:
                axes = [None if set(axis_tuple(old)) & set(axis_tuple(entry)) else old for old in layouts[path]]
                axes[dim] = entry
                found[path] = tuple(axes)
        return {path: axes for path, axes in found.items() if axes != layouts[path]}

    def _code(self, rules: LayoutMap, layouts: Layouts) -> str:
        distribution = self._program.distribution
        lines = ["rules = kd.LayoutMap(mesh)"]
        lines += [f"rules[{rule!r}] = {layout.axes!r}" for rule, layout in rules.snapshot()]
        rows = [row for row in self._program.batch.rows if row.shape]
        batch = distribution.batch_dim_name
        if any(layouts[row.path][0] != row.axes[0] for row in rows):
            batch = layouts[rows[0].path][0]
        named = f", axis_names={dict(distribution.axis_names)!r}" if distribution.axis_names else ""
        if isinstance(distribution, FullySharded):
            lines.append(f"distribution = kd.FullySharded(mesh, {distribution.axis!r}, rules, {batch!r}{named})")
        else:
            lines.append(f"distribution = kd.ModelParallel(rules, {() if batch is None else batch!r}{named})")
        return "\n".join(lines)


def _followed(row: Row) -> str:
    return (row.rule or "").removeprefix(FOLLOWS).partition(", ")[0]
