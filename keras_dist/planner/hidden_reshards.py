"""Hidden reshards: collectives of a step that no rule asks for, and rules that avoid them."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence

from keras_dist.distribution.layout import Axis
from keras_dist.distribution.lint import Problem
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.distribution.render import render_bytes
from keras_dist.planner.dim_classes import DimClass, DimClasses, classes_of
from keras_dist.planner.logical_rules import folded
from keras_dist.planner.propagation import Collective, Propagated
from keras_dist.planner.tracing import StepProgram

Layouts = dict[str, tuple[Axis, ...]]

_LEAST_PART, _MOST_MAKERS = 0.01, 3
_MOST_TRIED, _MOST_RULES = 3, 4
_NO_RULE = "no rule for weights moves less; print(kd.planner.dim_classes(model, batch)) shows what sharding dims costs"


def hidden_reshards(
    step: Propagated, remedy: Callable[[str], str | None], rule_of: Callable[[str], str | None]
) -> tuple[Problem, ...]:
    """Return a problem for each submodule, or for the same submodule of all blocks, with hidden reshards.

    A hidden reshard is a gather, all-to-all or permute that Shardy inserts because an operation needs other layouts of
    its operands. Reductions are not reported, nor reshards by constraints, except gathers of activations because of a
    rule. Reshards in loops come first, then the largest; less than a hundredth of all bytes is not reported.

    Args:
        step: the step.
        remedy: returns rules, as code, that avoid reshards over an axis of the mesh, or None.
        rule_of: returns the layout rule of the output of a submodule.
    """
    grouped: dict[tuple[str, str, tuple[str, ...]], list[Collective]] = collections.defaultdict(list)
    for each in step.collectives:
        if not each.is_asked:
            grouped[_alike(_place(each)), each.kind, each.axes].append(each)
    least = _LEAST_PART * sum(each.nbytes_per_step for each in step.collectives)
    found = [(kind, axes, group) for (_, kind, axes), group in grouped.items() if _nbytes(group) >= least]
    found.sort(key=lambda item: (-max(each.turns for each in item[-1]), -_nbytes(item[-1]), _place(item[-1][0])))
    rules = {axis: remedy(axis) for axis in dict.fromkeys(axis for _, axes, _ in found for axis in axes)}
    return (*_gathers_by_rule(step, rule_of, least), *(_problem(*item, rules) for item in found))


def _gathers_by_rule(step: Propagated, rule_of: Callable[[str], str | None], least: float) -> Iterator[Problem]:
    grouped: dict[tuple[str, tuple[str, ...]], list[Collective]] = collections.defaultdict(list)
    for each in step.collectives:
        if each.is_asked and each.kind == "all_gather" and each.needed_by and not each.weight:
            rule = rule_of(f"{each.needed_by}/output")
            if rule is not None:
                grouped[rule, each.axes].append(each)
    for (rule, axes), group in grouped.items():
        where, over = _named(group), " and ".join(map(repr, axes))
        if _nbytes(group) >= least:
            yield Problem(
                "reshard",
                _place(group[0]),
                f"rule {rule!r} makes {where} gather its output over {over}",
                f"{render_bytes(_nbytes(group))} a step{_how_often(group)}",
                f"a rule with the layout that the weights of {where} give the output",
                f"name {over} in rule {rule!r}, or remove the rule",
            )


def _problem(kind: str, axes: tuple[str, ...], group: list[Collective], rules: Mapping[str, str | None]) -> Problem:
    where, over = _named(group), " and ".join(map(repr, axes))
    made = list(dict.fromkeys(f"{each.operation or 'an array'} of {each.layer or 'the step'}" for each in group))
    more = f" and {len(made) - _MOST_MAKERS} more" if len(made) > _MOST_MAKERS else ""
    return Problem(
        "reshard",
        _place(group[0]),
        f"hidden reshard: {where} needs {kind} over {over} that no rule asks for",
        f"{render_bytes(_nbytes(group))} a step{_how_often(group)}, made by {', '.join(made[:_MOST_MAKERS])}{more}",
        f"operands with the layouts that {where} needs, or a rule for the gathered layout",
        next((rule for axis in axes if (rule := rules[axis])), _NO_RULE),
    )


def _place(each: Collective) -> str:
    return each.needed_by or each.layer


def _alike(layer: str) -> str:
    """Return one text for the same submodule of all blocks."""
    return "/".join("#" if part.isdecimal() else part for part in layer.split("/"))


def _named(group: list[Collective]) -> str:
    """Return the name of the first submodule, with the number of others."""
    layers = dict.fromkeys(map(_place, group))
    first = next(iter(layers))
    return (repr(first) if first else "the step") + (f" and {len(layers) - 1} like it" if len(layers) > 1 else "")


def _how_often(group: list[Collective]) -> str:
    turns = max(each.turns for each in group)
    return f", {turns} turns of a loop" if turns > 1 else ", in a loop" if turns == 0 else ""


def _nbytes(group: list[Collective]) -> int:
    return sum(each.nbytes_per_step for each in group)


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
            return _hint(folded(changed, rows), moved, before)
    return None


def _hint(changed: Mapping[str, Sequence[Axis]], moved: int, before: int) -> str:
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
