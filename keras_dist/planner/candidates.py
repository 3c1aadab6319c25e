"""`Screen`: what a step would need under other layouts, on other meshes, without tracing it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keras_dist import _shardy
from keras_dist.distribution.layout import Axis
from keras_dist.planner.propagation import Propagated, propagate_module
from keras_dist.planner.tracing import StepProgram

Axes = Sequence[Axis]
"""For each dim of an array the mesh axis, several, or None."""


class Screen:
    """A lowered step, in which layouts are exchanged: a copy of its module is laid out and propagated, in milliseconds.

    Args:
        program: the step, lowered for any mesh.
    """

    def __init__(self, program: StepProgram) -> None:
        self._program = program  # keeps the context of the module
        self._module = _shardy.copy_of(program.lowered)
        _shardy.drop_constraints(self._module)
        state = [row.path for row in program.state.rows]
        arguments, results = _shardy.ranks_of_main(self._module)
        self._arguments = list(zip(program.arguments, arguments, strict=True))
        self._results = list(zip([*state, *[""] * (len(results) - len(state))], results, strict=True))

    def propagate(self, sizes: Mapping[str, int], layouts: Mapping[str, Axes]) -> Propagated:
        """Return what the step needs on a mesh.

        Args:
            sizes: the axes of the mesh.
            layouts: for each array of the state and of the batch the axes of its dims; others are replicated. What
                the step returns of the state lies as it was given.
        """
        arguments, results = (
            [layouts.get(path) or (None,) * rank for path, rank in named] for named in (self._arguments, self._results)
        )
        return propagate_module(_shardy.lay_out(self._module, sizes, arguments, results))
