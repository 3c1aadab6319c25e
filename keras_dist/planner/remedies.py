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
import functools
import itertools
import math
import operator
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping

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
from keras_dist.planner.logical_rules import edited_rules
from keras_dist.planner.propagation import Propagated, propagate
from keras_dist.planner.search import fully_sharded, nbytes_of, used_by
from keras_dist.planner.search_result import options_of
from keras_dist.planner.tracing import StepProgram

Layouts = Mapping[str, tuple[Axis, ...]]
Retrace = Callable[[Distribution], StepProgram]
"""Traces the same step under another distribution."""

MOST_TRIED = 64
"""Largest number of layouts that are propagated to find a remedy."""

_MOST_SECONDS = 60.0
_MOST_ROUNDS, _MOST_SWAPPED, _LEAST_GAIN, _SAME, _LARGE = 5, 10, 0.01, 0.001, 0.02
_MOST_REPEATED, _LESS, _HALVED = 0.1, 0.8, 0.6
"""Part of the FLOPs that rules may add, since a step that moves far less may repeat a small layer; and the part that is
left where much work was repeated, and where most was."""


@dataclasses.dataclass(frozen=True)
class Figures:
    """Costs of a step on one device."""

    moved_nbytes: int  # of collectives
    flops: int  # of matrix multiplications and convolutions
    held_nbytes: int  # of weights and slots
    hidden_nbytes: int = 0  # the part of `moved_nbytes` that no rule asks for

    def __str__(self) -> str:
        moved, held = render_bytes(self.moved_nbytes), render_bytes(self.held_nbytes)
        return f"{moved} moved, {self.flops:,} FLOPs, {held} of weights and slots"


@dataclasses.dataclass(frozen=True)
class Remedy:
    """Rules under which a step costs less."""

    changes: tuple[Layouts, ...]
    """New layouts of weights or of the batch, by path, or an empty one for a rule for activations that is left out; in
    the order of their effect."""
    code: str  # creates the distribution on `mesh`, or its lines in a config
    before: Figures
    after: Figures
    program: StepProgram  # traced under the rules
    step: Propagated

    @property
    def gain(self) -> float:
        """Part of the costs that ends: of bytes moved, FLOPs or bytes held, the largest."""
        before, after = dataclasses.astuple(self.before)[:3], dataclasses.astuple(self.after)[:3]
        return max(1 - new / max(old, 1) for old, new in zip(before, after, strict=True))

    def __str__(self) -> str:
        return f"# all rules, for the same mesh:\n{self.code}\n# before: {self.before}\n# after: {self.after}"


def find_remedy(
    program: StepProgram, step: Propagated, retrace: Retrace, written: Callable[[Distribution], str]
) -> Remedy | None:
    """Return the best rules of those that were tried, `written`; None if none is better than the rules of the step.

    Sets of the changes that were found are traced, until one costs as little as the next set is expected to.
    """
    search = _Search(program, step)
    before, best = _figures(program, step), None
    for gain, layouts, changes in search.sets():
        enough = _score(before) - gain + _LEAST_GAIN
        if best is not None and _score(best.after) < enough and best.after.hidden_nbytes <= before.hidden_nbytes:
            break
        distribution = search.distribution_of(layouts)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LayoutWarning)
                traced = retrace(distribution)
        except KerasDistError:  # such as micro-batches that do not divide the batch
            continue
        other = propagate(traced.lowered)
        after = _figures(traced, other)
        more = _LEAST_GAIN * max(1, len(changes) - len(best.changes) if best else 0)
        if _is_better(after, before) and (best is None or _score(after) < _score(best.after) - more):
            best = Remedy(changes, written(distribution), before, after, traced, other)
    return best


def _figures(program: StepProgram, step: Propagated) -> Figures:
    rows = program.state.rows
    return _costs(step, nbytes_of(rows, {row.path: row.axes for row in rows}, program.state.mesh.axis_sizes))


def _costs(step: Propagated, held_nbytes: int) -> Figures:
    moved = sum(each.nbytes_per_step for each in step.collectives)
    hidden = sum(each.nbytes_per_step for each in step.collectives if not each.is_asked)
    return Figures(moved, step.flops, held_nbytes, hidden)


def _score(figures: Figures) -> float:
    """Return a number that is lower the better; ratios count, since a step may be of any size.

    Hidden reshards count twice: a remedy must not add any.
    """
    held = max(figures.held_nbytes, 1)
    moved = figures.moved_nbytes + figures.hidden_nbytes
    return 2 * math.log((moved + held / 8) * max(figures.flops, 1)) + math.log(held)


