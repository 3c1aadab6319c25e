"""Layouts of the activations of a step, each with the rule, variable or constraint that it comes from."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container
from typing import Any

from keras_dist._unstable import shardy
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.distribution.plan import Row
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

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the operations of MLIR have no types

_FOLLOWS = "follows "
_NAME, _ORIGINS, _BACKWARD = "sdy.sharding_origin_name", "sdy.sharding_origins", "transpose("


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
        self._visit(self._body("main"), [])
        return tuple(self._activation(f"{layer}/output", value) for layer, value in self._outputs.items())

    def _body(self, function: str) -> Any:
        return self._module.functions[function].regions[0].blocks[0]

    def _visit(self, block: Any, around: list[str]) -> None:
        """Note the last value of each submodule that is used outside, in the order of execution."""
        for operation in block.operations:
            operation = operation.operation
            if _BACKWARD in name_of(operation):
                continue
            layers = [*around, *layers_in(name_of(operation))]
            if operation.name == "func.call":
                self._visit(self._body(text_of(operation.attributes["callee"])), layers)
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
        followed = (row.rule or "").removeprefix(_FOLLOWS).partition(", ")[0]
        if row.role == "slot" and followed in self._rows:
            path, row = followed, self._rows[followed]
        return (path, reason_of(row, self._rules))


def reason_of(row: Row, rules: Container[str] | None) -> str:
    """Return the reason of the layout of a row, as text."""
    if row.rule is None:
        return "no rule"
    first, comma, others = row.rule.partition(", ")
    return f"rule {first!r}{comma}{others}" if rules is not None and first in rules else row.rule
