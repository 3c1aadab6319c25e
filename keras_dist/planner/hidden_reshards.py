"""Hidden reshards: collectives of a step that no rule asks for."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence

from keras_dist.distribution.lint import Problem
from keras_dist.distribution.render import render_bytes
from keras_dist.planner.propagation import Collective, Propagated

_LEAST_PART, _MOST_MAKERS = 0.01, 3


def hidden_reshards(step: Propagated, fix: str, rule_of: Callable[[str], str | None]) -> tuple[Problem, ...]:
    """Return a problem for each submodule, or for the same submodule of all blocks, with hidden reshards.

    A hidden reshard is a gather, all-to-all or permute that Shardy inserts because an operation needs other layouts of
    its operands. Reductions are not reported, nor reshards by constraints, except gathers of activations because of a
    rule. Reshards in loops come first, then the largest; less than a hundredth of all bytes is not reported.

    Args:
        step: the step.
        fix: the remedy.
        rule_of: returns the layout rule of the output of a submodule.
    """
    grouped: dict[tuple[str, str, tuple[str, ...]], list[Collective]] = collections.defaultdict(list)
    for each in step.collectives:
        if not each.is_asked:
            grouped[alike(_place(each)), each.kind, each.axes].append(each)
    least = _LEAST_PART * sum(each.nbytes_per_step for each in step.collectives)
    found = [(kind, axes, group) for (_, kind, axes), group in grouped.items() if _nbytes(group) >= least]
    found.sort(key=lambda item: (-max(each.turns for each in item[-1]), -_nbytes(item[-1]), _place(item[-1][0])))
    return (*_gathers_by_rule(step, rule_of, least), *(_problem(*item, fix) for item in found))


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


def _problem(kind: str, axes: tuple[str, ...], group: list[Collective], fix: str) -> Problem:
    where, over = _named(group), " and ".join(map(repr, axes))
    made = list(dict.fromkeys(f"{each.operation or 'an array'} of {each.layer or 'the step'}" for each in group))
    more = f" and {len(made) - _MOST_MAKERS} more" if len(made) > _MOST_MAKERS else ""
    return Problem(
        "reshard",
        _place(group[0]),
        f"hidden reshard: {where} needs {kind} over {over} that no rule asks for",
        f"{render_bytes(_nbytes(group))} a step{_how_often(group)}, made by {', '.join(made[:_MOST_MAKERS])}{more}",
        f"operands with the layouts that {where} needs, or a rule for the gathered layout",
        fix,
    )


def _place(each: Collective) -> str:
    return each.needed_by or each.layer


def alike(path: str) -> str:
    """Return one text for the same submodule or weight of all blocks."""
    return "/".join("#" if part.isdecimal() else part for part in path.split("/"))


def _named(group: list[Collective]) -> str:
    """Return the name of the first submodule, with the number of others."""
    return named(list(dict.fromkeys(map(_place, group))))


def named(paths: Sequence[str]) -> str:
    """Return the first path, with the number of others."""
    return (repr(paths[0]) if paths[0] else "the step") + (f" and {len(paths) - 1} like it" if len(paths) > 1 else "")


def _how_often(group: list[Collective]) -> str:
    turns = max(each.turns for each in group)
    return f", {turns} turns of a loop" if turns > 1 else ", in a loop" if turns == 0 else ""


def _nbytes(group: list[Collective]) -> int:
    return sum(each.nbytes_per_step for each in group)
