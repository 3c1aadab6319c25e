"""Tracing of a module with its mesh in JAX's context.

The mesh is set while a module is traced, both as `jax.set_mesh` and as `with mesh:`, because `shard_map`, bare specs
and `shard()` helpers of models need it. It is not set for rows that the mesh does not divide: XLA computes wrong
gradients for rows that a bare spec splits unevenly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import jax

from keras_dist._support.types import PyTree
from keras_dist._unstable import jax_internals
from keras_dist._unstable.jax_internals import has_explicit_mesh, in_mesh, without_mesh
from keras_dist.distribution import trace_context
from keras_dist.distribution.strategy import Distribution, distribution
from keras_dist.errors import KerasDistError, ModelError

T = TypeVar("T")

_NEEDS_ROWS_THAT_DIVIDE = ("requires a non-empty mesh", "context mesh cannot be empty", "not evenly divisible")
_NAMES_OTHER_AXES = ("is not found in mesh", "must refer to an axis marked as manual")
_NEEDS_EXPLICIT_AXES = ("of type Auto or Manual", "only refer to Auto axes", "axis_types=(Explicit")


def traced_distribution() -> Distribution | None:
    """Return the distribution whose mesh `traced_in` has set; None outside, and where it sets no mesh."""
    return trace_context.current().distribution


def may_use_kernels() -> bool:
    """Return whether layers may call kernels; False inside of `without_kernels`."""
    return trace_context.current().may_use_kernels


def without_kernels() -> contextlib.AbstractContextManager[object]:
    """Trace layers without kernels and layouts: a search follows dims through operations; or only shapes are needed."""
    return trace_context.traced_with(may_use_kernels=False)


@contextlib.contextmanager
def kernels_noted() -> Generator[dict[str, None]]:
    """Collect the kernels that layers note while they are traced, in order and without duplicates."""
    found: dict[str, None] = {}
    with trace_context.traced_with(kernels=found):
        yield found


def note_kernel(text: str) -> None:
    """Note the kernel that a layer chose for the platform of the mesh, for the plan."""
    found = trace_context.current().kernels
    if found is not None:
        found[text] = None


def traced_in(
    distribution: Distribution, rows: int | None, trace: Callable[[], T], values: PyTree = (), pads: bool = False
) -> T:
    """Call `trace()` with the mesh of the distribution in JAX's context.

    No mesh is set for a number of `rows` that it does not divide, unless they are padded: modules that look for a mesh
    then leave the batch unsharded, because XLA computes wrong gradients of unevenly split rows. No mesh is set either
    if the `values` are on a mesh of another size, since JAX computes on one mesh at a time.
    """
    mesh = distribution.device_mesh
    is_uneven = rows is not None and not pads and rows % batch_shards(distribution) != 0
    types = [jax.typeof(value) for value in jax.tree.leaves(values) if isinstance(value, jax.Array)]
    is_elsewhere = any(not kind.sharding.mesh.empty and kind.sharding.mesh.size != mesh.size for kind in types)
    try:
        if is_uneven or is_elsewhere:
            with (
                without_mesh() if has_explicit_mesh() else contextlib.nullcontext(),
                trace_context.traced_with(distribution=None),
            ):
                return trace()
        with in_mesh(mesh.backend_mesh), trace_context.traced_with(distribution=distribution):
            return trace()
    except KerasDistError:
        raise
    except (ValueError, RuntimeError, KeyError) as error:
        said, shards = str(error), batch_shards(distribution)
        given = f"mesh {mesh.describe()}; JAX says: {' '.join(said.split())[:300]}"
        # for example `jax.sharding.get_abstract_mesh().shape["model"]` without a mesh
        lacks_mesh = error.args[:1] in [(name,) for name in mesh.axis_names] or _contains(said, _NAMES_OTHER_AXES)
        if _contains(said, _NEEDS_ROWS_THAT_DIVIDE) or (is_uneven and lacks_mesh):
            what = "the module shards the batch itself, with shard_map or a bare PartitionSpec"
            expected = f"a multiple of {shards} rows, and other dims that the axes in its specs divide"
            fix = "drop the last, partial batch (drop_remainder=True), or choose a batch_size that divides the rows"
            if is_uneven:
                given = f"a batch of {rows} rows on mesh {mesh.describe()}"
                fix = f'compile(..., uneven="pad"), which pads such batches for the module; or {fix}'
        elif _contains(said, _NAMES_OTHER_AXES):
            what = "the module names an axis that the mesh does not have"
            expected = f"specs with the axes {list(mesh.axis_names)}"
            fix = "name the axes of the DeviceMesh as the module does"
        elif _contains(said, _NEEDS_EXPLICIT_AXES):
            what = "the module is written for a mesh with Explicit axes"
            expected = "specs for Auto axes, as in a DeviceMesh"
            fix = "jax.lax.with_sharding_constraint(x, PartitionSpec(...)), or shard_map without `mesh`, on the mesh "
            fix += "of the model; or leave the specs out and write rules '<path>/output'"
        else:
            raise
        raise ModelError(what, given=given, expected=expected, fix=fix) from error


def _contains(said: str, texts: Sequence[str]) -> bool:
    return any(text in said for text in texts)


def batch_shards(distribution: Distribution) -> int:
    """Return the number of devices over which the rows of a batch are split."""
    return distribution.device_mesh.axis_size(distribution.get_data_layout((1,)).axes[0])


def _mesh_of(owner: Any) -> jax.sharding.Mesh | None:
    current = traced_distribution() or getattr(owner, "distribution", None) or distribution()
    return current.device_mesh.backend_mesh if isinstance(current, Distribution) else None


jax_internals.mesh_of_programs = _mesh_of
