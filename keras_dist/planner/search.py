"""The search for a layout: meshes, classes of dims over their axes, and fully sharded weights, each propagated."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from keras_dist.distribution.layout import Axis
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.distribution.plan import Row
from keras_dist.planner.dim_classes import DimClass, DimClasses
from keras_dist.planner.propagation import Collective, Propagated
from keras_dist.planner.roofline import roofline
from keras_dist.planner.targets import Target
from keras_dist.planner.verdict import bound_nbytes

Objective = Literal["step_time", "memory"]

_MOST_CLASSES = 6
"""All combinations are tried of so many classes, those with the largest gains."""

_MOST_SHARED = 4
"""The same for classes over axes of the batch."""

_FLOPS_PER_SECOND, _MEMORY_BYTES_PER_SECOND, _LINK_BYTES_PER_SECOND = 2e14, 1e12, 5e10
"""Figures of a device without a target, with the proportions of common accelerators."""


_OF_LAYOUT = ("mesh", "rules", "fully_sharded", "shard_optimizer", "remat")


@dataclasses.dataclass(frozen=True)
class Candidate:
    """An evaluated layout with its costs. Bytes are per device.

    Attributes:
        mesh: sizes of the axes of the mesh.
        rules: the axis, or axes, of each sharded class of dims.
        fully_sharded: whether weights and slots are also sharded over the axes of the batch.
        step_seconds: least time of a step, from its collectives, FLOPs and memory traffic [s].
        state_nbytes: bytes of weights and slots.
        activation_nbytes: estimated bytes of intermediate results.
        moved_nbytes: bytes exchanged in a step.
        compiled_seconds: least time of the step as compiled for the target [s]; None if it was not compiled.
        compiled_nbytes: peak memory of the compiled step; None if it was not compiled.
        shard_optimizer: whether the slots alone are sharded over the axis of the batch (ZeRO-1).
        remat: the `remat` of `compile`, layers to recompute in the backward pass; None for none.
        doubts: number of operations whose collectives XLA may choose otherwise; see `Estimate`.
        most_nbytes: bound of the memory of one device, as in `Verdict`; None if the memory of an operation is unknown.
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
    doubts: int = 0
    most_nbytes: int | None = None

    @property
    def nbytes(self) -> int:
        """Largest memory of one device [bytes]."""
        return self.state_nbytes + self.activation_nbytes

    @property
    def peak_nbytes(self) -> int:
        """Peak memory of the compiled step, or `nbytes` if it was not compiled."""
        return self.nbytes if self.compiled_nbytes is None else self.compiled_nbytes

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Candidate:
        """Return the candidate of `dataclasses.asdict` that was sent as JSON."""
        rules = {name: tuple(axes) if isinstance(axes, list) else axes for name, axes in values["rules"].items()}
        return cls(**{**values, "rules": rules})

    def is_like(self, other: Candidate) -> bool:
        """Whether both are the same layout."""
        return all(getattr(self, name) == getattr(other, name) for name in _OF_LAYOUT)


