"""`Screen`: evaluates a traced step under other layouts, on other meshes, without tracing it again."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from keras_dist._unstable import shardy
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.optimizers.whole_matrices import EXCHANGE
from keras_dist.planner.propagated import Propagated
from keras_dist.planner.propagation import propagate_module
from keras_dist.planner.sharded_module import layer_in, name_of, returned_by, weight_in
from keras_dist.planner.tracing import StepProgram

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the operations of MLIR have no types
_INLINED = "inline,canonicalize,cse,symbol-dce"


class Screen:
    """A lowered step whose layouts can be replaced: a copy of its module is propagated, in milliseconds.

    Layout constraints in the step are left out, also those by which `xla_workarounds` moves images where XLA would
    compute a wrong convolution.

    Args:
        program: the step.
        kept_rules: rules whose constraints of activations are kept, for layouts on the mesh of the step.
    """

    def __init__(self, program: StepProgram, kept_rules: Sequence[str] | None = None) -> None:
        self._program = program  # keeps the context of the module
        self._module = shardy.copy_of(program.lowered)
        shardy.drop_constraints(self._module, functools.partial(_is_kept, kept_rules or ()), _is_of_optimizer)
        shardy.run_passes(self._module, _INLINED)
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


def _is_of_optimizer(operation: Any) -> bool:
    """Whether a `shard_map` is the exchange of matrices of an optimizer, which other layouts have on other axes."""
    return EXCHANGE in name_of(operation).split("/")


def _with_ranks(names: Sequence[str], values: Sequence[Any]) -> list[tuple[str, int]]:
    return [(name, value.type.rank) for name, value in zip(names, values, strict=True)]
