"""`find_remedy`: other layout rules for a step that moves, computes or holds more than it must, found by trying them.

The layer that gathers is often the victim of a rule elsewhere. So rules are tried one by one: each is left out, or its
axes are moved or replaced; weights that no rule matches get layouts, and the batch other axes. Each change is
propagated. Changes that gain together are combined, and those without which the step costs as little are left out.

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
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from keras_dist.planner.logical_rules import edited_rules
from keras_dist.planner.propagated import Propagated
from keras_dist.planner.propagation import propagate
from keras_dist.planner.search import fully_sharded, nbytes_of, used_by
from keras_dist.planner.search_result import ConfigPart, options_of
from keras_dist.planner.tracing import StepProgram

Layouts = Mapping[str, tuple[Axis, ...]]
Change = tuple[Layouts, ...]
"""Layouts of the weights of each rule, or of the batch, that change at once."""
Retrace = Callable[[Distribution], StepProgram]
"""Traces the same step under another distribution."""

MOST_TRIED = 64
"""Largest number of layouts that are propagated to find a remedy."""

_MOST_SECONDS = 60.0
_MOST_ALONE, _MOST_TOGETHER, _MOST_SWAPPED = 44, 54, 10
"""Numbers of propagated layouts after which no single change, and no further one, is tried; pairs of rules that are
exchanged."""
_LEAST_GAIN, _SAME, _LARGE = 0.01, 0.05, 0.02
"""Score by which a change is better; part by which costs may be higher for a smaller change; part of all bytes from
which an unsharded weight is large."""
_MOST_REPEATED, _LESS, _HALVED, _MOST_WHOLE = 0.1, 0.8, 0.6, 0.1
"""Part of the FLOPs that rules may add, since a step that moves far less may repeat a small layer; the part that is
left where much work was repeated, and where most was; part of the bytes of all weights that may become unsharded."""


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
    program: StepProgram, step: Propagated, retrace: Retrace, written: Callable[[ConfigPart], str]
) -> Remedy | None:
    """Return the best rules of those that were tried, `written`; None if none is better than the rules of the step.

    Sets of the changes that were found are traced, until one costs as little as the next set is expected to.
    """
    search = _Search(program, step)
    before, best = _figures(program, step), None
    for changes in search.sets():
        enough = _score(before) - search.gain_of(changes) + _SAME
        if best is not None and _score(best.after) < enough and best.after.hidden_nbytes <= before.hidden_nbytes:
            break
        distribution = search.distribution_of(search.layouts_after(changes))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LayoutWarning)
                traced = retrace(distribution)
        except KerasDistError:  # such as micro-batches that do not divide the batch
            continue
        other = propagate(traced.lowered)
        after = _figures(traced, other)
        more = _LEAST_GAIN * max(1, len(changes) - len(best.changes) if best else 0)
        is_best = best is None or (_is_near(after, best.after) and _score(after) < _score(best.after) - more)
        if is_best and _is_better(after, before):
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


def _is_further(after: Figures, before: Figures) -> bool:
    """Whether another change computes or moves less, and holds no more: memory for exchanges is another matter."""
    moves_less = after.moved_nbytes + after.hidden_nbytes <= before.moved_nbytes + before.hidden_nbytes
    return after.held_nbytes <= (1 + _SAME) * before.held_nbytes and (moves_less or after.flops < before.flops)


class _Search:
    def __init__(self, program: StepProgram, step: Propagated) -> None:
        self._program, self._step = program, step
        self._mesh, self._rules = program.state.mesh, program.distribution.layout_map or LayoutMap(program.state.mesh)
        self._sizes = self._mesh.axis_sizes
        rows = [row for row in program.state.rows if row.role in ("parameter", "statistic")]
        self._weights = {row.path: dataclasses.replace(row, axes=row.compute_axes) for row in rows}
        self._slots = {row.path: _followed(row) for row in program.state.rows if row.role == "slot"}
        self._batch = [row for row in program.batch.rows if row.shape]
        self._screens: dict[tuple[str, ...], Screen] = {}
        self._deadline = time.monotonic() + _MOST_SECONDS
        self._layouts = {row.path: row.axes for row in (*self._weights.values(), *self._batch)}
        self._known: dict[frozenset[tuple[str, tuple[Axis, ...]]], Figures] = {}
        self._before = self._costs_after(())

    def sets(self) -> Iterator[Change]:
        """Yield changes, largest effect first: the batch, since the step may be of experts; all; then each alone."""
        batch, found = self._batch_for_all(), self._found()
        sets = [batch] if batch else []
        sets += [found] if found not in ((), batch) else []
        yield from (*sets, *((each,) for each in found if len(found) > 1), *self._like_others())

    def gain_of(self, changes: Change) -> float:
        """Return the expected gain of changes, as a difference of scores."""
        return _score(self._before) - _score(self._costs_after(changes))

    def _found(self) -> Change:
        """Return the fewest changes that together cost about as little as all that gain."""
        alone = [each for each in self._tries(self._changes(), _MOST_ALONE) if _is_better(each[1], self._before)]
        flops = min((after.flops for _, after in alone), default=0) / _LESS
        alone.sort(key=lambda each: (each[1].flops > flops, _score(each[1]) + _SAME * (len(each[0]) > 1)))
        found, best = Change(), self._before
        for change, _ in alone:
            taken = {path for each in found for path in each}
            more = (*found, *(each for each in change if each and taken.isdisjoint(each)))
            for _, after in self._tries([more] if more != found else [], _MOST_TOGETHER):
                if (not found or _is_further(after, best)) and _is_better(after, best):
                    found, best = more, after
        return self._fewest(found, best)

    def _like_others(self) -> Iterator[Change]:
        """Yield the layout that rules give other experts, for experts without one."""
        for rows in self._grouped(_experts_of).values():
            layouts = {row.axes for row in rows if any(row.axes)}
            if len(layouts) == 1 and any(not any(row.axes) for row in rows):
                yield (_with(rows, *layouts),)

    def _batch_for_all(self) -> Change:
        """Return the batch over axes along which much work is repeated, or nothing."""
        costs = [(after.flops, after.moved_nbytes, change) for change, after in self._tries(self._batches())]
        flops, _, change = min(costs, key=lambda each: each[:2], default=(math.inf, 0, ()))
        return change if flops <= _LESS * self._before.flops else ()

    def _fewest(self, found: Change, best: Figures) -> Change:
        """Leave out changes that hardly matter; the change without which the step costs most comes first."""
        tried = self._tries(_other(found, one) for one in found)
        without = [(_score(after), one) for one, (_, after) in zip(found, tried, strict=False)]
        for _, one in sorted(without, key=operator.itemgetter(0)):
            for others, after in self._tries([_other(found, one)] if len(found) > 1 else []):
                found = others if _is_near(after, best) else found
        scores = {id(one): score for score, one in without}
        return tuple(sorted(found, key=lambda one: -scores.get(id(one), math.inf)))

    def layouts_after(self, changes: Iterable[Layouts]) -> Layouts:
        """Return all layouts after changes."""
        return functools.reduce(lambda layouts, change: {**layouts, **change}, changes, self._layouts)

    def _tries(self, changes: Iterable[Change], most: int = MOST_TRIED) -> Iterator[tuple[Change, Figures]]:
        for each in changes:
            if len(self._known) >= min(most, MOST_TRIED) or time.monotonic() > self._deadline:
                return
            yield each, self._costs_after(each)

    def _costs_after(self, changes: Change) -> Figures:
        layouts = self.layouts_after(changes)
        key = frozenset(layouts.items())
        if key not in self._known:
            kept = tuple(rule for rule in self._rules if rule not in layouts or rule in self._weights)
            if kept not in self._screens:
                self._screens[kept] = Screen(self._program, kept)
            rows, gathered = self._program.state.rows, self._program.distribution.gathered_axes
            every = {**layouts, **{slot: layouts[path] for slot, path in self._slots.items() if path in layouts}}
            held = fully_sharded(rows, every, gathered, self._sizes) if gathered else every
            step = self._screens[kept].propagate(self._sizes, every, with_memory=False)
            self._known[key] = _costs(step, nbytes_of(rows, held, self._sizes))
        return self._known[key]

    def _changes(self) -> Iterator[Change]:
        """Yield rules for activations left out, other axes of the batch or of all rules, and layouts of weights."""
        yield from (({rule: ()},) for rule in self._rules if names_tensor(rule))
        yield from self._batches()
        rules, kinds = self._grouped(self._rule_of), self._grouped(kind_of)
        for old, new in itertools.product(self._sizes, self._idle()):
            renamed = ((rows, tuple(new if each == old else each for each in rows[0].axes)) for rows in rules.values())
            yield tuple(_with(*each) for each in renamed if self._divides_all(_with(*each)))
        mixed = [(rows, {row.axes for row in rows if any(row.axes)}) for rows in kinds.values()]
        mixed = [(rows, found) for rows, found in mixed if len({row.axes for row in rows}) > 1]
        yield tuple(_with(rows, min(found, key=str)) for rows, found in mixed)
        yield from ((_with(rows, axes),) for rows, found in mixed for axes in found)
        uniform = [rows for rows in kinds.values() if len({row.axes for row in rows}) == 1]
        experts = [rows for rows in self._grouped(_experts_of).values() if not any(any(row.axes) for row in rows)]
        subjects = [*rules.values(), *uniform, *experts]
        subjects.sort(key=lambda rows: -sum(row.nbytes for row in rows))
        suspects = self._suspects()
        suspected = [rows for rows in subjects if not suspects.isdisjoint(row.path for row in rows)]
        yield from ((_with(rows, axes),) for rows in suspected for axes in self._others(rows))
        pairs = itertools.combinations((rows for rows in rules.values() if any(rows[0].axes)), 2)
        for one, other in itertools.islice(pairs, _MOST_SWAPPED):
            pair = _with(one, other[0].axes), _with(other, one[0].axes)
            yield pair if all(map(self._divides_all, pair)) else ()
        yield from ((_with(rows, axes),) for rows in subjects if any(rows[0].axes) for axes in self._others(rows))

    def _rule_of(self, row: Row) -> str | None:
        rule = (row.rule or "").partition(", ")[0]
        return rule if rule in self._rules else None

    def _grouped(self, key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
        """Return weights by key, without factors of LoRA and weights without a key."""
        groups: dict[Any, list[Row]] = collections.defaultdict(list)
        for row in self._weights.values():
            if not (row.rule or "").startswith(FOLLOWS) and key(row) is not None:
                groups[key(row)].append(row)
        return groups

    def _used(self, rows: Iterable[Row]) -> set[str]:
        return {axis for row in rows for axis in used_by(row.axes)}

    def _idle(self) -> list[str]:
        """Return the axes that shard neither weights nor the batch."""
        busy = self._used([*self._weights.values(), *self._batch])
        return [axis for axis, size in self._sizes.items() if size > 1 and axis not in busy]

    def _batches(self) -> Iterator[Change]:
        """Yield the batch over each axis, over the axes now with each other one, and over all axes."""
        now, every = axis_tuple(self._batch[0].axes[0]), [axis for axis, size in self._sizes.items() if size > 1]
        entries = [(axis,) for axis in every] + [(*now, axis) for axis in every if axis not in now] + [(*every,)]
        taken = {axis for row in self._batch for axis in used_by(row.axes[1:])}
        for entry in filter(None, dict.fromkeys(entries)):
            if taken.isdisjoint(entry) and not any(row.shape[0] % self._shards(entry) for row in self._batch):
                axes = entry if len(entry) != 1 else entry[0]
                yield ({row.path: (axes, *row.axes[1:]) for row in self._batch},)

    def _others(self, rows: list[Row]) -> Iterator[tuple[Axis, ...]]:
        """Yield layouts for weights of one layout: an axis less, axes moved, one axis, for small weights none."""
        now, rank, nbytes = rows[0].axes, len(rows[0].shape), sum(row.nbytes for row in rows)
        every = [axis for axis, size in self._sizes.items() if size > 1]
        axes = [axis for axis in every if axis not in self._used(self._batch)] or every
        fewer = used_by(now) if len(used_by(now)) > 1 else set[str]()
        found = [tuple(_without(entry, axis) for entry in now) for axis in self._sizes if axis in fewer]
        found += sorted(set(itertools.permutations(now)), key=str)
        found += [(*[None] * dim, axis, *[None] * (rank - dim - 1)) for axis in axes for dim in range(rank)[::-1]]
        if nbytes < _MOST_WHOLE * sum(row.nbytes for row in self._weights.values()):
            found.append((None,) * rank)
        yield from (each for each in dict.fromkeys(found) if self._divides_all(_with(rows, each)))

    def _shards(self, entry: Axis) -> int:
        return math.prod(self._sizes[name] for name in axis_tuple(entry))

    def _divides_all(self, layouts: Layouts) -> bool:
        """Whether there are axes for the dims of all weights, which they divide."""
        found = [(self._weights[path].shape, [*map(self._shards, axes)]) for path, axes in layouts.items()]
        return all(len(shape) == len(axes) and not any(map(operator.mod, shape, axes)) for shape, axes in found)

    def _suspects(self) -> set[str]:
        """Return weights of submodules with hidden reshards or repeated work, and sliced or large weights."""
        layers = {each.layer for each in self._step.repeated}
        for each in self._step.collectives:
            layers |= set() if each.is_asked else {each.layer, each.needed_by}
        found = {self._program.arguments[index] for index, _ in self._step.sliced}
        least = _LARGE * sum(row.nbytes for row in self._weights.values())
        for path, row in self._weights.items():
            is_large = row.nbytes > least and not any(row.axes)
            if is_large or (path.rpartition("/")[0] in layers and (any(row.axes) or len(row.shape) > 1)):
                found.add(path)
        return found

    def distribution_of(self, layouts: Layouts) -> Distribution:
        """Return a distribution with these layouts."""
        now, rules = self._program.distribution, edited_rules(self._rules, list(self._weights.values()), layouts)
        batch = now.batch_dim_name
        if any(layouts[row.path][0] != row.axes[0] for row in self._batch):
            batch = layouts[self._batch[0].path][0]
        options = options_of(now)
        if isinstance(now, FullySharded):
            return FullySharded(self._mesh, now.axis, rules, batch, **options)
        return ModelParallel(rules, () if batch is None else batch, **options)


def _with(rows: Iterable[Row], axes: tuple[Axis, ...]) -> Layouts:
    """Return the layouts that change."""
    return {row.path: axes for row in rows if row.axes != axes}


def _without(entry: Axis, axis: str) -> Axis:
    left = tuple(name for name in axis_tuple(entry) if name != axis)
    return left if len(left) > 1 else left[0] if left else None


def _experts_of(row: Row) -> tuple[str, int, int] | None:
    """Return one key for arrays of a module with equal first dims."""
    return (kind_of(row)[0].rpartition("/")[0], row.shape[0], len(row.shape)) if len(row.shape) > 2 else None


def kind_of(row: Row) -> tuple[str, tuple[int, ...]]:
    """Return one key for the same weight of all blocks."""
    return re.sub(r"\d+", "#", row.path), row.shape


def _other(changes: Change, left_out: Layouts) -> Change:
    return tuple(each for each in changes if each is not left_out)


def _is_near(figures: Figures, best: Figures) -> bool:
    """Whether all costs are about as low; hidden reshards count twice."""
    costs = [(each.moved_nbytes + each.hidden_nbytes, each.flops, each.held_nbytes) for each in (figures, best)]
    return all(one <= (1 + _SAME) * other for one, other in zip(*costs, strict=True))


def _followed(row: Row) -> str:
    return (row.rule or "").removeprefix(FOLLOWS).partition(", ")[0]
