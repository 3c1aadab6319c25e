"""`SearchResult`: the layout that a search has found, why, and how a user keeps it."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from keras_dist._support.text_tables import Table, render
from keras_dist.distribution.data_parallel import DataParallel
from keras_dist.distribution.fully_sharded import FullySharded
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.mesh import DeviceMesh, axis_tuple
from keras_dist.distribution.model_parallel import ModelParallel
from keras_dist.distribution.render import render_bytes
from keras_dist.distribution.strategy import Distribution
from keras_dist.planner.dim_classes import DimClasses, Unsharded
from keras_dist.planner.logical_rules import BATCH, axis_names_of, layout_map_of
from keras_dist.planner.propagation import Collective
from keras_dist.planner.search import Candidate

_MOST_CANDIDATES = 10


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SearchResult:
    """The layout that a search has found. Printing it explains it.

    Attributes:
        distribution: the strategy, to make the model under.
        layout_map: its rules.
        best: what it costs.
        candidates: all that was tried, the best first.
        unsharded: dims that stay whole although their class is sharded.
        explanation: a line for each axis of the mesh, and for each class that is not sharded.
        is_complete: whether there was time for all candidates.
        is_cached: whether it was found by an earlier search.
    """

    distribution: Distribution
    layout_map: LayoutMap
    best: Candidate
    candidates: tuple[Candidate, ...]
    unsharded: tuple[Unsharded, ...]
    explanation: tuple[str, ...]
    is_complete: bool
    is_cached: bool

    def __str__(self) -> str:
        headers = ("mesh", "sharded", "least time", "state", "intermediate", "moved", "compiled")
        table = Table("Candidates, the best first", headers, numbers=headers[2:])
        for each in self.candidates[:_MOST_CANDIDATES]:
            sharded = ", ".join(f"{name}: {'+'.join(axis_tuple(axes))}" for name, axes in each.rules.items())
            row = (
                ", ".join(f"{name}={size}" for name, size in each.mesh.items()),
                sharded
                + (", weights fully" if each.fully_sharded else ", slots" if each.shard_optimizer else "")
                + (", remat" if each.remat else ""),
                f"{1e3 * each.step_seconds:.3g} ms",
                render_bytes(each.state_nbytes),
                render_bytes(each.activation_nbytes),
                render_bytes(each.moved_nbytes),
                "-" if each.compiled_seconds is None else f"{1e3 * each.compiled_seconds:.3g} ms",
            )
            table.rows.append(row)
        return render(*self.explanation, table)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.best.rules} on mesh {self.distribution.device_mesh.describe()}>"

    def to_dict(self) -> dict[str, Any]:
        """Return what was found and tried as plain values that JSON can hold."""
        return {
            "mesh": self.distribution.device_mesh.axis_sizes,
            "layout": {rule: list(layout.axes) for rule, layout in self.layout_map.snapshot()},
            "toml": self.to_toml(),
            "explanation": list(self.explanation),
            "candidates": [dataclasses.asdict(each) for each in self.candidates],
            "is_complete": self.is_complete,
            "is_cached": self.is_cached,
        }

    def to_code(self) -> str:
        """Return Python code that makes the distribution, with a comment on what `compile` is to be told."""
        mesh, batch = self.distribution.device_mesh, self.distribution.batch_dim_name
        sizes = ",".join(f"{name}={size}" for name, size in mesh.axis_sizes.items())
        lines = ["import keras_dist as kd", "", f'mesh = kd.DeviceMesh("{sizes}")', "rules = kd.LayoutMap(mesh)"]
        lines += [f"rules[{rule!r}] = {layout.axes!r}" for rule, layout in self.layout_map.snapshot()]
        names = f", axis_names={self.distribution.axis_names!r}" if self.distribution.axis_names else ""
        if isinstance(self.distribution, FullySharded):
            axis = self.distribution.axis
            lines.append(f"distribution = kd.FullySharded(mesh, {axis!r}, rules, {batch!r}{names})")
        elif isinstance(self.distribution, DataParallel):
            option = ", shard_optimizer=True" if self.distribution.shard_optimizer else ""
            lines[-1] = f"distribution = kd.DataParallel(mesh{option})"
        else:
            lines.append(f"distribution = kd.ModelParallel(rules, {batch!r}{names})")
        if self.best.remat is not None:
            lines.append(f"# model.compile(..., remat={self.best.remat!r})")
        return "\n".join([*lines, ""])

    def to_toml(self) -> str:
        """Return the tables `mesh`, `distribution` and, for `remat`, `training` of a config file."""
        mesh, found = self.distribution.device_mesh, self.distribution
        strategy = {FullySharded: "fully_sharded", DataParallel: "data_parallel"}.get(type(found), "model_parallel")
        sizes = ", ".join(f"{_quoted(name)} = {size}" for name, size in mesh.axis_sizes.items())
        lines = ["[mesh]", f"shape = {{ {sizes} }}", "", "[distribution]", f"strategy = {_quoted(strategy)}"]
        lines.append(f"batch_axis = {_quoted(found.batch_dim_name)}")
        if isinstance(found, FullySharded):
            lines.append(f"axis = {_quoted(found.axis)}")
        if isinstance(found, DataParallel) and found.shard_optimizer:
            lines.append("shard_optimizer = true")
        rules = self.layout_map.snapshot()
        lines += ["", "[distribution.layout]"] if rules else []
        lines += [
            f"{_quoted(rule)} = {_quoted(['-' if axis is None else axis for axis in layout.axes])}"
            for rule, layout in rules
        ]
        if self.best.remat is not None:
            lines += ["", "[training]", f"remat = {_quoted(self.best.remat)}"]
        return "\n".join([*lines, ""])


def found_of(
    best: Candidate,
    candidates: Sequence[Candidate],
    classes: DimClasses,
    mesh: DeviceMesh,
    *,
    is_complete: bool,
    is_cached: bool,
) -> SearchResult:
    """What a search has found, on the mesh of its best candidate."""
    layouts, left = classes.layouts(best.rules, best.mesh)
    rules, batch = layout_map_of(layouts, classes, mesh), best.rules[BATCH]
    names = axis_names_of(best.rules, classes)
    if best.fully_sharded:
        distribution: Distribution = FullySharded(mesh, batch, rules, batch, axis_names=names)
    elif len(mesh.shape) == 1 and not rules:
        distribution = DataParallel(mesh, shard_optimizer=best.shard_optimizer)
    else:
        distribution = ModelParallel(rules, batch, axis_names=names)
    lines = _explained(best, candidates, classes, left)
    if not is_complete:
        lines.append("the time limit ended the search before all candidates were tried")
    return SearchResult(distribution, rules, best, tuple(candidates), tuple(left), tuple(lines), is_complete, is_cached)


def _explained(
    best: Candidate, candidates: Sequence[Candidate], classes: DimClasses, left: Sequence[Unsharded]
) -> list[str]:
    layouts, _ = classes.layouts(best.rules, best.mesh)
    step = classes.screen.propagate(best.mesh, layouts)
    names_over: dict[Axis, list[str]] = collections.defaultdict(list)
    for name, axes in best.rules.items():
        names_over[axes].append(name)
    lines: list[str] = []
    for axes, names in names_over.items():
        over = [each for each in step.collectives if set(each.axes) & set(axis_tuple(axes))]
        lines.append(f"{'+'.join(axis_tuple(axes))} -> {', '.join(names)}: {_moved(over)}")
    if best.fully_sharded:
        axes = "+".join(axis_tuple(best.rules[BATCH]))
        lines.append(f"{axes} -> weights and slots, fully: each weight is gathered where it is used")
    if best.shard_optimizer:
        lines.append(f"{'+'.join(axis_tuple(best.rules[BATCH]))} -> slots: each device updates its part of the weights")
    if best.remat is not None:
        lines.append(f"compile(remat={best.remat!r}): these layers are computed again in the backward pass")
    lines += _unused(best)
    lines += [f"not sharded: {each}" for each in left]
    lines += [
        f"{each.name} not sharded: {_why_not(each.name, each.parts, best, candidates)}"
        for each in classes
        if each.name not in best.rules
    ]
    return lines


def _unused(best: Candidate) -> list[str]:
    """What the devices along axes do that nothing lies over."""
    used = {axis for axes in best.rules.values() for axis in axis_tuple(axes)}
    unused = [axis for axis, size in best.mesh.items() if size > 1 and axis not in used]
    devices = math.prod(best.mesh[axis] for axis in unused)
    return [f"{'+'.join(unused)}: unused, {devices} devices repeat the same work"] if unused else []


def _why_not(name: str, parts: Sequence[int], best: Candidate, candidates: Sequence[Candidate]) -> str:
    batch = set(axis_tuple(best.rules[BATCH]))
    sizes = {axis: size for axis, size in best.mesh.items() if axis not in batch and size > 1}
    if not sizes:
        return "the batch lies over all devices"
    if not any(part % size == 0 for part in parts for size in sizes.values()):
        return f"{' and '.join(map(str, sizes.values()))} does not divide {math.gcd(*parts)}"
    same = [each for each in candidates if each.mesh == best.mesh and each.rules[BATCH] == best.rules[BATCH]]
    others = [
        each
        for each in same
        if name in each.rules and each.fully_sharded == best.fully_sharded and each.remat == best.remat
    ]
    if not others:
        return "the time limit ended the search before it was tried"
    nearest = min(others, key=lambda each: (len(set(each.rules) ^ set(best.rules)), each.step_seconds))
    return (
        f"with it the step takes {nearest.step_seconds / best.step_seconds:.2f} times as long, "
        f"and a device holds {nearest.nbytes / best.nbytes:.2f} times the bytes"
    )


def _moved(collectives: Sequence[Collective]) -> str:
    """`all-reduce of 1.8 MiB, 2 times` for each size of exchange, those of most bytes first."""
    times: collections.Counter[tuple[str, int]] = collections.Counter()
    for each in collectives:
        times[each.kind.replace("_", "-"), each.nbytes] += max(each.turns, 1)
    largest = sorted(times.items(), key=lambda item: (-item[0][1] * item[1], item[0]))
    parts = [
        f"{kind} of {render_bytes(nbytes)}, {'once' if count == 1 else f'{count} times'} a step"
        for (kind, nbytes), count in largest[:3]
    ]
    if rest := largest[3:]:
        parts.append(
            f"and {render_bytes(sum(nbytes * count for (_, nbytes), count in rest))} in {sum(c for _, c in rest)} more"
        )
    return "; ".join(parts) or "moves nothing"


def _quoted(value: Any) -> str:
    """A string, or a list of strings, as TOML and JSON write it."""
    return json.dumps(value)
