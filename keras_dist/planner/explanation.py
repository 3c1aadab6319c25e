"""Explanations of layouts: of variables by their rules, of activations by the origins of their axes."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from keras_dist._support.text_tables import render
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.plan import LayoutPlan, Row
from keras_dist.distribution.render import render_axes, render_bytes, render_shape
from keras_dist.errors import LayoutError, nearest
from keras_dist.planner.origins import Activation, reason_of

_MOST_OTHERS = 3


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The reasons of a layout. Printing it gives sentences.

    Attributes:
        path: path of the array.
        kind: role of a variable, or `"activation"`.
        shape: global shape.
        axes: for each dim the mesh axis, several axes, or None.
        nbytes_per_device: bytes of one device's shard.
        reasons: the reasons; of an activation, one for each axis of the mesh.
        others: rules with similar paths that did not decide.
        source: the tier: `"exact"`, or `"propagated"` for activations.
    """

    path: str
    kind: str
    shape: tuple[int, ...]
    axes: tuple[Axis, ...]
    nbytes_per_device: int
    reasons: tuple[str, ...]
    others: tuple[str, ...]
    source: str

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain values for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{self.path} ({self.source}): {self.kind} of shape {render_shape(self.shape)}, "
            f"layout {render_axes(self.axes)}, {render_bytes(self.nbytes_per_device)} per device",
            *(f"  {reason}" for reason in self.reasons),
            *(f"  did not decide: {other}" for other in self.others),
        ]
        return render(*lines)


def explain(path: str, state: LayoutPlan, batch: LayoutPlan, activations: Sequence[Activation]) -> Explanation:
    """Explain the layout of the variable, slot, input or activation called `path`."""
    rows = {name: row for plan in (state, batch) for row in plan.rows for name in row.names}
    rules = dict(state.rules)
    if path in rows:
        return _of_row(path, rows[path], rules)
    found = next((each for each in activations if each.path == path), None)
    if found is not None:
        return _of_activation(found, rules)
    paths = [*rows, *(each.path for each in activations)]
    near = nearest(str(path), paths)
    fix = f"name a variable, slot, input or '<layer>/output': the nearest is {near!r}" if near else ""
    given = f"{path!r}, among {len(paths)} paths"
    raise LayoutError(f"the step has no array {path!r}", given=given, fix=fix or f"for example {paths[0]!r}")


def _of_row(path: str, row: Row, rules: dict[str, Any]) -> Explanation:
    reason = f"decided by {reason_of(row, rules)}" if row.rule else "no rule matches: replicated"
    others = _others(row.path, (rule for rule in rules if rule != row.rule), rules)
    return Explanation(path, row.role, row.shape, row.axes, row.nbytes_per_device, (reason,), others, "exact")


def _of_activation(activation: Activation, rules: dict[str, Any]) -> Explanation:
    own = [f"decided by rule {rule!r}" for rule in rules if LayoutMap.matches(rule, activation.path)]
    texts = [*own, *(text for _, chain in activation.origins for text in chain)]
    left = (rule for rule in rules if not any(f"rule {rule!r}" in text for text in texts))
    reasons = [f"{axis!r}: from {', which is decided by '.join(chain)}" for axis, chain in activation.origins]
    return Explanation(
        activation.path,
        "activation",
        activation.shape,
        activation.axes,
        activation.nbytes_per_device,
        tuple(reasons or own) or ("nothing shards it: replicated",),
        _others(activation.path, left, rules),
        "propagated",
    )


def _others(path: str, candidates: Iterable[str], rules: dict[str, Any]) -> tuple[str, ...]:
    near = difflib.get_close_matches(path, list(candidates), n=_MOST_OTHERS, cutoff=0.5)
    return tuple(f"rule {rule!r} -> {render_axes(rules[rule])}" for rule in near)