@dataclasses.dataclass
class Search:
    """A search, with all candidates that were tried."""

    classes: DimClasses
    objective: Objective
    memory_limit: int | None
    target: Target | None
    deadline: float  # of `time.monotonic()`
    remat: str | None = None  # of the traced step
    candidates: list[Candidate] = dataclasses.field(default_factory=list)
    skipped: int = 0  # candidates beyond the deadline

    def run(self, meshes: Iterable[Mapping[str, int]]) -> Candidate:
        """Return the best candidate on these meshes, with the batch over the first axis or over all.

        Last, if time is left, classes share axes with a batch over all: a large vocabulary may be sharded even so.
        """
        meshes = list(meshes)
        for sizes in meshes:
            names = tuple(sizes)
            for over in dict.fromkeys([names[:1], names]):
                self._on(sizes, over, [name for name in names if name not in over], _MOST_CLASSES)
        for sizes in meshes:
            self._on(sizes, tuple(sizes), list(sizes)[1:], _MOST_SHARED)
        return min(self.candidates, key=self.rank)

    def _on(self, sizes: Mapping[str, int], batch_axes: tuple[str, ...], axes: Sequence[str], most: int) -> None:
        """Try classes over `axes`, one after the other; all combinations of the `most` that gain most."""
        rules: dict[str, Axis] = {"batch": batch_axes[0] if len(batch_axes) == 1 else batch_axes}
        best = self._known(sizes, rules) or self._try(sizes, rules)
        for axis in [name for name in axes if sizes[name] > 1]:
            if best is None:
                return
            base = best
            singles = [self._try(sizes, {**base.rules, each.name: axis}) for each in self._shardable(base, axis)]
            gaining = sorted((each for each in singles if each and self.rank(each) < self.rank(base)), key=self.rank)
            names = [list(each.rules)[-1] for each in gaining[:most]]
            tried = [base, *gaining]
            for count in range(2, len(names) + 1):
                for chosen in itertools.combinations(names, count):
                    if not _clash(chosen, self.classes):
                        found = self._try(sizes, {**base.rules, **dict.fromkeys(chosen, axis)})
                        tried += [found] if found else []
            best = self._improved(min(tried, key=self.rank), axis)

    def _improved(self, best: Candidate, axis: str) -> Candidate:
        """Change one class at a time as long as the candidate improves."""
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
        plain = (each for each in self.candidates if not (each.fully_sharded or each.shard_optimizer))
        wanted = sizes, rules, self.remat
        return next((each for each in plain if (each.mesh, each.rules, each.remat) == wanted), None)

    def _try(self, sizes: Mapping[str, int], rules: Mapping[str, Axis]) -> Candidate | None:
        """Add a candidate and its fully sharded variants; None after the deadline."""
        if time.monotonic() > self.deadline and self.candidates:
            self.skipped += 1
            return None
        classes, rows = self.classes, self.classes.program.state.rows
        layouts, _ = classes.layouts(rules, sizes)
        step = classes.screen.propagate(sizes, layouts)
        whole = nbytes_of(rows, layouts, sizes)
        found = self._candidate(sizes, rules, step, whole)
        axes = axis_tuple(rules["batch"])
        if math.prod(sizes[axis] for axis in axes) > 1:
            sharded = fully_sharded(rows, layouts, axes, sizes)
            own: dict[tuple[str, ...], list[Row]] = collections.defaultdict(list)
            for row in (row for row in rows if row.role == "parameter"):
                more = used_by(sharded.get(row.path, ())) - used_by(layouts.get(row.path, ()))
                own[tuple(axis for axis in axes if axis in more)].append(row)
            own.pop((), None)  # weights that stay whole
            gathered = nbytes_of(itertools.chain(*own.values()), layouts, sizes)
            state = nbytes_of(rows, sharded, sizes)
            of_weights = _with_state(step, state - whole)
            for over, weights in own.items():
                of_weights = with_gathers(of_weights, nbytes_of(weights, layouts, sizes), over)
            self._candidate(sizes, rules, of_weights, state, fully_sharded=True)
            if len(sizes) == 1:  # ZeRO-1 is an option of `DataParallel`
                slots = fully_sharded([row for row in rows if row.role == "slot"], layouts, axes, sizes)
                state = nbytes_of(rows, slots, sizes)
                update = Collective("all_gather", axes, gathered, 1, "", "update")
                step = _with_state(step, state - whole)
                updated = dataclasses.replace(step, collectives=(*step.collectives, update))
                self._candidate(sizes, rules, updated, state, shard_optimizer=True)
        return found

    def _candidate(
        self, sizes: Mapping[str, int], rules: Mapping[str, Axis], step: Propagated, state: int, **kind: bool
    ) -> Candidate:
        moved = sum(each.nbytes_per_step for each in step.collectives)
        figures = step_seconds(sizes, step, self.target), state, step.activation_nbytes, moved
        is_fully, doubts = kind.pop("fully_sharded", False), sum(each.count for each in step.estimates)
        platform = self.target and self.target.platform
        most = None if step.opaque else state + bound_nbytes(platform, step)
        known: Any = {"remat": self.remat, "doubts": doubts, "most_nbytes": most, **kind}
        found = Candidate(dict(sizes), dict(rules), is_fully, *figures, **known)
        self.candidates.append(found)
        return self.candidates[-1]

    def rank(self, candidate: Candidate) -> tuple[float, ...]:
        """Sort key of a candidate; lower is better: first memory overflow, then the objective."""
        over = max(0, candidate.nbytes - self.memory_limit) if self.memory_limit is not None else 0
        ranked = candidate.step_seconds, candidate.nbytes
        return (over, *(ranked if self.objective == "step_time" else reversed(ranked)), len(candidate.rules))


def _clash(names: Sequence[str], classes: DimClasses) -> bool:
    """Whether two of these classes are dims of one array."""
    paths = [{path for path, _ in classes[name].members} for name in names]
    return any(one & other for one, other in itertools.combinations(paths, 2))