def _is_better(after: Figures, before: Figures) -> bool:
    """Whether costs are lower. Work that all devices repeat ends at any price: that is what devices are for."""
    is_lower = after.flops <= (1 + _MOST_REPEATED) * before.flops and _score(after) < _score(before) - _LEAST_GAIN
    return is_lower or after.flops <= _HALVED * before.flops


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
        self._layouts = {row.path: row.axes for row in (*self._weights.values(), *self._batch)}
        self._before = self._costs_of(self._layouts)

    def sets(self) -> list[tuple[float, Layouts, tuple[Layouts, ...]]]:
        """Return sets of the changes that are found, with expected gain and layouts: all, the first, and each alone.

        First comes the batch over axes along which much work is repeated: where no weight is sharded, in all sets; else
        alone, since a screened step lacks the constraints of experts. Then comes the largest gain; each change must add
        to it. In a set, first comes the change that ends most repeated work, and of several the one that ends most
        reshards.
        """
        batch = self._batch_for_all()
        is_forgotten = batch is not None and not self._used(self._weights, self._layouts)
        changes = [batch] if batch is not None and is_forgotten else []
        changes += self._further(changes)
        count = range(len(changes))
        costs = [self._costs_of(self._layouts_after([change])) for change in changes]
        flops = (1 + _MOST_REPEATED) * min((each.flops for each in costs), default=0)
        ended = [(each.flops > flops, each.moved_nbytes + each.hidden_nbytes, _score(each)) for each in costs]
        order = sorted(count, key=lambda n: (is_forgotten and n > 0, *ended[n]))
        sets = [(*range(n + 1),) for n in count] + [(n,) for n in count if n and not is_forgotten]
        found: list[tuple[float, Layouts, tuple[Layouts, ...]]] = []
        for chosen in sets:
            layouts = self._layouts_after([changes[n] for n in chosen])
            gain = _score(self._before) - _score(self._costs_of(layouts))
            if is_forgotten or gain > _LEAST_GAIN:
                found.append((gain, layouts, tuple(changes[n] for n in order if n in chosen)))
        found.sort(key=lambda each: _LEAST_GAIN * len(each[2]) - each[0])
        alone = [] if batch is None or is_forgotten else [(math.inf, self._layouts_after([batch]), (batch,))]
        return [*alone, *found]

    def _further(self, changes: list[Layouts]) -> list[Layouts]:
        """Return changes after these, each of which is best after those before it."""
        layouts = self._layouts_after(changes)
        best, further = self._costs_of(layouts), list[Layouts]()
        while len(further) < _MOST_ROUNDS and (found := self._best(layouts, best)):
            best, change = found
            layouts = {**layouts, **change}
            further.append(change)
        return further

    def _layouts_after(self, changes: Iterable[Layouts]) -> Layouts:
        return functools.reduce(lambda layouts, change: {**layouts, **change}, changes, self._layouts)

    def _batch_for_all(self) -> Layouts | None:
        """Return the batch over axes along which much work is repeated."""
        idle, again = self._idle(self._layouts), {axis for each in self._step.repeated for axis in each.axes}
        axes = [axis for axis in self._sizes if axis in idle or axis in again]
        tried = self._tries(self._batches(self._layouts, axes), self._layouts)
        found = [(after.flops, after.moved_nbytes, each) for each, after in tried]
        flops, _, change = min(found, key=lambda each: each[:2], default=(math.inf, 0, None))
        return change if flops <= _LESS * self._before.flops else None

    def _best(self, layouts: Layouts, best: Figures) -> tuple[Figures, Layouts] | None:
        """Return the change with the lowest score, and of equal ones that with the fewest rules."""
        found = [
            (_score(after), after, each)
            for each, after in self._tries(self._candidates(layouts), layouts)
            if after.flops <= (1 + _MOST_REPEATED) * best.flops  # moving less must not repeat work
        ]
        least = min((score for score, *_ in found), default=math.inf)
        if least > _score(best) - _LEAST_GAIN:
            return None
        same = [each for each in found if each[0] < least + _SAME]
        _, after, change = min(same, key=lambda each: len(self._edited({**layouts, **each[2]})))
        return after, change

    def _tries(self, changes: Iterable[Layouts], layouts: Layouts) -> Iterator[tuple[Layouts, Figures]]:
        for each in changes:
            if self._tried < MOST_TRIED and time.monotonic() < self._deadline:
                self._tried += 1
                yield each, self._costs_of({**layouts, **each})

    def _edited(self, layouts: Layouts) -> LayoutMap:
        return edited_rules(self._rules, list(self._weights.values()), layouts)

    def _propagated(self, layouts: Layouts) -> Propagated:
        kept = tuple(rule for rule in self._rules if rule not in layouts or rule in self._weights)
        if kept not in self._screens:
            self._screens[kept] = Screen(self._program, kept)
        return self._screens[kept].propagate(self._sizes, self._with_slots(layouts))

    def _with_slots(self, layouts: Layouts) -> Layouts:
        return {**layouts, **{slot: layouts[path] for slot, path in self._slots.items() if path in layouts}}

    def _costs_of(self, layouts: Layouts) -> Figures:
        rows, every = self._program.state.rows, self._with_slots(layouts)
        gathered = self._program.distribution.gathered_axes
        held = fully_sharded(rows, every, gathered, self._sizes) if gathered else every
        return _costs(self._propagated(layouts), nbytes_of(rows, held, self._sizes))

    def _candidates(self, layouts: Layouts) -> Iterator[Layouts]:
        """Yield changes, most likely first."""
        yield from ({rule: ()} for rule in self._rules if names_tensor(rule) and rule not in layouts)
        used, idle = self._used(self._weights, layouts), self._idle(layouts)
        again = {axis for each in self._step.repeated for axis in each.axes} - set(idle)
        yield from self._batches(layouts, [*idle, *(axis for axis in self._sizes if axis in again)])
        yield from filter(None, (self._renamed(layouts, old, new) for new in idle for old in self._sizes if old != new))
        axes = [axis for axis in self._sizes if axis in used or axis in idle] or list(self._sizes)
        suspects = self._suspects(layouts)
        yield from self._swapped(suspects) if layouts is self._layouts else ()
        entries = {each.name: {layouts[path][dim] for path, dim in self._members(each)} for each in self._classes}
        for each in sorted(self._classes, key=lambda each: (len(entries[each.name]) < 2, -each.nbytes)):
            if len(entries[each.name]) > 1 or any(path in suspects for path, _ in each.members):
                tried = [*axes, *sorted(entry for entry in entries[each.name] if isinstance(entry, tuple)), None]
                yield from filter(None, (self._assigned(each, entry, layouts) for entry in tried))

    def _members(self, each: DimClass) -> list[tuple[str, int]]:
        return [(path, dim) for path, dim in each.members if path in self._weights]

    def _used(self, paths: Iterable[str], layouts: Layouts) -> set[str]:
        return {axis for path in paths for axis in used_by(layouts[path])}

    def _idle(self, layouts: Layouts) -> list[str]:
        """Return the axes that shard neither weights nor the batch."""
        busy = self._used([*self._weights, *(row.path for row in self._batch)], layouts)
        return [axis for axis, size in self._sizes.items() if size > 1 and axis not in busy]

    def _batches(self, layouts: Layouts, axes: Iterable[str]) -> Iterator[Layouts]:
        """Yield layouts of the batch over each of these axes, also with the axes now, and over all."""
        now, used = layouts[self._batch[0].path][0], self._used((row.path for row in self._batch), layouts)
        axes = [axis for axis in axes if axis not in used]
        entries = [entry for axis in axes for entry in (axis, _joined(now, axis))]
        entries += [tuple(axis for axis in self._sizes if axis in (*axis_tuple(now), *axes))] if len(axes) > 1 else []
        for entry in dict.fromkeys(entries):
            if not any(row.shape[0] % self._shards(entry) for row in self._batch):
                yield {row.path: (entry, *layouts[row.path][1:]) for row in self._batch}

    def _shards(self, entry: Axis) -> int:
        return math.prod(self._sizes[name] for name in axis_tuple(entry))

    def _renamed(self, layouts: Layouts, old: str, new: str) -> Layouts:
        """Return the layouts of weights that change if one axis replaces another."""
        found: dict[str, tuple[Axis, ...]] = {}
        for row in self._weights.values():
            axes = tuple(new if entry == old else entry for entry in layouts[row.path])
            if axes != layouts[row.path] and self._divides(axes, row):
                found[row.path] = axes
        return found

    def _swapped(self, suspects: set[str]) -> Iterator[Layouts]:
        """Yield layouts with two rules for suspects exchanged."""
        groups: dict[str | None, list[Row]] = collections.defaultdict(list)
        for row in (row for row in self._weights.values() if row.path in suspects and any(row.axes)):
            groups[row.rule].append(row)
        for one, other in itertools.islice(itertools.combinations(groups.values(), 2), _MOST_SWAPPED):
            first, second = one[0].axes, other[0].axes
            found = {row.path: second for row in one} | {row.path: first for row in other}
            if first != second and all(self._divides(axes, self._weights[path]) for path, axes in found.items()):
                yield found

    def _divides(self, axes: tuple[Axis, ...], row: Row) -> bool:
        return len(axes) == len(row.shape) and not any(map(operator.mod, row.shape, map(self._shards, axes)))

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

    def distribution_of(self, layouts: Layouts) -> Distribution:
        """Return a distribution with these layouts."""
        now, rules = self._program.distribution, self._edited(layouts)
        batch = now.batch_dim_name
        if any(layouts[row.path][0] != row.axes[0] for row in self._batch):
            batch = layouts[self._batch[0].path][0]
        options = options_of(now)
        if isinstance(now, FullySharded):
            return FullySharded(self._mesh, now.axis, rules, batch, **options)
        return ModelParallel(rules, () if batch is None else batch, **options)


def _joined(entry: Axis, axis: str) -> Axis:
    return (*axis_tuple(entry), axis) if entry else axis


def _followed(row: Row) -> str:
    return (row.rule or "").removeprefix(FOLLOWS).partition(", ")[0]
