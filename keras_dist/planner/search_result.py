"""`SearchResult`: the layout that a search has found, with an explanation, as code and as a config."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from keras_dist._support.text_tables import Table, render
from keras_dist.distribution.data_parallel import DataParallel
from keras_dist.distribution.fully_sharded import FullySharded
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.mesh import DeviceMesh, axis_tuple
from keras_dist.distribution.model_parallel import ModelParallel
from keras_dist.distribution.render import render_bytes, render_seconds
from keras_dist.distribution.strategy import Distribution
from keras_dist.planner.dim_classes import DimClass, DimClasses, Unsharded
from keras_dist.planner.logical_rules import BATCH, axis_names_of, layout_map_of
from keras_dist.planner.propagated import Collective
from keras_dist.planner.search import Candidate

_MOST_CANDIDATES = 10


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SearchResult:
    """The layout that a search has found. Printing it shows an explanation and the candidates.

    Attributes:
        distribution: the strategy under which to create the model.
        layout_map: the layout rules.
        best: the costs of the layout.
        candidates: all layouts that were tried, the best first.
        unsharded: dims that stay unsharded although their class is sharded.
        explanation: a line for each axis of the mesh, for each class that is not sharded, and for the dims of each.
        is_complete: whether all candidates were tried within the time limit, and presets and best ones compiled.
        memory_limit: memory of a device [bytes]; None if it is not limited.
        not_compiled: number of candidates that were to be compiled, and were not; `explanation` says why.
    """

    distribution: Distribution
    layout_map: LayoutMap
    best: Candidate
    candidates: tuple[Candidate, ...]
    unsharded: tuple[Unsharded, ...]
    explanation: tuple[str, ...]
    is_complete: bool
    memory_limit: int | None = None
    not_compiled: int = 0

    @property
    def ranked_by(self) -> Literal["compiled", "propagated"]:
        """The tier of the figures that decided."""
        return "propagated" if self.best.compiled_seconds is None else "compiled"

    @property
    def fits(self) -> bool | None:
        """Whether the layout fits into `memory_limit`, by its compiled step or the estimate.

        None without limit, and where the estimate fits, but its bound does not, as in `Verdict`.
        """
        if self.memory_limit is None:
            return None
        if self.best.peak_nbytes > self.memory_limit:
            return False
        most = self.best.most_nbytes if self.best.compiled_nbytes is None else self.best.compiled_nbytes
        return True if most is not None and most <= self.memory_limit else None

    def __str__(self) -> str:
        headers = ("mesh", "sharded", "least time", "memory", "state", "moved", "compiled")
        shown = self.candidates[:_MOST_CANDIDATES]
        is_compiled = any(each.compiled_seconds is not None for each in shown)
        headers = headers if is_compiled else headers[:-1]
        kept = ("sharded", "mesh", "least time", "memory", *headers[6:], "moved")
        table = Table("Candidates, the best first", headers, headers[2:], kept)
        for each in shown:
            row = (
                ", ".join(f"{name}={size}" for name, size in each.mesh.items()),
                _sharded(each),
                render_seconds(each.step_seconds),
                *map(render_bytes, (each.peak_nbytes, each.state_nbytes, each.moved_nbytes)),
                "-" if each.compiled_seconds is None else render_seconds(each.compiled_seconds),
            )
            table.rows.append(row[: len(headers)])
        return render(*self.explanation, table)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.best.rules} on mesh {self.distribution.device_mesh.describe()}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the result and all candidates as plain values for JSON."""
        return {
            "mesh": self.distribution.device_mesh.axis_sizes,
            "layout": {rule: list(layout.axes) for rule, layout in self.layout_map.snapshot()},
            "toml": self.to_toml(),
            "explanation": list(self.explanation),
            "candidates": [dataclasses.asdict(each) for each in self.candidates],
            "is_complete": self.is_complete,
            "ranked_by": self.ranked_by,
            "not_compiled": self.not_compiled,
            "fits": self.fits,
        }

    def to_code(self) -> str:
        """Return Python code that creates the distribution, with a comment on `remat` of `compile`."""
        sizes = ",".join(f"{name}={size}" for name, size in self.distribution.device_mesh.axis_sizes.items())
        lines = ["import keras_dist as kd", "", f'mesh = kd.DeviceMesh("{sizes}")', code_of(self.distribution)]
        if self.best.remat is not None:
            lines.append(f"# model.compile(..., remat={self.best.remat!r})")
        return "\n".join([*lines, ""])

    def to_toml(self) -> str:
        """Return the tables `mesh`, `distribution` and, for `remat`, `training` of a config file."""
        sizes = self.distribution.device_mesh.axis_sizes.items()
        shape = ", ".join(f"{_quoted(name)} = {size}" for name, size in sizes)
        lines = ["[mesh]", f"shape = {{ {shape} }}", "", toml_of(self.distribution)]
        if self.best.remat is not None:
            lines += ["", "[training]", f"remat = {_quoted(self.best.remat)}"]
        return "\n".join([*lines, ""])


