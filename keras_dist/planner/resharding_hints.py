"""Rules that avoid hidden reshards, by sharding all dims of a class alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keras_dist.distribution.layout import Axis
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.distribution.render import render_bytes
from keras_dist.planner.dim_classes import DimClass, DimClasses, classes_of
from keras_dist.planner.logical_rules import folded
from keras_dist.planner.propagation import Propagated
from keras_dist.planner.tracing import StepProgram

Layouts = dict[str, tuple[Axis, ...]]

_MOST_TRIED = 3
_MOST_RULES = 4


def remedy(program: StepProgram, axis: str) -> str | None:
    """Return rules, as code, with which the step moves fewer bytes over an axis with hidden reshards, or None.

    The candidates are classes of dims that the axis shards only in part. Each candidate shards one of these classes
    completely, and no other. If none moves fewer bytes, the layout that shards no such class is tried.
    """
    classes = classes_of(program)
    rows = {row.path: row for row in program.state.rows if row.role in ("parameter", "statistic")}
    now: Layouts = {row.path: row.axes for row in (*program.state.rows, *program.batch.rows)}
    sizes = program.state.mesh.axis_sizes
    divided = [each for each in classes if _is_divided(each, {path: now[path] for path in rows}, axis, sizes[axis])]
    if not divided:
        return None
    before = _moved(_propagated(classes, sizes, now, {}, program))
    layouts = {path: now[path] for path in rows}
    largest = sorted(divided, key=lambda each: -each.nbytes)[:_MOST_TRIED]
    for chosen in (largest, [None]):
        tried = [changed for each in chosen if (changed := _changed(each, divided, layouts, axis))]
        found = [(_moved(_propagated(classes, sizes, now, changed, program)), changed) for changed in tried]
        moved, changed = min(found, key=lambda each: each[0], default=(before, {}))
        if moved < before:
            return _told(folded(changed, rows), moved, before)
    return None


def _told(changed: Mapping[str, Sequence[Axis]], moved: int, before: int) -> str:
    rules = [f"rules[{rule!r}] = {tuple(axes)}" for rule, axes in changed.items()]
    more = f" and {len(rules) - _MOST_RULES} more" if len(rules) > _MOST_RULES else ""
    return f"{'; '.join(rules[:_MOST_RULES])}{more}: {render_bytes(moved)} then move, of {render_bytes(before)}"


def _is_divided(each: DimClass, layouts: Mapping[str, tuple[Axis, ...]], axis: str, size: int) -> bool:
    """Whether the axis shards some dims of a class, and could shard the others."""
    found = {axis in axis_tuple(layouts[path][dim]) for path, dim in each.members if path in layouts}
    return found == {True, False} and not each.size % size


def _changed(
    chosen: DimClass | None, divided: Sequence[DimClass], layouts: Mapping[str, tuple[Axis, ...]], axis: str
) -> Layouts:
    """Return the layouts that change if the axis shards the `chosen` one of the classes alone, or none."""
    wanted = {} if chosen is None else {path: dim for path, dim in chosen.members if path in layouts}
    others = [path for each in divided for path, _ in each.members if path in layouts]
    after = {path: _over(layouts[path], axis, wanted.get(path)) for path in dict.fromkeys((*wanted, *others))}
    return {path: axes for path, axes in after.items() if axes != layouts[path]}


def _over(axes: tuple[Axis, ...], axis: str, dim: int | None) -> tuple[Axis, ...]:
    """Return a layout that shards this dim, or none, over the axis."""
    kept = [tuple(name for name in axis_tuple(each) if name != axis) for each in axes]
    if dim is not None:
        kept[dim] = (*kept[dim], axis)
    return tuple(names if len(names) > 1 else names[0] if names else None for names in kept)


def _propagated(
    classes: DimClasses, sizes: Mapping[str, int], now: Layouts, changed: Layouts, program: StepProgram
) -> Propagated:
    followed = {
        row.path: changed[path]
        for row in program.state.rows
        if row.role == "slot" and (path := (row.rule or "").removeprefix("follows ")) in changed
    }
    return classes.screen.propagate(sizes, {**now, **changed, **followed})


def _moved(step: Propagated) -> int:
    return sum(each.nbytes_per_step for each in step.collectives)