def step_seconds(sizes: Mapping[str, int], step: Propagated, target: Target | None) -> float:
    """Return the least time of a step without overlap; see `Roofline.serial_step_seconds`.

    Without a target devices form rings: `n` of them take the time of `(n - 1) / n` of the bytes on one link, twice that
    for an all-reduce.
    """
    if target is not None:
        accessed = step.traffic_nbytes(target.chip.vector_nbytes)
        dtype = step.dtype if step.dtype in target.chip.flops_per_second else "float32"
        found = step.collectives
        line = roofline(target, sizes, flops=step.flops, accessed_nbytes=accessed, collectives=found, dtype=dtype)
        return line.serial_step_seconds
    sent = sum(_sent_nbytes(each, math.prod(sizes[axis] for axis in each.axes)) for each in step.collectives)
    computed = max(step.flops / _FLOPS_PER_SECOND, step.accessed_nbytes / _MEMORY_BYTES_PER_SECOND)
    return computed + sent / _LINK_BYTES_PER_SECOND


def _sent_nbytes(each: Collective, devices: int) -> float:
    return (2 if each.kind == "all_reduce" else 1) * (devices - 1) / devices * each.nbytes_per_step


def fully_sharded(
    rows: Iterable[Row], layouts: Mapping[str, Sequence[Axis]], axes: tuple[str, ...], sizes: Mapping[str, int]
) -> dict[str, tuple[Axis, ...]]:
    """Return the layouts of `FullySharded`: the largest dim of each array that divides is sharded over `axes`, too.

    Axes that shard another dim of the array are left out.
    """
    found = {path: tuple(entries) for path, entries in layouts.items()}
    for row in rows:
        if row.role not in ("parameter", "statistic", "state", "slot"):
            continue
        entries = list(layouts.get(row.path) or (None,) * len(row.shape))
        free = tuple(axis for axis in axes if axis not in used_by(entries))
        shards = math.prod(sizes[axis] for axis in free)
        dims = [dim for dim, size in enumerate(row.shape) if size and entries[dim] is None and size % shards == 0]
        if dims and free:
            entries[max(dims, key=lambda dim: (row.shape[dim], -dim))] = free[0] if len(free) == 1 else free
            found[row.path] = tuple(entries)
    return found


def used_by(entries: Sequence[Axis]) -> set[str]:
    """Return the axes of a layout."""
    return {axis for entry in entries for axis in axis_tuple(entry)}


def with_gathers(step: Propagated, gathered: int, axes: tuple[str, ...]) -> Propagated:
    """Add the collectives of fully sharded weights to a step.

    The weights, `gathered` bytes, are gathered twice, and their gradients are reduced and scattered.
    """
    left, exchanged = gathered, list[Collective]()
    for each in step.collectives:
        if each.kind == "all_reduce" and each.axes == axes and 0 < each.nbytes_per_step <= left:
            left -= each.nbytes_per_step
            each = dataclasses.replace(each, kind="reduce_scatter")
        exchanged.append(each)
    exchanged += [Collective("all_gather", axes, gathered, 1, "", name) for name in ("forward", "backward")]
    return dataclasses.replace(step, collectives=tuple(exchanged))


def _with_state(step: Propagated, more_nbytes: int) -> Propagated:
    """Return a step with more bytes of state, which are read and written."""
    accessed, interface = (nbytes + 2 * more_nbytes for nbytes in (step.accessed_nbytes, step.interface_nbytes))
    return dataclasses.replace(step, accessed_nbytes=accessed, interface_nbytes=interface)


def nbytes_of(rows: Iterable[Row], layouts: Mapping[str, Sequence[Axis]], sizes: Mapping[str, int]) -> int:
    """Return the bytes of the shards in the memory of one device."""
    total = 0
    for row in (each for each in rows if each.memory_kind is None):
        entries = layouts.get(row.path, ())
        total += row.nbytes // math.prod(sizes[axis] for entry in entries for axis in axis_tuple(entry))
    return total


def meshes_of(devices: int) -> list[dict[str, int]]:
    """Return the meshes `data` x `model` of `count` devices, those with more batch shards first."""
    sizes = [size for size in range(2, devices + 1) if devices % size == 0]
    return [{"data": devices}, *({"data": devices // size, "model": size} for size in sizes)]


def blocks_of(classes: DimClasses) -> str | None:
    r"""Return a `remat` for the blocks that a model repeats, such as `blocks/\d+`, or None."""
    repeated: dict[str, set[str]] = {}
    for row in classes.program.state.rows:
        parts = row.path.split("/") if row.role == "parameter" else []
        numbers = [index for index, part in enumerate(parts[:-1]) if part.isdecimal()]
        if numbers and len(parts) > numbers[0] + 2:  # modules of modules, not single layers
            block = parts[: numbers[0]]
            repeated.setdefault("/".join([*map(re.escape, block), r"\d+"]), set()).add(parts[numbers[0]])
    found = [rule for rule, blocks in repeated.items() if len(blocks) > 1]
    return "|".join(found) or None