ConfigPart = Distribution | Mapping[str, Mapping[str, Any]]
"""Part of a config: a distribution, or tables of options."""


def toml_of(part: ConfigPart) -> str:
    """Return the table `distribution` of a config file, or other tables."""
    if isinstance(part, Mapping):
        lines = (line for name in part for line in (f"[{name}]", *map(_line, part[name].items())))
        return "\n".join(lines)
    distribution = part
    strategies = {FullySharded: "fully_sharded", DataParallel: "data_parallel"}
    strategy = strategies.get(type(distribution), "model_parallel")
    lines = ["[distribution]", f"strategy = {_quoted(strategy)}"]
    if distribution.batch_dim_name:
        lines.append(f"batch_axis = {_quoted(distribution.batch_dim_name)}")
    if isinstance(distribution, FullySharded):
        lines.append(f"axis = {_quoted(distribution.axis)}")
    if isinstance(distribution, DataParallel) and distribution.shard_optimizer:
        lines.append("shard_optimizer = true")
    lines += [_line(option) for option in options_of(distribution).items() if option[0] in _OPTIONS]
    rules = () if distribution.layout_map is None else distribution.layout_map.snapshot()
    lines += ["", "[distribution.layout]"] if rules else []
    for rule, layout in rules:
        lines.append(f"{_quoted(rule)} = {_quoted(['-' if axis is None else axis for axis in layout.axes])}")
    return "\n".join(lines)


def code_of(part: ConfigPart) -> str:
    """Return Python code that creates a distribution on `mesh`, or that compiles with options of training."""
    if isinstance(part, Mapping):
        options = (f"{name}={value!r}" for table in part.values() for name, value in table.items())
        return f"compile(..., {', '.join(options)})"
    distribution = part
    if isinstance(distribution, DataParallel):
        return f"distribution = kd.DataParallel(mesh{', shard_optimizer=True' * distribution.shard_optimizer})"
    rules = () if distribution.layout_map is None else distribution.layout_map.snapshot()
    lines = ["rules = kd.LayoutMap(mesh)", *(f"rules[{rule!r}] = {layout.axes!r}" for rule, layout in rules)]
    batch, options = distribution.batch_dim_name or (), options_of(distribution)
    named = "".join(f", {name}={value!r}" for name, value in options.items())
    over = f"mesh, {distribution.axis!r}, " if isinstance(distribution, FullySharded) else ""
    kind = "FullySharded" if over else "ModelParallel"
    return "\n".join([*lines, f"distribution = kd.{kind}({over}rules, {batch!r}{named})"])


def options_of(distribution: Distribution) -> dict[str, Any]:
    """Return the options of a strategy with rules that are not the default."""
    given = {"axis_names": dict(distribution.axis_names), "sequence_axis": distribution.sequence_axis}
    given |= {"min_size_bytes": getattr(distribution, "min_size_bytes", 0), "strict": distribution.strict}
    options: dict[str, Any] = {name: value for name, value in given.items() if value}
    return options if distribution.auto_shard_dataset else {**options, "auto_shard_dataset": False}


def distribution_of(
    candidate: Candidate, classes: DimClasses, mesh: DeviceMesh
) -> tuple[Distribution, LayoutMap, list[Unsharded]]:
    """Return the distribution of a candidate, its rules, and the dims that stay unsharded."""
    layouts, left = classes.layouts(candidate.rules, candidate.mesh)
    rules, batch = layout_map_of(layouts, classes, mesh), candidate.rules[BATCH]
    names = axis_names_of(candidate.rules, classes)
    if candidate.fully_sharded:
        return FullySharded(mesh, batch, rules, batch, axis_names=names), rules, left
    if len(mesh.shape) == 1 and not rules:
        return DataParallel(mesh, shard_optimizer=candidate.shard_optimizer), rules, left
    return ModelParallel(rules, batch, axis_names=names), rules, left


def result_of(
    best: Candidate,
    candidates: Sequence[Candidate],
    classes: DimClasses,
    mesh: DeviceMesh,
    memory_limit: int | None,
    skipped: int,
    to_compile: int,
    reasons: Sequence[str],
) -> SearchResult:
    """Return the result of a search, on the mesh of its best candidate.

    `skipped` candidates were not tried in time; `reasons` say why some of those `to_compile` were not compiled.
    """
    distribution, rules, left = distribution_of(best, classes, mesh)
    lines = [*_explained(best, candidates, classes, left)]
    if memory_limit is not None and best.peak_nbytes > memory_limit:
        needs, limit = render_bytes(best.peak_nbytes), render_bytes(memory_limit)
        lines.insert(0, f"nothing fits: the best layout needs {needs} of each device, which has {limit}")
    lines += [f"{each.name}: {each.describe()}" for each in classes]
    tier = "propagated" if best.compiled_seconds is None else "compiled"
    if best.doubts and tier == "propagated":
        lines.append(f"its exchanges are estimates in {best.doubts} operations, where XLA may choose others")
    done = f": {to_compile - len(reasons)} of {to_compile} candidates compiled" if to_compile else ""
    lines.append(f"ranked by {tier} figures, presets among the candidates{done}")
    for reason, count in collections.Counter(reasons).items():
        lines.append(f"{count} candidate{'s' * (count > 1)} not compiled: {reason}")
    if skipped:
        lines.append("the time limit ended the search before all candidates were tried")
    found = tuple(candidates), tuple(left), tuple(lines)
    return SearchResult(distribution, rules, best, *found, not (skipped or reasons), memory_limit, len(reasons))


