"""`FiniteFlags`: which variables are finite, asked between two steps without waiting for either."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from keras_dist.training.state_cell import StateCell


class FiniteFlags:
    """Which variables of a model are finite.

    Each device looks at its own part, in one pass over the variables: no collective, and nobody waits.

    Args:
        cell: owns the variables.

    Attributes:
        paths: of the variables that are looked at: those that could hold NaN.
    """

    def __init__(self, cell: StateCell) -> None:
        self._cell = cell
        specs, shardings = cell.graph.specs, jax.tree.leaves(cell.plan.shardings)
        self._indices = [index for index, spec in enumerate(specs) if jnp.issubdtype(spec.dtype, jnp.inexact)]
        self.paths = [specs[index].path for index in self._indices]
        self._program = _compile_flags(shardings[0].mesh, tuple(shardings[index].spec for index in self._indices))

    def dispatch(self) -> jax.Array:
        """Look at the current values: flags (devices, variables), which later steps do not consume."""
        with self._cell.lock:
            leaves = self._cell.leaves()
            return self._program([leaves[index] for index in self._indices])

    def not_finite(self, flags: jax.Array) -> list[str]:
        """The paths of the variables that were not finite when the flags were dispatched, on devices of this process.

        Args:
            flags: what `dispatch` gave. Reading them waits for the step before it.
        """
        found = np.concatenate([np.asarray(shard.data) for shard in flags.addressable_shards])
        return [path for path, on_devices in zip(self.paths, found.T, strict=True) if not on_devices.all()]


@functools.lru_cache(maxsize=16)
def _compile_flags(mesh: Mesh, specs: tuple[PartitionSpec, ...]) -> Callable[[Sequence[Any]], jax.Array]:
    def flags(parts: Sequence[Any]) -> jax.Array:
        return jnp.asarray([jnp.isfinite(part).all() for part in parts], bool)[None]

    return jax.jit(jax.shard_map(flags, mesh=mesh, in_specs=(list(specs),), out_specs=PartitionSpec(mesh.axis_names)))
