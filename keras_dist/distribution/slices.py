"""`Slice`: the part of a traced function that computes one of its outputs, told from others that differ in a seed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from keras_dist import _jax


class Slice:
    """The equations that one output of a traced function depends on.

    The weights of a model's layers are drawn from one seed, folded with their number. Two of one shape and initializer
    differ in this number alone: they are alike, and one compiled program serves both.

    Args:
        equations: in order.
        closed: the traced function.
        output: its variable.

    Attributes:
        numbers: what seeds are folded with, in order.
        form: alike for slices of one function that differ in their numbers alone.
    """

    def __init__(self, equations: Sequence[Any], closed: Any, output: Any) -> None:
        self._equations = equations
        self._constants = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        self._arguments = closed.jaxpr.invars
        self._output = output
        self.numbers = [number for equation in equations for number in _folded_with(equation)]
        self.form = self._form()

    def __call__(self, numbers: Any, *arguments: Any) -> list[Any]:
        """The output, alone in a list, for other numbers, which are an array (numbers,), and these arguments."""
        known = {**self._constants, **dict(zip(self._arguments, arguments, strict=True))}
        count = 0
        for equation in self._equations:
            values = [value.val if _jax.is_literal(value) else known[value] for value in equation.invars]
            for _ in _folded_with(equation):
                values[1] = numbers[count]
                count += 1
            known |= zip(equation.outvars, _jax.evaluate(equation, values), strict=True)
        return [known[self._output]]

    def _form(self) -> Hashable:
        places: dict[Any, int] = {variable: n for n, variable in enumerate([*self._constants, *self._arguments])}
        parts: list[Hashable] = []
        for equation in self._equations:
            inputs: list[Hashable] = [
                (str(value.aval), np.asarray(value.val).tobytes()) if _jax.is_literal(value) else places[value]
                for value in equation.invars
            ]
            inputs[1:2] = inputs[1:2] if not _folded_with(equation) else ["number"]
            for variable in equation.outvars:
                places[variable] = len(places)
            parameters = tuple((name, _comparable(value)) for name, value in sorted(equation.params.items()))
            results = tuple(str(variable.aval) for variable in equation.outvars)
            parts.append((equation.primitive, parameters, tuple(inputs), results))
        return tuple(parts)


def slices_of(closed: Any) -> list[Slice | None]:
    """For each output of a traced function its slice; None where it is an argument or a constant, or has effects."""
    made_by = {variable: (n, eqn) for n, eqn in enumerate(closed.jaxpr.eqns) for variable in eqn.outvars}
    return [_slice_of(closed, output, made_by) for output in closed.jaxpr.outvars]


def _slice_of(closed: Any, output: Any, made_by: dict[Any, tuple[int, Any]]) -> Slice | None:
    if _jax.is_literal(output) or output not in made_by:
        return None
    found: dict[int, Any] = {}
    waiting = [output]
    while waiting:
        number, equation = made_by.get(waiting.pop(), (-1, None))
        if equation is not None and number not in found:
            found[number] = equation
            waiting += [value for value in equation.invars if not _jax.is_literal(value)]
    equations = [found[number] for number in sorted(found)]
    return None if any(equation.effects for equation in equations) else Slice(equations, closed, output)


def _folded_with(equation: Any) -> list[np.ndarray]:
    """The number that the equation folds into a seed, if that is all it does."""
    if equation.primitive.name != "random_fold_in" or not _jax.is_literal(equation.invars[1]):
        return []
    return [np.asarray(equation.invars[1].val)]


def _comparable(parameter: Any) -> Hashable:
    """A parameter of an equation, or what stands for it: those that cannot be compared are equal to themselves only."""
    try:
        hash(parameter)
    except TypeError:
        return id(parameter)
    return parameter
