"""Sharded at birth: compile an initialiser so that no array is ever whole on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from keras_dist import _environment, _jax
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.slices import Slice, slices_of

_SMALL_BYTES = 1 << 20
_CPU_OPTIONS = {"xla_backend_optimization_level": 1}
"""Above level 1 LLVM vectorises small shards otherwise than whole arrays, and initial values differ in the last bit
from mesh to mesh (seen with jax 0.12). Level 1 is as fast here."""


class CompiledInit:
    """An initialiser, compiled for a plan as one or more programs that run one after the other.

    Initial values are random bits turned into floats, so an initialiser needs several times the bytes it returns.
    Large states are therefore born a few arrays at a time: never more at once than the largest shard. Arrays that are
    computed alike, as the kernels of equal layers are, share a program: compiling takes longer than running.

    Attributes:
        programs: the compiled programs; their `memory_analysis()` gives output and temporary bytes per device.
    """

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], plan: Any) -> None:
        closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
        closed = _jax.with_sums(closed)
        plan.check_tree(shape, "the result of the initialiser")
        self._treedef = jax.tree.structure(shape)
        self._nbytes = [row.nbytes_per_device for row in plan.rows]
        shardings = jax.tree.leaves(plan.shardings)
        flat_args = jax.tree.leaves(list(args))
        self._births: list[_Birth] = []
        options = _compiler_options(plan.mesh)
        alike, others = _alike(slices_of(closed), shardings)
        for members in alike:
            index, first = next(iter(members.items()))
            jitted = jax.jit(first.__call__, out_shardings=[shardings[index]])
            program = jitted.lower(_numbers(first), *flat_args).compile(compiler_options=options)
            self._births += [_Birth(program, [i], (_numbers(member),)) for i, member in members.items()]
        for positions in _groups([self._nbytes[i] for i in others]):
            group = [others[position] for position in positions]
            jitted = jax.jit(_select(closed, group), out_shardings=[shardings[i] for i in group])
            self._births.append(_Birth(jitted.lower(*flat_args).compile(compiler_options=options), group))
        self.programs = tuple({id(birth.program): birth.program for birth in self._births}.values())

    def __call__(self, *args: Any) -> Any:
        """The initial values, each array with the layout of the plan."""
        flat_args = jax.tree.leaves(list(args))
        leaves: list[Any] = [None] * self._treedef.num_leaves
        born = 0
        for birth in self._births:
            values = jax.block_until_ready(birth.program(*birth.numbers, *flat_args))
            for index, value in zip(birth.indices, values, strict=True):
                leaves[index] = value
                born += self._nbytes[index]
            if born >= _SMALL_BYTES:
                _environment.release_freed_memory()
                born = 0
        return self._treedef.unflatten(leaves)


class _Birth(NamedTuple):
    """One run of a program: which arrays it gives, and for what numbers, which go before the arguments."""

    program: Any
    indices: list[int]
    numbers: tuple[Any, ...] = ()


def _alike(slices: Sequence[Slice | None], shardings: Sequence[Any]) -> tuple[list[dict[int, Slice]], list[int]]:
    """The slices that are alike, by their index; and the indices of all others."""
    found: dict[Any, dict[int, Slice]] = {}
    others = [index for index, part in enumerate(slices) if part is None]
    for index, part in enumerate(slices):
        if part is not None:
            found.setdefault((part.form, shardings[index]), {})[index] = part
    others += [index for members in found.values() if len(members) == 1 for index in members]
    return [members for members in found.values() if len(members) > 1], sorted(others)


def _numbers(part: Slice) -> np.ndarray:
    return np.array(part.numbers, np.uint32)


def _select(closed: Any, group: Sequence[int]) -> Callable[..., list[Any]]:
    """The function that computes only the outputs in `group` of a traced initialiser."""
    arguments = {id(var) for var in closed.jaxpr.invars}
    forwarded = [id(closed.jaxpr.outvars[i]) in arguments for i in group]
    evaluate = _jax.function_of_jaxpr(_jax.dead_code_eliminated(closed, group))

    def init_group(*flat_args: Any) -> list[Any]:
        values = evaluate(*flat_args)
        # an argument returned as it came would share the caller's buffer
        return [jax.numpy.copy(v) if shared else v for v, shared in zip(values, forwarded, strict=True)]

    return init_group


def _compiler_options(mesh: DeviceMesh) -> dict[str, Any] | None:
    is_cpu = all(device.platform == "cpu" for device in mesh.backend_mesh.devices.flat)
    return _CPU_OPTIONS if is_cpu else None


def _groups(bytes_per_device: Sequence[int]) -> list[list[int]]:
    """Indices of the arrays born together: at most the largest shard, or a small amount, at once."""
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
