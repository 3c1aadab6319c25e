"""The search for a layout: meshes, classes of dims over their axes, and fully sharded weights, each propagated."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from keras_dist.distribution.layout import Axis
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.distribution.plan import Row
from keras_dist.planner.backends import Moved, shards_moved_as
from keras_dist.planner.compiled import CompiledFigures
from keras_dist.planner.dim_classes import DimClass, DimClasses
from keras_dist.planner.propagated import Collective, Propagated
from keras_dist.planner.roofline import roofline
from keras_dist.planner.targets import Target
from keras_dist.planner.verdict import bound_nbytes

Objective = Literal["step_time", "memory"]

TENSOR_PARALLEL = ("heads", "mlp", "vocab", "channels")
"""Classes that tensor parallelism shards; see `presets.tensor_parallel`."""

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
    target: Target
    deadline: float  # of `time.monotonic()`
    remat: str | None = None  # of the traced step
    candidates: list[Candidate] = dataclasses.field(default_factory=list)
    presets: list[Candidate] = dataclasses.field(default_factory=list)
    skipped: int = 0  # candidates beyond the deadline

    def run(self, meshes: Iterable[Mapping[str, int]]) -> Candidate:
        """Return the best candidate on these meshes: of the presets, and of those that improve on them step by step.

        The batch is sharded over the first axis, then over all: a large vocabulary may share axes with the batch.
        """
        meshes, first = list(meshes), len(self.candidates)
        for place, sizes in enumerate(meshes):
            for rules in self._rules_of_presets(sizes, has_batch=place == 0):
                self._try(sizes, rules, is_preset=True)
        self.presets += (each for each in self.candidates[first:] if not each.shard_optimizer)
        for sizes in meshes:
            self._on(sizes, tuple(sizes)[:1])
        for sizes in meshes:
            self._on(sizes, tuple(sizes))
        return min(self.candidates, key=self.rank)

    def _rules_of_presets(self, sizes: Mapping[str, int], *, has_batch: bool) -> Iterator[dict[str, Axis]]:
        """Yield the rules of presets: data parallel, tensor parallel over the last axis, and with experts there."""
        *others, last = sizes
        if has_batch:
            yield {"batch": _joined(tuple(sizes))}
        for kinds in (TENSOR_PARALLEL, ("experts", *TENSOR_PARALLEL)):
            if others and (names := tensor_classes(self.classes, sizes[last], kinds)):
                yield {"batch": _joined(others), **dict.fromkeys(names, last)}

    def _on(self, sizes: Mapping[str, int], batch_axes: tuple[str, ...]) -> None:
        """Improve on a sharded batch, and on tensor parallelism, over one further axis after the other."""
        rules: dict[str, Axis] = {"batch": _joined(batch_axes)}
        best = self._try(sizes, rules)
        for axis in [name for name in [*sizes][1:] if sizes[name] > 1]:
            if best is None:
                return
            names = [name for name in tensor_classes(self.classes, sizes[axis]) if name not in best.rules]
            rules = {**best.rules, **dict.fromkeys(names, axis)}
            starts = filter(None, (best, self._try(sizes, rules)))
            best = min((self._improved(each, axis) for each in starts), key=self.rank)

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
                    found = self._try(best.mesh, rules)
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

    def _try(self, sizes: Mapping[str, int], rules: Mapping[str, Axis], *, is_preset: bool = False) -> Candidate | None:
        """Return a candidate, added with its fully sharded variants if it is new; None after the deadline."""
        for each in self.candidates:
            if each.is_like(Candidate(sizes, rules, False, 0.0, 0, 0, 0, remat=self.remat)):
                return each
        if time.monotonic() > self.deadline and not is_preset:
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
                of_weights = with_gathers(of_weights, [self._moved(row, layouts, sizes) for row in weights], over)
            self._candidate(sizes, rules, of_weights, state, fully_sharded=True)
            if len(sizes) == 1:  # ZeRO-1 is an option of `DataParallel`
                slots = fully_sharded([row for row in rows if row.role == "slot"], layouts, axes, sizes)
                state = nbytes_of(rows, slots, sizes)
                update = Collective("all_gather", axes, gathered, 1, "", "update")
                step = _with_state(step, state - whole)
                updated = dataclasses.replace(step, collectives=(*step.collectives, update))
                self._candidate(sizes, rules, updated, state, shard_optimizer=True)
        return found

    def _moved(self, row: Row, layouts: Mapping[str, Sequence[Axis]], sizes: Mapping[str, int]) -> tuple[Moved, Moved]:
        return shards_moved_as(self.target.platform, row.shape, str(row.dtype), nbytes_of([row], layouts, sizes))

    def _candidate(
        self, sizes: Mapping[str, int], rules: Mapping[str, Axis], step: Propagated, state: int, **kind: bool
    ) -> Candidate:
        moved = sum(each.nbytes_per_step for each in step.collectives)
        figures = step_seconds(sizes, step, self.target), state, step.activation_nbytes, moved
        is_fully, doubts = kind.pop("fully_sharded", False), sum(each.count for each in step.estimates)
        most = None if step.opaque else state + bound_nbytes(self.target.platform, step)
        known: Any = {"remat": self.remat, "doubts": doubts, "most_nbytes": most, **kind}
        found = Candidate(dict(sizes), dict(rules), is_fully, *figures, **known)
        self.candidates.append(found)
        return self.candidates[-1]

    def rank(self, candidate: Candidate) -> tuple[float, ...]:
        """Sort key of a candidate; lower is better: compiled ones, then memory overflow, then the objective."""
        seconds, nbytes = candidate.compiled_seconds, candidate.peak_nbytes
        over = max(0, nbytes - self.memory_limit) if self.memory_limit is not None else 0
        ranked = candidate.step_seconds if seconds is None else seconds, nbytes
        objective = ranked if self.objective == "step_time" else ranked[::-1]
        return (seconds is None, over, *objective, len(candidate.rules))


def tensor_classes(classes: DimClasses, shards: int, kinds: Sequence[str] = TENSOR_PARALLEL) -> list[str]:
    """Return the classes of these kinds that `shards` divides; of two classes in one array experts, or the first."""
    chosen: list[str] = []
    for each in sorted(classes, key=lambda each: not each.name.startswith("experts")):
        is_wanted = each.name.rstrip("0123456789") in kinds and any(parts % shards == 0 for parts in each.parts)
        if is_wanted and not _clash([*chosen, each.name], classes):
            chosen.append(each.name)
    return chosen


def _joined(axes: Sequence[str]) -> Axis:
    return axes[0] if len(axes) == 1 else tuple(axes)


def _clash(names: Sequence[str], classes: DimClasses) -> bool:
    """Whether two of these classes are dims of one array."""
    paths = [{path for path, _ in classes[name].members} for name in names]
    return any(one & other for one, other in itertools.combinations(paths, 2))


def step_seconds(
    sizes: Mapping[str, int],
    step: Propagated,
    target: Target,
    devices: Sequence[str] | None = None,
    compiled: CompiledFigures | None = None,
) -> float:
    """Return the least time of a step without overlap, propagated or compiled; see `Roofline.serial_step_seconds`."""
    flops, accessed, found = step.flops, step.traffic_nbytes(target.chip.vector_nbytes), step.collectives
    if compiled is not None and not compiled.note:
        flops, accessed, found = compiled.flops or flops, compiled.accessed_nbytes, compiled.collectives
    dtype = step.dtype if step.dtype in target.chip.flops_per_second else "float32"
    moved: Any = {"collectives": found, "dtype": dtype, "devices": devices}
    return roofline(target, sizes, flops=flops, accessed_nbytes=accessed, **moved).serial_step_seconds


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


def with_gathers(step: Propagated, moved: Sequence[tuple[Moved, Moved]], axes: tuple[str, ...]) -> Propagated:
    """Add the collectives of fully sharded weights: two gathers of each, and its gradient reduced to shards."""
    left = sum(reduction.nbytes for _, reduction in moved if reduction.kind == "reduce_scatter")
    exchanged = list[Collective]()
    for each in step.collectives:
        if each.kind == "all_reduce" and each.axes == axes and 0 < each.nbytes_per_step <= left:
            left -= each.nbytes_per_step
            each = dataclasses.replace(each, kind="reduce_scatter")
        exchanged.append(each)
    gathered = sum(gather.nbytes for gather, _ in moved)
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
