"""`costly_layouts`: hidden reshards, repeated work and weights of which a device uses a slice, with one remedy for all.

Each is often the effect of a rule for another layer. So the remedy is searched once, and the layout whose change has
the largest effect is named first.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from keras_dist.distribution.layout import Axis
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.lint import Problem
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.distribution.pipelining import Pipeline
from keras_dist.distribution.plan import Row
from keras_dist.distribution.render import render_axes, render_bytes, render_interval
from keras_dist.planner.exchanges import axes_text
from keras_dist.planner.explanation import reason_of
from keras_dist.planner.propagated import Collective, Propagated, Repeated
from keras_dist.planner.remedies import Remedy, Retrace, find_remedy, kind_of
from keras_dist.planner.search import used_by
from keras_dist.planner.search_result import ConfigPart
from keras_dist.planner.tracing import StepProgram

_LEAST_REPEATED, _LEAST_SLICED, _LEAST_LARGE, _LEAST_GAIN = 0.04, 0.02, 0.1, 0.2
_LEAST_RESHARD, _MOST_MAKERS = 0.02, 3
_LEAST_ALONE = 0.2
"""The part of the FLOPs from which repeated work is a problem although no rules end it."""
_EXPERTS = re.compile(r"(^|[/_])experts?([/_]|$)")
_ESTIMATE = "estimate: "
"""Begins what rests on exchanges that XLA may choose otherwise."""
NO_RULE = "no rules that were tried cost less; AutoParallel, or `keras-dist auto` for a config, searches for others"


def costly_layouts(
    program: StepProgram, step: Propagated, retrace: Retrace, written: Callable[[ConfigPart], str]
) -> tuple[Problem, ...]:
    """Return the problems of a step whose layouts cost more than they must; first the cause, if a remedy is known.

    Layers that are not pipelined by mistake are the only problem: all others are its effects.
    """
    if program.stages:
        batch = set(axis_tuple(program.distribution.batch_dim_name))
        return tuple(_not_pipelined(each, batch.isdisjoint(axis_tuple(each.axis)), written) for each in program.stages)
    problems, doubts = _problems(program, step), [*_large_weights(program), *_short_dims(program, step)]
    remedy = find_remedy(program, step, retrace, written) if problems or doubts else None
    if remedy is None:
        return _without_small(problems, program, step)
    changed = {path for change in remedy.changes for path in change}
    if remedy.gain >= _LEAST_GAIN:
        holds_more = remedy.after.held_nbytes > remedy.before.held_nbytes  # no answer to a weight that is whole
        doubts = [each for each in doubts if each.kind != "whole" or not holds_more]
        problems += tuple(each for each in doubts if each.path in changed - {each.path for each in problems})
    left = {(each.kind, each.path) for each in _problems(remedy.program, remedy.step)}
    is_ended = [(each.kind, each.path) not in left for each in problems]
    problems = tuple(_with_fix(each, remedy) if ends else each for each, ends in zip(problems, is_ended, strict=True))
    cause = (_cause(program, step, remedy),) if any(is_ended) else ()  # else the rules cost less for another reason
    return (*cause, *_without_small(problems, program, step))


def _without_small(problems: Iterable[Problem], program: StepProgram, step: Propagated) -> tuple[Problem, ...]:
    """Leave out little repeated work that no rules end, as of the factors of LoRA."""
    large = {each.path for each in _repeated_work(program, step, _LEAST_ALONE)}
    return tuple(each for each in problems if each.kind != "repeated" or each.fix != NO_RULE or each.path in large)


def _not_pipelined(stack: Pipeline, repeats_work: bool, written: Callable[[ConfigPart], str]) -> Problem:
    over, more = axes_text(axis_tuple(stack.axis)), " and computes" * repeats_work
    summary = f"{stack.layer!r} is sharded over {over} along its layers, and `compile` has no `micro_batches`"
    given, fix = f"each of the {stack.stages} stages gathers{more} all layers", {"micro_batches": 2 * stack.stages}
    expected = "a pipeline, in which each stage computes its own layers"
    return Problem("pipeline", stack.layer, summary, given, expected, written({"training": fix}))


def _problems(program: StepProgram, step: Propagated) -> tuple[Problem, ...]:
    reshards = hidden_reshards(step, program.distribution.layout_map)
    return (*_repeated_work(program, step), *_sliced_weights(program, step), *reshards)


def _with_fix(problem: Problem, remedy: Remedy) -> Problem:
    return dataclasses.replace(problem, fix=str(remedy)) if problem.fix == NO_RULE else problem


def _repeated_work(program: StepProgram, step: Propagated, least: float = _LEAST_REPEATED) -> Iterator[Problem]:
    """Compare the FLOPs of one device with its share, for each group of axes along which devices compute the same."""
    sizes = program.state.mesh.axis_sizes
    grouped: dict[tuple[str, ...], list[Repeated]] = collections.defaultdict(list)
    for each in step.repeated:
        grouped[each.axes].append(each)
    for axes, group in grouped.items():
        times = math.prod(sizes[axis] for axis in axes)
        more = sum(each.flops for each in group) * (times - 1) // times
        if more >= least * step.flops:
            yield Problem(
                "repeated",
                group[0].layer,
                f"repeated work: the {times} devices along {axes_text(axes)} compute the same in "
                f"{_named(list(dict.fromkeys(each.layer for each in group)))}",
                f"{step.flops / (step.flops - more):.2f} times the FLOPs, {step.flops:,} on each device",
                f"products that are sharded over {axes_text(axes)}: {step.flops - more:,} FLOPs",
                NO_RULE,
            )


def _sliced_weights(program: StepProgram, step: Propagated) -> Iterator[Problem]:
    rows = {row.path: row for row in program.state.rows if row.role == "parameter"}
    least = _LEAST_SLICED * sum(row.nbytes for row in rows.values())
    grouped: dict[Any, list[Row]] = collections.defaultdict(list)
    for index, axes in step.sliced:
        row = rows.get(program.arguments[index])
        if (
            row is not None
            and len(row.shape) > 1
            and not set(axes) & {axis for entry in row.slot_axes for axis in axis_tuple(entry)}
        ):
            grouped[kind_of(row), axes].append(row)
    for (_, axes), group in grouped.items():
        if sum(row.nbytes for row in group) >= least:
            held, over = sum(row.nbytes_per_device for row in group), axes_text(axes)
            yield Problem(
                "whole",
                group[0].path,
                f"{_named([row.path for row in group])} is whole along {over}, and a device uses only a slice",
                f"layout {render_axes(group[0].axes)}, {render_bytes(held)} on each device",
                f"the layout in which a step uses the weight, sharded over {over}",
                NO_RULE,
            )


def _large_weights(program: StepProgram) -> Iterator[Problem]:
    """Yield the problem of large weights that are whole where rules shard others, or that are of experts."""
    rows = [row for row in program.state.rows if row.role == "parameter" and len(row.shape) > 1]
    least = _LEAST_LARGE * sum(row.nbytes_per_device for row in program.state.rows if row.role == "parameter")
    every = set(program.state.mesh.axis_names)
    used = used_by([entry for row in rows for entry in row.compute_axes])
    grouped: dict[tuple[str, tuple[int, ...]], list[Row]] = collections.defaultdict(list)
    for row in rows:
        grouped[kind_of(row)].append(row)
    for (name, _), group in grouped.items():
        whole = [row for row in group if not any(row.compute_axes)]
        over = used_by([entry for row in group for entry in row.compute_axes]) or used
        over = over or (every if _EXPERTS.search(name) else set())
        held = sum(row.nbytes_per_device for row in whole)
        if over and whole and held >= least:
            summary = f"{_named([row.path for row in whole])} is not sharded over {axes_text(sorted(over))}"
            given = f"layout {render_axes(whole[0].axes)}, {render_bytes(held)} on each device"
            yield Problem("whole", whole[0].path, summary, given, f"a layout over {axes_text(sorted(over))}", NO_RULE)


def _short_dims(program: StepProgram, step: Propagated) -> Iterator[Problem]:
    """Yield the problem of matrices that are sharded along the shorter dim: sums over more features are exchanged."""
    least = _LEAST_LARGE * sum(each.nbytes_per_step for each in step.collectives)
    summed: dict[tuple[str, tuple[int, ...]], int] = collections.Counter()
    rows = [row for row in program.state.rows if row.role == "parameter" and len(row.shape) == 2]
    for row in rows:
        used, short = used_by(row.compute_axes), 0 if row.compute_axes[0] else 1
        if used and None in row.compute_axes and 2 * row.shape[short] <= row.shape[1 - short]:
            layer = row.path.rpartition("/")[0]
            sums = [each for each in step.collectives if each.layer == layer and each.kind == "all_reduce"]
            summed[kind_of(row)] += _nbytes([each for each in sums if used <= set(each.axes)])
    for row in rows:
        if (nbytes := summed.pop(kind_of(row), 0)) >= least > 0:
            summary = f"{row.path!r} is sharded along its shorter dim, and the sums of its products are all-reduced"
            given = f"layout {render_axes(row.axes)}, {render_bytes(nbytes)} a step"
            yield Problem("reshard", row.path, summary, given, "a layout along the longer dim", NO_RULE)


def hidden_reshards(step: Propagated, rules: LayoutMap | None) -> Iterator[Problem]:
    """Yield a problem for each submodule, or for the same submodule of all blocks, with hidden reshards.

    A hidden reshard is a gather, all-to-all or permute that Shardy inserts because an operation needs other layouts of
    its operands. Reductions are not reported, nor reshards by constraints, except gathers of activations because of a
    rule, which come first. Then come reshards in loops, and the largest; less than a fiftieth of all bytes is not
    reported.
    """
    grouped: dict[tuple[str | None, str, str, tuple[str, ...]], list[Collective]] = collections.defaultdict(list)
    for each in step.collectives:
        by_rule = each.is_asked and each.kind == "all_gather" and each.needed_by and not each.weight
        rule = rules.match(f"{each.needed_by}/output") if by_rule and rules is not None else None
        if rule is not None or not each.is_asked:
            grouped[rule, _alike(_place(each)) if rule is None else "", each.kind, each.axes].append(each)
    least = _LEAST_RESHARD * sum(each.nbytes_per_step for each in step.collectives)
    found = [(rule, kind, axes, group) for (rule, _, kind, axes), group in grouped.items() if _nbytes(group) >= least]
    turns = [max(each.turns for each in group) for *_, group in found]
    order = sorted(range(len(found)), key=lambda n: (found[n][0] is None, -turns[n], -_nbytes(found[n][-1])))
    yield from (_reshard(*found[n]) for n in order)


def _reshard(rule: str | None, kind: str, axes: tuple[str, ...], group: list[Collective]) -> Problem:
    where, over, turns = _named(list(dict.fromkeys(map(_place, group)))), axes_text(axes), max(e.turns for e in group)
    often = f", {turns} turns of a loop" if turns > 1 else ", in a loop" if turns == 0 else ""
    given = f"{render_interval(*(sum(each.interval[end] for each in group) for end in (0, 1)))} a step{often}"
    if rule is not None:
        summary = f"rule {rule!r} makes {where} gather its output over {over}"
        expected = f"a rule with the layout that the weights of {where} give the output"
        fix = f"name {over} in rule {rule!r}, or remove the rule"
        return Problem("reshard", _place(group[0]), summary, given, expected, fix)
    made = list(dict.fromkeys(f"{each.operation or 'an array'} of {each.layer or 'the step'}" for each in group))
    more = f" and {len(made) - _MOST_MAKERS} more" if len(made) > _MOST_MAKERS else ""
    estimate = _ESTIMATE * any(each.doubt for each in group)
    summary = f"{estimate}hidden reshard: {where} needs {kind} over {over} that no rule asks for"
    expected = f"operands with the layouts that {where} needs, or a rule for the gathered layout"
    given = f"{given}, made by {', '.join(made[:_MOST_MAKERS])}{more}"
    return Problem("reshard", _place(group[0]), summary, given, expected, NO_RULE)


def _place(each: Collective) -> str:
    return each.needed_by or each.layer


def _alike(path: str) -> str:
    """Return one text for the same submodule or weight of all blocks."""
    return "/".join("#" if part.isdecimal() else part for part in path.split("/"))


def _named(paths: Sequence[str]) -> str:
    """Return the first path, with the number of others."""
    return (repr(paths[0]) if paths[0] else "the step") + (f" and {len(paths) - 1} like it" if len(paths) > 1 else "")


def _nbytes(group: list[Collective]) -> int:
    return sum(each.nbytes_per_step for each in group)


def _cause(program: StepProgram, step: Propagated, remedy: Remedy) -> Problem:
    change, more = remedy.changes[0], len(remedy.changes) - 1
    path, what, now, after = _changed(program, change)
    is_estimate = bool(step.estimates or remedy.step.estimates)
    is_estimate &= step.moved_interval[0] < remedy.step.moved_interval[1]  # else it moves less in any case
    others = f"; {more} other change{'s' * (more > 1)} in the fix" if more else ""
    return Problem(
        "cause",
        path,
        f"{_ESTIMATE * is_estimate}other rules cost less: {what}{others}",
        f"{now}: {remedy.before}",
        f"{after}: {remedy.after}",
        str(remedy),
    )


def _changed(program: StepProgram, change: Mapping[str, tuple[Axis, ...]]) -> tuple[str, str, str, str]:
    """Return the path, the cause, and the layouts before and after a change, as text."""
    rows = {row.path: row for row in (*program.state.rows, *program.batch.rows)}
    path, *_ = paths = sorted(change, key=lambda path: -rows[path].nbytes if path in rows else 0)
    if path not in rows:
        return path, f"rule {path!r} makes layers gather", "with the rule", "without the rule"
    first = rows[path]
    same = [path for path in paths if _alike(path) == _alike(first.path)]
    now, after = render_axes(first.axes), render_axes(change[path])
    if first.role == "batch":
        return first.path, "the cause is the layout of the batch", f"layout {now}", f"layout {after}"
    others = f", and of {len(paths) - len(same)} more weights" if len(paths) > len(same) else ""
    why = reason_of(first, program.distribution.layout_map)
    return first.path, f"the cause is the layout of {_named(same)}{others}", f"layout {now}, {why}", f"layout {after}"
