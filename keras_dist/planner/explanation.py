"""Layouts of activations with their origins, and explanations of all layouts of a step."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Container, Iterable, Sequence
from typing import Any

from keras_dist._support.text_tables import render
from keras_dist._unstable import shardy
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.distribution.plan import FOLLOWS, LayoutPlan, Row
from keras_dist.distribution.render import render_axes, render_bytes, render_shape
from keras_dist.errors import LayoutError, nearest
from keras_dist.planner.sharded_module import (
    ShardedModule,
    layer_in,
    layers_in,
    name_of,
    operations_in,
    text_of,
    weight_in,
)
from keras_dist.planner.tracing import StepProgram
from keras_dist.training.activations import UPDATE

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the operations of MLIR have no types

_MOST_OTHERS = 3
_NAME, _ORIGINS, _BACKWARD = "sdy.sharding_origin_name", "sdy.sharding_origins", "transpose("


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


@dataclasses.dataclass(frozen=True)
class Activation:
    """The output of a submodule in the forward pass of a step.

    Attributes:
        path: `<path of the submodule>/output`, as in layout rules.
        shape: global shape; in a loop the shape in one turn.
        dtype: element type in StableHLO.
        axes: for each dim the mesh axis, several axes, or None.
        origins: for each axis of the mesh a chain of reasons: the array it comes from, and the rule that decided.
        nbytes_per_device: bytes of one device's shard.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[Axis, ...]
    origins: tuple[tuple[str, tuple[str, ...]], ...]
    nbytes_per_device: int


def activations(program: StepProgram) -> tuple[Activation, ...]:
    """Return the outputs of the submodules of a step in the order of the forward pass, with Shardy's layouts.

    Source: https://openxla.org/shardy, the option `debug-sharding-origins`.
    """
    return _Origins(program).found()


class _Origins:
    def __init__(self, program: StepProgram) -> None:
        self._program = program
        self._rows = {row.path: row for row in (*program.state.rows, *program.batch.rows)}
        self._rules = program.distribution.layout_map
        self._module = ShardedModule(shardy.with_origins(program.lowered))
        self._outputs: dict[str, Any] = {}
        self._constraints: dict[str, tuple[str, str]] = {}

    def found(self) -> tuple[Activation, ...]:
        for function in self._module.functions.values():
            for operation in operations_in(function):
                if _NAME in operation.attributes:
                    place = weight_in(name_of(operation)), layer_in(name_of(operation))
                    self._constraints[text_of(operation.attributes[_NAME])] = place
        self._visit(self._module.block("main"), [])
        return tuple(self._activation(f"{layer}/output", value) for layer, value in self._outputs.items())

    def _visit(self, block: Any, around: list[str]) -> None:
        """Note the last value of each submodule that is used outside, in the order of execution."""
        for operation in block.operations:
            operation = operation.operation
            if _BACKWARD in name_of(operation) or UPDATE in name_of(operation):
                continue
            layers = [*around, *layers_in(name_of(operation))]
            if operation.name == "func.call":
                self._visit(self._module.block(text_of(operation.attributes["callee"])), layers)
            elif operation.name == "stablehlo.while":
                self._visit(operation.regions[1].blocks[0], layers)
            for value in operation.results if layers else ():
                users = [[*around, *layers_in(name_of(use.owner.operation))] for use in value.uses]
                for layer in dict.fromkeys(layers):
                    if any(layer not in user for user in users) and hasattr(value.type, "element_type"):
                        self._outputs.pop(layer, None)
                        self._outputs[layer] = value

    def _activation(self, path: str, value: Any) -> Activation:
        axes = self._module.axes(value)
        origins = self._origins_of(value)
        named = [name for axis in axes for name in axis_tuple(axis)]
        chains = tuple((name, self._chain(origins.get(name, ""), value.owner)) for name in named)
        kind, shape = str(value.type.element_type), tuple(value.type.shape)
        return Activation(path, shape, kind, axes, chains, self._module.nbytes(value))

    def _origins_of(self, value: Any) -> dict[str, str]:
        """Return, for each axis of the mesh, Shardy's origin of the axis in the layout of a value."""
        attributes = value.owner.attributes
        if _ORIGINS not in attributes:
            return {}
        found = attributes[_ORIGINS]
        if str(found).startswith("["):  # an entry for each result
            found = found[value.result_number]
        return dict(re.findall(r'"?([^\s",{]+)"? = "([^"]*)"', str(found)))

    def _chain(self, origin: str, owner: Any) -> tuple[str, ...]:
        if origin == "self":
            origin = text_of(owner.attributes[_NAME]) if _NAME in owner.attributes else ""
        kind, _, number = origin.partition(": ")
        if kind == "input":
            return self._because(self._program.arguments[int(number)])
        if kind == "output":
            rows = self._program.state.rows
            return self._because(rows[int(number)].path if int(number) < len(rows) else "")
        if origin in self._constraints:
            weight, layer = self._constraints[origin]
            if weight:
                return self._because(weight)
            name = f"{layer}/output"
            rule = None if self._rules is None else self._rules.match(name)
            return (f"a constraint in {layer or 'the step'}",) if rule is None else (name, f"rule {rule!r}")
        return (origin or "not known",)

    def _because(self, path: str) -> tuple[str, ...]:
        row = self._rows.get(path)
        if row is None:
            return ("the state of a metric",)
        followed = (row.rule or "").removeprefix(FOLLOWS).partition(", ")[0]
        if row.role == "slot" and followed in self._rows:
            path, row = followed, self._rows[followed]
        return (path, reason_of(row, self._rules))


def reason_of(row: Row, rules: Container[str] | None) -> str:
    """Return the reason of the layout of a row, as text."""
    if row.rule is None:
        return "no rule"
    first, comma, others = row.rule.partition(", ")
    return f"rule {first!r}{comma}{others}" if rules is not None and first in rules else row.rule
