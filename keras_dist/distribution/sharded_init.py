"""Sharded initialization: no array is ever whole on one device.

Arrays that differ only in the number of their key share a program, and programs are compiled in threads: XLA takes 60
ms for each drawn array, and 400 layers took a minute. CPU programs are compiled at level 1: above it LLVM vectorizes
small shards differently, and last bits depend on the mesh. The n-th weight gets the n-th key of the seed, so that
Functional, Sequential and subclassed forms of a model have equal initial values. Random bits take three times the bytes
of their result, so large arrays are created one after the other.
"""

from __future__ import annotations

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from keras_dist._support import backend_environment
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist._unstable import jaxprs
from keras_dist._unstable.jax_internals import in_mesh, without_mesh
from keras_dist.distribution.consistency import agreed_programs
from keras_dist.jobs import heartbeat

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr

    from keras_dist.distribution.plan import LayoutPlan

_SMALL_BYTES = 1 << 20
_MANY_CONSTANTS = 16
_CPU_OPTIONS = {"xla_backend_optimization_level": 1}
"""Above level 1, LLVM vectorizes small shards differently from whole arrays, and initial values differ in the last bit
between meshes (seen with jax 0.12). Level 1 is as fast here."""


class CompiledInit:
    """An initializer, compiled for a plan as one or more programs that run one after another.

    Initial values are random bits converted to floats, so an initializer needs several times the memory of its result.
    Large states are therefore initialized a few arrays at a time, never more than the largest shard. Arrays that are
    computed in the same way, such as kernels of equal layers, share a program, since compiling takes longer than
    running; so do models that are made one after another in a process.
    """

    def __init__(self, fn: Callable[..., PyTree], args: Sequence[PyTree], plan: LayoutPlan) -> None:
        with in_mesh(plan.mesh.backend_mesh):  # for modules whose factory calls them
            closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
        closed = jaxprs.with_sums(closed)
        plan.check_tree(shape, "the result of the initialiser")
        self._treedef = jax.tree.structure(shape)
        self._nbytes = [row.nbytes_per_device for row in plan.rows]
        shardings = jax.tree.leaves(plan.shardings)
        flat_args = jax.tree.leaves(list(args))
        slices = slices_of(closed)
        alike, others = _alike(slices, shardings)
        runs: list[list[tuple[list[int], tuple[np.ndarray, ...]]]] = []
        wanted: list[Callable[[], jax.stages.Lowered]] = []

        def want(indices: list[int], function: Callable[..., Any], numbers: tuple[np.ndarray, ...]) -> None:
            jitted = jax.jit(function, out_shardings=[shardings[i] for i in indices])
            wanted.append(without_mesh()(lambda: jitted.lower(*numbers, *flat_args)))

        for members in alike:
            index, first = next(iter(members.items()))
            runs.append([([i], (np.array(member.numbers, np.uint32),)) for i, member in members.items()])
            want([index], first.__call__, runs[-1][0][1])
        for positions in _groups([self._nbytes[i] for i in others]):
            group = [others[position] for position in positions]
            runs.append([(group, ())])
            want(group, _select(closed, group), ())
        programs = agreed_programs("compute initial values", plan.mesh, (lower() for lower in wanted))
        is_cpu = all(device.platform == "cpu" for device in plan.mesh.backend_mesh.devices.flat)
        self.programs = jaxprs.compile_together(programs, [_CPU_OPTIONS] * len(runs) if is_cpu else None)
        # a program, the indices of its results, and the numbers that precede its arguments
        self._creations = [(one, *run) for one, group in zip(self.programs, runs, strict=True) for run in group]

    def __call__(self, *args: PyTree) -> PyTree:
        """Return the initial values, each array with its layout of the plan."""
        leaves: list[jax.Array | None] = [None] * self._treedef.num_leaves
        flat_args, created = jax.tree.leaves(list(args)), 0
        with heartbeat.current().waiting():
            for program, indices, numbers in self._creations:
                values = jax.block_until_ready(program(*numbers, *flat_args))
                for index, value in zip(indices, values, strict=True):
                    leaves[index] = value
                    created += self._nbytes[index]
                if created >= _SMALL_BYTES:
                    backend_environment.release_freed_memory()
                    created = 0
        return self._treedef.unflatten(leaves)


def _alike(
    slices: Sequence[Slice | None], shardings: Sequence[jax.sharding.Sharding]
) -> tuple[list[dict[int, Slice]], list[int]]:
    """Return groups of equal slices, by index; and the indices of all others."""
    found: dict[Hashable, dict[int, Slice]] = {}
    others = [index for index, part in enumerate(slices) if part is None]
    for index, part in enumerate(slices):
        if part is not None:
            found.setdefault((part.form, shardings[index]), {})[index] = part
    alike = [members for members in found.values() if len(members) >= _least(members)]
    others += [index for members in found.values() if len(members) < _least(members) for index in members]
    return alike, sorted(others)


