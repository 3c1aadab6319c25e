"""`Screen`: evaluates a traced step under other layouts, on other meshes, without tracing it again."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from keras_dist._unstable import shardy
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.planner.propagation import Propagated, propagate_module
from keras_dist.planner.sharded_module import is_argument, layer_in, name_of, returned_by, weight_in
from keras_dist.planner.tracing import StepProgram

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the operations of MLIR have no types
_WITH_RULES = "inline,func.func(sdy-populate-op-sharding-rules)"
_CLEAN = "func.func(sdy-drop-sharding-rules),canonicalize,cse,symbol-dce"


class Screen:
    """A lowered step whose layouts can be replaced: a copy of its module is propagated, in milliseconds.

    Elementwise operations of the optimizer are left out: they are most of the operations, and have the layouts of the
    weights, so they move nothing. Layout constraints in the step are left out, too, also those by which
    `xla_workarounds` moves images where XLA would compute a wrong convolution.

    Args:
        program: the step.
        kept_rules: rules whose constraints of activations are kept, for layouts on the mesh of the step.
    """

    def __init__(self, program: StepProgram, kept_rules: Sequence[str] | None = None) -> None:
        self._program = program  # keeps the context of the module
        self._module = shardy.copy_of(program.lowered)
        shardy.drop_constraints(self._module, functools.partial(_is_kept, kept_rules or ()))
        shardy.run_passes(self._module, _WITH_RULES)
        block = shardy.main_of(self._module)
        _return_gradients(block, program)
        shardy.run_passes(self._module, _CLEAN)
        block = shardy.main_of(self._module)
        returned = returned_by(block)
        state = [row.path for row in program.state.rows]
        names = [*state, *[""] * (len(returned) - len(state))]
        self._arguments = _with_ranks(program.arguments, block.arguments)
        self._results = _with_ranks(names, returned)

    def propagate(
        self, sizes: Mapping[str, int], layouts: Mapping[str, Sequence[Axis]], with_memory: bool = True
    ) -> Propagated:
        """Return the figures of the step on a mesh of these sizes; arrays without a layout are replicated."""
        arguments, results = (
            [layouts.get(path) or (None,) * rank for path, rank in named] for named in (self._arguments, self._results)
        )
        return propagate_module(shardy.lay_out(self._module, sizes, arguments, results), with_memory)


def _is_kept(rules: Sequence[str], operation: Any) -> bool:
    """Whether a constraint is one of these rules for an activation."""
    if weight_in(name_of(operation)):
        return False
    path = f"{layer_in(name_of(operation))}/output"
    return any(rule == path or LayoutMap.matches(rule, path) for rule in rules)


def _with_ranks(names: Sequence[str], values: Sequence[Any]) -> list[tuple[str, int]]:
    return [(name, value.type.rank) for name, value in zip(names, values, strict=True)]


def _return_gradients(block: Any, program: StepProgram) -> None:
    """Make the step return gradients in place of new weights, and slots unchanged if computed from gradients alone."""
    end = list(block.operations)[-1].operation
    arguments = dict(zip(program.arguments, block.arguments, strict=True))
    gradients: set[Any] = set()
    for index, row in enumerate(program.state.rows):
        value = end.operands[index]
        if row.role not in ("parameter", "slot") or row.path not in arguments or not value.type.rank:
            continue
        sources = _sources(value)
        if row.role == "slot" and sources <= gradients:
            end.operands[index] = arguments[row.path]
        elif row.role == "parameter" and len(sources) == 1:
            (gradient,) = sources
            if gradient.type == value.type:
                end.operands[index] = gradient
                gradients.add(gradient)


def _sources(value: Any) -> set[Any]:
    """Return the values from which `value` is computed elementwise, without arguments, constants and scalars."""
    found: set[Any] = set()
    seen, left = {value}, [value]
    while left:
        current = left.pop()
        if is_argument(current.owner) or not current.type.rank:
            continue
        operation = current.owner.operation
        if not _is_elementwise(operation):
            found.add(current)
            continue
        left += [operand for operand in operation.operands if operand not in seen]
        seen |= set(operation.operands)
    return found


def _is_elementwise(operation: Any) -> bool:
    """Whether operands and results have the same dims, apart from scalars, which are broadcast."""
    rule = shardy.factors_of(operation)
    if rule is None:
        return not list(operation.operands)  # a constant
    return len({str(dims) for dims in rule[0] if dims}) == 1
