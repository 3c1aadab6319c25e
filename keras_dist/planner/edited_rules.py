"""`edited_rules`: a map of layout rules with other layouts, with as few changes and rules as possible."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from keras_dist.distribution.layout import Axis
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.lint import names_tensor
from keras_dist.distribution.plan import FOLLOWS, Row
from keras_dist.errors import LayoutError
from keras_dist.planner.logical_rules import folded

Layouts = Mapping[str, Sequence[Axis]]

_NUMBERS = re.compile(r"[\d|()\[\]-]*\d[\d|()\[\]-]*")
"""Part of a rule that matches only some numbers of blocks: `3`, `[0-2]`, `(0|1)`."""


def edited_rules(rules: LayoutMap, rows: Sequence[Row], layouts: Layouts) -> LayoutMap:
    """Return rules that give weights these layouts.

    A rule is kept, or gets other axes, or matches all blocks, if all weights that it then matches have one layout; else
    new rules replace it. If fewer rules are the result, all are new. Rules for activations and inputs are kept.

    Args:
        rules: the rules.
        rows: weights, with their layouts now.
        layouts: new layouts of weights; also each rule for activations to leave out.
    """
    rows = [row for row in rows if not (row.rule or "").startswith(FOLLOWS)]
    wanted = {row.path: tuple(layouts.get(row.path, row.axes)) for row in rows}
    unruled = {row.path: _without_rule(row, rules) for row in rows}
    kept: dict[str, tuple[Axis, ...]] = {}
    for rule, layout in rules.snapshot():
        if names_tensor(rule):
            kept |= {} if rule in layouts and rule not in wanted else {rule: layout.axes}
        else:
            kept |= _edited(rule, layout.axes, rows, wanted, unruled)
    tensors = {rule: axes for rule, axes in kept.items() if names_tensor(rule)}
    tried = [_completed(each, rules, rows, wanted, unruled) for each in (kept, tensors)]
    return min((each for each in tried if _fits(each, rows, wanted, unruled)), key=len, default=tried[-1])


def _without_rule(row: Row, rules: LayoutMap) -> tuple[Axis, ...]:
    """Return the layout of a weight that no rule matches: often the model has one."""
    by_rule = row.rule is not None and row.rule.partition(", ")[0] in rules
    return (None,) * len(row.shape) if by_rule else row.compute_axes


def _edited(
    rule: str, axes: tuple[Axis, ...], rows: Sequence[Row], wanted: Layouts, unruled: Layouts
) -> dict[str, tuple[Axis, ...]]:
    """Return a rule, also for all blocks, with the layout of all weights that it matches; empty without such."""
    for text in _variants(rule, is_path=any(rule in row.names for row in rows)):
        matched = [row.path for row in rows if any(name == text or LayoutMap.matches(text, name) for name in row.names)]
        found = {tuple(wanted[path]) for path in matched}
        if len(found) == 1:
            (layout,) = found
            is_needless = layout != axes and all(unruled[path] == layout for path in matched)
            return {} if is_needless else {text: layout}
    return {}


def _variants(rule: str, is_path: bool) -> Iterator[str]:
    rule = re.escape(rule) if is_path else rule
    widened = "/".join(r"\d+" if _NUMBERS.fullmatch(part) else part for part in rule.split("/"))
    yield from dict.fromkeys((widened, rule))


def _completed(kept: Layouts, rules: LayoutMap, rows: Sequence[Row], wanted: Layouts, unruled: Layouts) -> LayoutMap:
    """Return the kept rules with one for each weight, or weight of all blocks, that they leave out."""
    edited = type(rules)(rules.device_mesh)
    for rule, axes in kept.items():
        edited[rule] = tuple(axes)
    left = {row.path: wanted[row.path] for row in rows if wanted[row.path] != _decided(edited, row, unruled)}
    for rule, axes in folded(left, [row.path for row in rows]).items():
        if rule not in edited:
            edited[rule] = tuple(axes)
    return edited


def _decided(rules: LayoutMap, row: Row, unruled: Layouts) -> tuple[Axis, ...] | None:
    """Return the layout that rules give a weight; None if they disagree."""
    try:
        rule = rules.match(row.path, row.names[1:])
    except LayoutError:
        return None
    return tuple(unruled[row.path]) if rule is None else rules.rule_layout(rule).axes


def _fits(rules: LayoutMap, rows: Sequence[Row], wanted: Layouts, unruled: Layouts) -> bool:
    return all(_decided(rules, row, unruled) == wanted[row.path] for row in rows)