def _explained(
    best: Candidate, candidates: Sequence[Candidate], classes: DimClasses, left: Sequence[Unsharded]
) -> Iterator[str]:
    layouts, _ = classes.layouts(best.rules, best.mesh)
    step = classes.screen.propagate(best.mesh, layouts)
    names_over: dict[Axis, list[str]] = collections.defaultdict(list)
    for name, axes in best.rules.items():
        names_over[axes].append(name)
    for axes, names in names_over.items():
        over = [each for each in step.collectives if set(each.axes) & set(axis_tuple(axes))]
        yield f"{_joined(axes)} -> {', '.join(names)}: {_moved(over)}"
    batch = _joined(best.rules[BATCH])
    if best.fully_sharded:
        yield f"{batch} -> weights and slots, fully: each weight is gathered where it is used"
    if best.shard_optimizer:
        yield f"{batch} -> slots: each device updates its part of the weights"
    if best.remat is not None:
        yield f"compile(remat={best.remat!r}): these layers are computed again in the backward pass"
    used = {axis for axes in best.rules.values() for axis in axis_tuple(axes)}
    if unused := [axis for axis, size in best.mesh.items() if size > 1 and axis not in used]:
        devices = math.prod(best.mesh[axis] for axis in unused)
        yield f"{'+'.join(unused)}: unused, {devices} devices repeat the same work"
    yield from (f"not sharded: {each}" for each in left)
    for each in classes:
        if each.name not in best.rules:
            yield f"{each.name} not sharded: {_why_not(each, best, candidates)}"


def _sharded(candidate: Candidate) -> str:
    """Describe the classes by their axes, as `batch: data; heads, mlp: model; weights: fully`."""
    names_over: dict[str, list[str]] = collections.defaultdict(list)
    for name, axes in candidate.rules.items():
        names_over[_joined(axes)].append(name)
    parts = [f"{', '.join(names)}: {axes}" for axes, names in names_over.items()]
    parts += ["weights: fully"] * candidate.fully_sharded + ["slots: sharded"] * candidate.shard_optimizer
    return "; ".join([*parts, *["remat"] * (candidate.remat is not None)])


def _why_not(dims: DimClass, best: Candidate, candidates: Sequence[Candidate]) -> str:
    def kind(each: Candidate) -> Any:
        return each.mesh, each.rules[BATCH], each.fully_sharded, each.remat

    others = [each for each in candidates if dims.name in each.rules and kind(each) == kind(best)]
    if not others:
        sizes = [size for size in [*best.mesh.values()][1:] if size > 1]
        if not sizes:
            return "the batch is sharded over all devices"
        if not any(part % size == 0 for part in dims.parts for size in sizes):
            return f"{' and '.join(map(str, sizes))} does not divide {math.gcd(*dims.parts)}"
        return "the time limit ended the search before it was tried"
    nearest = min(others, key=lambda each: (len(set(each.rules) ^ set(best.rules)), each.step_seconds))
    return (
        f"with it the step takes {nearest.step_seconds / best.step_seconds:.2f} times as long, "
        f"and a device holds {nearest.nbytes / best.nbytes:.2f} times the bytes"
    )


def _moved(collectives: Sequence[Collective]) -> str:
    """Describe exchanges, as `all-reduce of 1.8 MiB, 2 times a step`, those with most bytes first."""
    times: collections.Counter[tuple[str, int]] = collections.Counter()
    for each in collectives:
        times[each.kind.replace("_", "-"), each.nbytes] += max(each.turns, 1)
    largest = sorted(times.items(), key=lambda item: (-item[0][1] * item[1], item[0]))
    parts = [
        f"{kind} of {render_bytes(nbytes)}, {'once' if count == 1 else f'{count} times'} a step"
        for (kind, nbytes), count in largest[:3]
    ]
    if rest := largest[3:]:
        nbytes = sum(nbytes * count for (_, nbytes), count in rest)
        parts.append(f"and {render_bytes(nbytes)} in {sum(count for _, count in rest)} more")
    return "; ".join(parts) or "moves nothing"


def _joined(axes: Axis) -> str:
    return "+".join(axis_tuple(axes))


_OPTIONS = ("min_size_bytes", "strict", "sequence_axis")
"""Options of a strategy that a config has."""


def _line(option: tuple[str, Any]) -> str:
    name, value = option
    return f"{name} = {_quoted(value)}"


def _quoted(value: Any) -> str:
    return json.dumps(value)  # TOML writes strings and lists of strings in the same way
