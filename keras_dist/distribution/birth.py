"""Sharded at birth: compile an initialiser so that no array is ever whole on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from keras_dist import _environment, _jax
from keras_dist.distribution.mesh import DeviceMesh

_SMALL_BYTES = 1 << 20
_CPU_OPTIONS = {"xla_backend_optimization_level": 1}
"""Above level 1 LLVM vectorises small shards otherwise than whole arrays, and initial values differ in the last bit
from mesh to mesh (seen with jax 0.12). Level 1 is as fast here."""


class CompiledInit:
    """An initialiser, compiled for a plan as one or more programs that run one after the other.

    Initial values are random bits turned into floats, so an initialiser needs several times the bytes it returns.
    Large states are therefore born a few arrays at a time: never more at once than the largest shard.

    Attributes:
        programs: the compiled programs; their `memory_analysis()` gives output and temporary bytes per device.
    """

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], plan: Any) -> None:
        closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
        plan.check_tree(shape, "the result of the initialiser")
        self._treedef = jax.tree.structure(shape)
        self._groups = _groups([row.nbytes_per_device for row in plan.rows])
        shardings = jax.tree.leaves(plan.shardings)
        flat_args = jax.tree.leaves(list(args))
        self.programs = tuple(
            jax.jit(_select(closed, group), out_shardings=[shardings[i] for i in group])
            .lower(*flat_args)
            .compile(compiler_options=_compiler_options(plan.mesh))
            for group in self._groups
        )

    def __call__(self, *args: Any) -> Any:
        """The initial values, each array with the layout of the plan."""
        flat_args = jax.tree.leaves(list(args))
        leaves: list[Any] = [None] * self._treedef.num_leaves
        for group, program in zip(self._groups, self.programs, strict=True):
            values = jax.block_until_ready(program(*flat_args))
            if len(self.programs) > 1:
                _environment.release_freed_memory()
            for index, value in zip(group, values, strict=True):
                leaves[index] = value
        return self._treedef.unflatten(leaves)


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
