"""Hidden reshards: arrays that a step moves between devices although no rule asks for it."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping

from keras_dist.distribution.lint import Problem
from keras_dist.distribution.render import render_bytes
from keras_dist.planner.propagation import Collective, Propagated

_LEAST_PART = 0.01
_NO_RULE = "no rule for weights moves less; print(kd.planner.dim_classes(model, batch)) tells what sharding dims costs"


def hidden_reshards(
    step: Propagated, remedy: Callable[[str], str | None], rule_of: Callable[[str], str | None]
) -> tuple[Problem, ...]:
    """Return a problem for each submodule for which a step moves arrays that no rule asks it to move.

    These are gathers, all-to-alls and permutes that Shardy puts before an operation because its operands lie otherwise
    than it needs them; not those of constraints, nor sums; and the gathers of activations that a rule asks for, which
    names where they live, and not what that moves. Those in loops come first, then the largest; of less than a
    hundredth of all bytes that the step moves nothing is said.

    Args:
        step: what Shardy finds in it.
        remedy: the rules that end those over an axis of the mesh, as code; None where there are none.
        rule_of: the layout rule of what the submodule of a path returns.
    """
    grouped: dict[tuple[str, str, tuple[str, ...]], list[Collective]] = collections.defaultdict(list)
    for each in step.collectives:
        if not each.is_asked:
            grouped[each.needed_by or each.layer, each.kind, each.axes].append(each)
    least = _LEAST_PART * sum(each.nbytes_per_step for each in step.collectives)
    found = [(_nbytes(group), *key, group) for key, group in grouped.items() if _nbytes(group) >= least]
    found.sort(key=lambda item: (-max(each.turns for each in item[-1]), -item[0], item[1]))
    rules = {axis: remedy(axis) for axis in dict.fromkeys(axis for item in found for axis in item[3])}
    return (*_gathers_by_rule(step, rule_of, least), *(_problem(*item, rules) for item in found))


def _gathers_by_rule(step: Propagated, rule_of: Callable[[str], str | None], least: float) -> Iterator[Problem]:
    grouped: dict[tuple[str, tuple[str, ...]], list[Collective]] = collections.defaultdict(list)
    for each in step.collectives:
        if each.is_asked and each.kind == "all_gather" and each.needed_by and not each.weight:
            grouped[each.needed_by, each.axes].append(each)
    for (layer, axes), group in grouped.items():
        rule, over = rule_of(f"{layer}/output"), " and ".join(map(repr, axes))
        if rule is not None and _nbytes(group) >= least:
            yield Problem(
                "reshard",
                layer,
                f"rule {rule!r} makes {layer!r} gather its output over {over}",
                f"{render_bytes(_nbytes(group))} a step{_how_often(group)}",
                f"a rule that leaves the output as the weights of {layer!r} make it",
                f"name {over} in rule {rule!r}, or remove it",
            )


def _problem(
    nbytes: int, layer: str, kind: str, axes: tuple[str, ...], group: list[Collective], rules: Mapping[str, str | None]
) -> Problem:
    where, over = repr(layer) if layer else "the step", " and ".join(map(repr, axes))
    made = dict.fromkeys(f"{each.operation or 'an array'} of {each.layer or 'the step'}" for each in group)
    return Problem(
        "reshard",
        layer,
        f"hidden reshard: {where} needs {kind} over {over} that no rule asks for",
        f"{render_bytes(nbytes)} a step{_how_often(group)}, made by {', '.join(made)}",
        f"operands that lie as {where} uses them, or a rule that says where they are gathered",
        next((rule for axis in axes if (rule := rules[axis])), _NO_RULE),
    )


def _how_often(group: list[Collective]) -> str:
    turns = max(each.turns for each in group)
    return f", {turns} turns of a loop" if turns > 1 else ", in a loop" if turns == 0 else ""


def _nbytes(group: list[Collective]) -> int:
    return sum(each.nbytes_per_step for each in group)