def _least(members: dict[int, Slice]) -> int:
    """Return the number of slices that are worth a program: two that draw random bits, or several that do not."""
    return 2 if next(iter(members.values())).numbers else _MANY_CONSTANTS


def _select(closed: ClosedJaxpr, group: Sequence[int]) -> Callable[..., list[jax.Array]]:
    """Return the function that computes only the outputs in `group` of a traced initializer."""
    arguments = {id(var) for var in closed.jaxpr.invars}
    forwarded = [id(closed.jaxpr.outvars[i]) in arguments for i in group]
    evaluate = jaxprs.function_of_jaxpr(jaxprs.dead_code_eliminated(closed, group))

    def init_group(*flat_args: ArrayLike) -> list[jax.Array]:
        values = evaluate(*flat_args)
        # an argument that is returned unchanged would share the caller's buffer
        return [jax.numpy.copy(v) if shared else v for v, shared in zip(values, forwarded, strict=True)]

    return init_group


def _groups(bytes_per_device: Sequence[int]) -> list[list[int]]:
    """Return indices of the arrays that are created together: at most the largest shard, or a small amount, at once."""
    limit = max([_SMALL_BYTES, *bytes_per_device])
    groups: list[list[int]] = []
    filled = limit + 1
    for index, nbytes in enumerate(bytes_per_device):
        if filled + nbytes > limit:
            groups.append([])
            filled = 0
        groups[-1].append(index)
        filled += nbytes
    return groups


class Slice:
    """The equations that one output of a traced function depends on.

    The weights of a model's layers are drawn from one seed, folded with their number. Weights of equal shape and
    initializer differ in this number alone: they have equal forms and share one compiled program.
    """

    def __init__(self, equations: Sequence[Any], closed: ClosedJaxpr, output: Any) -> None:
        self._equations = equations
        self._constants = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        self._arguments = closed.jaxpr.invars
        self._output = output
        self.numbers = [number for equation in equations for number in _folded_with(equation)]  # folded into seeds
        self.form = self._form()

    def __call__(self, numbers: jax.Array, *arguments: ArrayLike) -> list[ArrayLike]:
        """Return the output, in a list, for other numbers, an array (numbers,), and these arguments."""
        known = {**self._constants, **dict(zip(self._arguments, arguments, strict=True))}
        count = 0
        for equation in self._equations:
            values = [value.val if jaxprs.is_literal(value) else known[value] for value in equation.invars]
            for _ in _folded_with(equation):
                values[1] = numbers[count]
                count += 1
            known |= zip(equation.outvars, jaxprs.evaluate(equation, values), strict=True)
        return [known[self._output]]

    def _form(self) -> Hashable:
        places: dict[Any, int] = {variable: n for n, variable in enumerate([*self._constants, *self._arguments])}
        parts: list[Hashable] = []
        for equation in self._equations:
            inputs: list[Hashable] = [
                (str(value.aval), np.asarray(value.val).tobytes()) if jaxprs.is_literal(value) else places[value]
                for value in equation.invars
            ]
            inputs[1:2] = inputs[1:2] if not _folded_with(equation) else ["number"]
            for variable in equation.outvars:
                places[variable] = len(places)
            results = tuple(str(variable.aval) for variable in equation.outvars)
            parts.append((equation.primitive, tuple(sorted(equation.params.items())), tuple(inputs), results))
        try:
            form = (*parts, places[self._output])
            hash(form)
        except TypeError:  # a parameter of an equation cannot be compared
            return object()
        return form


def slices_of(closed: ClosedJaxpr) -> list[Slice | None]:
    """Return the slice of each output of a traced function; None for arguments, constants and outputs with effects."""
    made_by = {variable: (n, eqn) for n, eqn in enumerate(closed.jaxpr.eqns) for variable in eqn.outvars}
    return [_slice_of(closed, output, made_by) for output in closed.jaxpr.outvars]


def _slice_of(closed: ClosedJaxpr, output: Any, made_by: dict[Any, tuple[int, Any]]) -> Slice | None:
    if jaxprs.is_literal(output) or output not in made_by:
        return None
    found: dict[int, Any] = {}
    waiting = [output]
    while waiting:
        number, equation = made_by.get(waiting.pop(), (-1, None))
        if equation is not None and number not in found:
            found[number] = equation
            waiting += [value for value in equation.invars if not jaxprs.is_literal(value)]
    equations = [found[number] for number in sorted(found)]
    return None if any(equation.effects for equation in equations) else Slice(equations, closed, output)


def _folded_with(equation: Any) -> list[np.ndarray]:
    """Return the number that the equation folds into a seed, in a list; empty for other equations."""
    if equation.primitive.name != "random_fold_in" or not jaxprs.is_literal(equation.invars[1]):
        return []
    return [np.asarray(equation.invars[1].val)]
