"""Gathers of sharded weights at their use: in each iteration of a loop, and again in the backward pass.

Without them XLA may gather a weight long before its use, or keep it for the backward pass. So the forward pass is
traced, and its jaxpr evaluated with each fully sharded weight constrained in the operation that reads it, under a
`jax.checkpoint` of that operation. Constraints where variables are read would gather stacks before the loop and miss
raw arrays. Unlike a `custom_vjp`, constraints can be differentiated twice and forwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax

from keras_dist._support.types import PyTree
from keras_dist._unstable import jaxprs
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.plan import LayoutPlan, Row
from keras_dist.training.activations import weight_scope

_MOVES = {"broadcast_in_dim", "convert_element_type", "copy", "name"}
_MOVES |= {"reshape", "rev", "squeeze", "stop_gradient", "transpose"}
"""Operations on one array that are applied to the gathered weight, wherever it is used."""
_PLACES = ("sharding_constraint", "shard_map")  # operations in which the module itself lays out weights


def with_gathers(
    function: Callable[..., PyTree], plan: LayoutPlan, paths: Sequence[str], arguments: Sequence[PyTree]
) -> PyTree:
    """Return `function(*arguments)` with weights gathered where they are used; `paths`: of the leaves in the plan."""
    rows = [plan.row(path) for path in paths]
    if all(row.axes == row.compute_axes for row in rows):
        return function(*arguments)
    results: list[PyTree] = []

    def traced(*arguments: PyTree) -> list[Any]:
        results.append(function(*arguments))
        return jax.tree.leaves(results[0])

    program = jax.make_jaxpr(traced)(*arguments)
    inputs = [_weight(leaf, row) for leaf, row in zip(jax.tree.leaves(arguments), rows, strict=True)]
    outputs = _Gathers(plan.mesh.backend_mesh).evaluate(program, inputs)
    return _in_order(results[0], jax.tree.structure(results[0]).unflatten(outputs))


@dataclasses.dataclass(frozen=True, eq=False)
class _Weight:
    """A weight that is not gathered yet, or its part in one iteration; `moves` are evaluated after the gather."""

    path: str
    value: Any
    axes: tuple[Axis, ...]
    compute_axes: tuple[Axis, ...]
    moves: tuple[Any, ...] = ()

    def whole(self, dims: Sequence[int]) -> bool:
        """Whether these dims are unsharded."""
        return all(self.axes[dim] is None for dim in dims)

    def of_dims(self, value: Any, dims: Sequence[int]) -> Self:
        """Return `value` as a weight with these dims of this weight."""
        axes, compute_axes = (tuple(each[dim] for dim in dims) for each in (self.axes, self.compute_axes))
        return type(self)(self.path, value, axes, compute_axes)

    def moved(self) -> Any:
        """Return the array of the program, not gathered."""
        value = self.value
        for equation in self.moves:
            (value,) = jaxprs.evaluate(equation, [value])
        return value


@dataclasses.dataclass(frozen=True)
class _Gathers:
    """Evaluates jaxprs; XLA does not optimize across loops, so that bodies of loops gather themselves."""

    mesh: jax.sharding.Mesh
    in_loop: bool = False
    is_repeated: bool = False

    def evaluate(self, program: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs of a jaxpr for arrays and weights; weights in the outputs are not gathered."""
        jaxpr, constants = jaxprs.parts_of_jaxpr(program)
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
        known |= zip(jaxpr.invars, inputs, strict=True)
        for equation in jaxpr.eqns:
            values = [value.val if jaxprs.is_literal(value) else known[value] for value in equation.invars]
            if any(isinstance(value, _Weight) for value in values):
                outputs = self._evaluated(equation, values)
            else:
                outputs = jaxprs.evaluate(equation, values)
            known |= zip(equation.outvars, outputs, strict=True)
        outputs = [value.val if jaxprs.is_literal(value) else known[value] for value in jaxpr.outvars]
        return list(map(_not_gathered, outputs))

    def _evaluated(self, equation: Any, values: list[Any]) -> list[Any]:
        """Return the outputs of an equation that takes weights."""
        name = equation.primitive.name
        if name in _INSIDE:
            return _INSIDE[name](self, equation, values)
        if name in ("slice", "dynamic_slice"):
            first, *starts = values
            if isinstance(first, _Weight) and not any(isinstance(start, _Weight) for start in starts):
                shape = zip(equation.invars[0].aval.shape, equation.outvars[0].aval.shape, strict=True)
                if not first.moves and first.whole([dim for dim, (old, new) in enumerate(shape) if old != new]):
                    (part,) = jaxprs.evaluate(equation, [first.value, *starts])
                    return [first.of_dims(part, range(len(first.axes)))]
        if len({value for value in equation.invars if not jaxprs.is_literal(value)}) == 1:
            return self._of_one_weight(equation, values)
        if name in _PLACES:
            return jaxprs.evaluate(equation, list(map(_not_gathered, values)))
        if jaxprs.has_jaxprs(equation):
            return self._on_gathered(equation, values)
        return self._used(equation, values)

    def _of_one_weight(self, equation: Any, values: list[Any]) -> list[Any]:
        """Return the outputs of an equation whose only input is a weight."""
        (weight,) = dict.fromkeys(value for value in values if isinstance(value, _Weight))
        name, params, result = equation.primitive.name, equation.params, equation.outvars[0].aval
        if name not in _MOVES:
            values = [weight.moved() if value is weight else value for value in values]
            return jaxprs.evaluate(equation, values)
        dims = None
        if name == "transpose":
            dims = params["permutation"]
        elif name == "squeeze" and weight.whole(params["dimensions"]):
            dims = [dim for dim in range(len(weight.axes)) if dim not in params["dimensions"]]
        elif name == "rev" and weight.whole(params["dimensions"]):
            dims = range(len(weight.axes))
        elif name == "convert_element_type" and result.dtype.itemsize < weight.value.dtype.itemsize:
            dims = range(len(weight.axes))  # less is gathered
        if dims is None or weight.moves:
            return [dataclasses.replace(weight, moves=(*weight.moves, equation))]
        (moved,) = jaxprs.evaluate(equation, [weight.value])
        return [weight.of_dims(moved, dims)]

    def _used(self, equation: Any, values: list[Any]) -> list[Any]:
        """Return the outputs of an equation; the backward pass keeps no gathered weight."""
        is_array = [not jaxprs.is_literal(value) for value in equation.invars]

        def use(*arrays: Any) -> list[Any]:
            rest = iter(arrays)
            filled = [_with_value(v, next(rest)) if known else v for v, known in zip(values, is_array, strict=True)]
            return self._on_gathered(equation, filled)

        arrays = [_value(value) for value, known in zip(values, is_array, strict=True) if known]
        return use(*arrays) if self.is_repeated else jax.checkpoint(use, prevent_cse=not self.in_loop)(*arrays)

    def _on_gathered(self, equation: Any, values: Sequence[Any]) -> list[Any]:
        with jaxprs.in_context_of(equation):
            gathered = [self._gathered(value) for value in values]
        return jaxprs.evaluate(equation, gathered)

    def _gathered(self, value: Any) -> Any:
        """Gather a weight; the transposes of these constraints scatter its gradient."""
        if not isinstance(value, _Weight):
            return value
        array = value.value
        with weight_scope(value.path):
            for axes in (value.axes, value.compute_axes):  # transposed, the first scatters what the second sums
                sharding = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(*axes))
                array = jax.lax.with_sharding_constraint(array, sharding)
        return dataclasses.replace(value, value=array).moved()

    def _call(self, equation: Any, values: list[Any]) -> list[Any]:
        layouts = *equation.params["in_shardings"], *equation.params["out_shardings"]
        if any(isinstance(layout, jax.sharding.Sharding) for layout in layouts):  # laid out by the module itself
            return jaxprs.evaluate(equation, list(map(_not_gathered, values)))
        with jaxprs.in_context_of(equation):
            return self.evaluate(equation.params["jaxpr"], values)

    def _checkpoint(self, equation: Any, values: list[Any]) -> list[Any]:
        inside = dataclasses.replace(self, is_repeated=True)
        program = equation.params["jaxpr"]

        def body(*arrays: Any) -> list[Any]:
            return inside.evaluate(program, list(map(_with_value, values, arrays)))

        given = list(map(_value, values))
        traced = jax.make_jaxpr(body)(*map(jaxprs.shape_of, given))
        return jaxprs.evaluate(equation, given, jaxpr=jaxprs.parts_of_jaxpr(traced)[0])

    def _scan(self, equation: Any, values: list[Any]) -> list[Any]:
        constants, carried = jaxprs.parts_of_scan(equation)
        inside, program = _Gathers(self.mesh, in_loop=True), equation.params["jaxpr"]
        stacks = {
            index: value
            for index, value in enumerate(values)
            if index >= carried and isinstance(value, _Weight) and not value.moves and value.whole([0])
        }

        def body(*arrays: Any) -> list[Any]:
            inputs = list(arrays)
            for index, stack in stacks.items():
                inputs[index] = stack.of_dims(arrays[index], range(1, len(stack.axes)))
            return inside.evaluate(program, inputs)

        given = list(map(_not_gathered, values))
        for index, value in enumerate(values):
            is_split = index >= carried and isinstance(value, _Weight) and not value.moves  # along the dim of the loop
            if index in stacks:
                given[index] = value.value
            elif index < constants or is_split:
                given[index] = self._gathered(value)
        shapes = [jaxprs.shape_of(value.aval) for value in jaxprs.parts_of_jaxpr(program)[0].invars]
        return jaxprs.evaluate(equation, given, jaxpr=jax.make_jaxpr(body)(*shapes))


_INSIDE: dict[str, Callable[[_Gathers, Any, list[Any]], list[Any]]] = {
    "jit": _Gathers._call,
    "checkpoint": _Gathers._checkpoint,
    "remat2": _Gathers._checkpoint,
    "scan": _Gathers._scan,
}
"""Operations with a jaxpr that takes weights without a gather."""


def _weight(array: Any, row: Row) -> Any:
    return array if row.axes == row.compute_axes else _Weight(row.path, array, row.axes, row.compute_axes)


def _not_gathered(value: Any) -> Any:
    return value.moved() if isinstance(value, _Weight) else value


def _value(value: Any) -> Any:
    return value.value if isinstance(value, _Weight) else value


def _with_value(value: Any, array: Any) -> Any:
    return dataclasses.replace(value, value=array) if isinstance(value, _Weight) else array


def _in_order(like: PyTree, tree: PyTree) -> PyTree:
    """Return `tree` with dicts ordered as in `like`; JAX sorts their keys."""
    if type(like) is dict:
        return {name: _in_order(like[name], tree[name]) for name in like}
    if type(like) in (list, tuple):
        return type(like)(_in_order(one, other) for one, other in zip(like, tree, strict=True))
    return tree
