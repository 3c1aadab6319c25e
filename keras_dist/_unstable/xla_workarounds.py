"""Lowerings around defects of XLA: convolutions, gradients of max pooling and of lookups, and tied layouts.

XLA's partitioner (GSPMD) computes wrong numbers, without an error, for some layouts on some meshes. The lowerings here
keep the dims concerned whole there, and leave all other programs alone. `tests/contracts/test_unstable.py` has a test
for each defect that fails as long as the defect exists.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

try:
    from jax.experimental.shard_alike import shard_alike as _shard_alike
except ImportError:
    _shard_alike = None

Axes = Sequence[str | tuple[str, ...] | None]
"""The mesh axes of each dim of an array."""

LayoutsOf = Callable[[tuple[int, ...]], Sequence[Axes]]
"""The layouts that arrays of a shape may have."""

Mesh = jax.sharding.Mesh | jax.sharding.AbstractMesh


def lowering_rules(
    mesh: Mesh, platform: str, layouts_of: LayoutsOf, constraints: Sequence[Axes]
) -> dict[Any, Callable[..., jax.Array]]:
    """Return what `jaxprs.lower_with` computes instead of primitives that XLA gets wrong.

    Args:
        mesh: the mesh of the program.
        platform: the platform of its devices.
        layouts_of: the layouts that the program's inputs and activations may have.
        constraints: the layouts to which the program constrains arrays.
    """

    def layouts(shape: tuple[int, ...]) -> Sequence[Axes]:
        return [*layouts_of(shape), *(axes for axes in constraints if len(axes) == len(shape))]

    convolve = avoid_slow_convolutions_in_loops if platform == "cpu" else lax.conv_general_dilated_p.bind
    return {
        lax.conv_general_dilated_p: avoid_multiplied_kernel_gradients(convolve, mesh, layouts),
        lax.select_and_scatter_add_p: avoid_wrong_pooling_gradients(mesh, layouts),
        lax.scatter_add_p: avoid_added_padding(mesh),
    }


def avoid_slow_convolutions_in_loops(
    lhs: jax.Array, rhs: jax.Array, *, dimension_numbers: lax.ConvDimensionNumbers, **params: Any
) -> jax.Array:
    """`lax.conv_general_dilated_p.bind` with the dims of its operands where XLA's fast kernels on CPUs expect them.

    XLA moves the dims itself, but only in the entry computation (`xla/service/cpu/conv_canonicalization.cc`). In the
    body of a loop the gradient of a kernel takes 1.8 times as long, and differs in its last bits.

    Seen with jax 0.10.2 and 0.12.0. Upstream: https://github.com/jax-ml/jax/issues/12868 (open).
    """
    dims, ndim = dimension_numbers, lhs.ndim
    # (batch, *space, channels) by (*space, channels in, channels out)
    data, kernel = (0, ndim - 1, *range(1, ndim - 1)), (ndim - 1, ndim - 2, *range(ndim - 2))
    moved = lax.ConvDimensionNumbers(data, kernel, data)
    result = lax.conv_general_dilated_p.bind(
        lax.transpose(lhs, _permutation(dims.lhs_spec, moved.lhs_spec)),
        lax.transpose(rhs, _permutation(dims.rhs_spec, moved.rhs_spec)),
        dimension_numbers=moved,
        **params,
    )
    return lax.transpose(result, _permutation(moved.out_spec, dims.out_spec))


def avoid_multiplied_kernel_gradients(
    convolve: Callable[..., jax.Array], mesh: Mesh, layouts_of: LayoutsOf
) -> Callable[..., jax.Array]:
    """Return `convolve` with spatial dims unsharded where XLA adds up the gradient of the kernel over too many devices.

    Where several devices hold the same part of space, XLA adds their gradients of a kernel, which become as many times
    too large. Where parts differ in size, the gradients are wrong, too. Gradients of grouped convolutions are wrong
    wherever several devices hold the same part of the batch; there all dims are unsharded.

    Seen with jax 0.10.2 and 0.12.0. Upstream: not reported.
    """

    def convolve_whole(
        lhs: jax.Array, rhs: jax.Array, *, dimension_numbers: lax.ConvDimensionNumbers, **params: Any
    ) -> jax.Array:
        dims, bound = dimension_numbers, functools.partial(convolve, dimension_numbers=dimension_numbers, **params)
        space = dims.lhs_spec[2:]
        is_gradient_of_groups = params["batch_group_count"] > 1  # of their kernel

        def is_right(axes: Axes) -> bool:
            shards = [_shards(mesh, axis) for axis in axes]
            if is_gradient_of_groups and math.prod(shards) not in (1, mesh.size):
                return False
            if len(axes) != lhs.ndim:  # the layout of an array that is reshaped to `lhs`
                return math.prod(shards[1:]) == 1
            if all(shards[dim] == 1 for dim in space):
                return True
            # dim 0 is the batch, except in the gradient of a kernel, whose other operand is the output's gradient
            other, spec = (rhs, dims.rhs_spec) if dims.lhs_spec[0] else (jax.eval_shape(bound, lhs, rhs), dims.out_spec)
            sizes = [(lhs.shape[dim], other.shape[same]) for dim, same in zip(space, spec[2:], strict=True)]
            are_even = all(size % shards[dim] == 0 for dim, pair in zip(space, sizes, strict=True) for size in pair)
            return math.prod(shards) == mesh.size and are_even

        if all(map(is_right, layouts_of(lhs.shape))):
            return bound(lhs, rhs)
        first = 0 if is_gradient_of_groups else 2  # of the dims that shall be whole
        result = bound(_whole(lhs, dims.lhs_spec[first:], mesh), _whole(rhs, dims.rhs_spec[first:], mesh))
        return _whole(result, dims.out_spec[first:], mesh)

    return convolve_whole


def avoid_wrong_pooling_gradients(mesh: Mesh, layouts_of: LayoutsOf) -> Callable[..., jax.Array]:
    """Return `lax.select_and_scatter_add_p.bind` with dims unsharded in which windows overlap.

    XLA computes wrong gradients of max pooling at the borders of shards, on any mesh, with windows of 3 by strides of 1
    and of 4 by 2. The values, and sums and their gradients, are right.

    Seen with jax 0.10.2 and 0.12.0. Upstream: not reported.
    """

    def scatter(
        source: jax.Array,
        operand: jax.Array,
        *,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        **params: Any,
    ) -> jax.Array:
        bound = functools.partial(
            lax.select_and_scatter_add_p.bind,
            window_dimensions=window_dimensions,
            window_strides=window_strides,
            **params,
        )
        windows = zip(window_dimensions, window_strides, strict=True)
        overlapping = [dim for dim, (size, stride) in enumerate(windows) if size > stride]

        def are_whole(axes: Axes) -> bool:
            dims = overlapping if len(axes) == operand.ndim else range(1, len(axes))  # else reshaped to the operand
            return all(_shards(mesh, axes[dim]) == 1 for dim in dims)

        if not overlapping or all(map(are_whole, layouts_of(operand.shape))):
            return bound(source, operand)
        return _whole(bound(*(_whole(array, overlapping, mesh) for array in (source, operand))), overlapping, mesh)

    return scatter


def avoid_added_padding(mesh: Mesh) -> Callable[..., jax.Array]:
    """Return `lax.scatter_add_p.bind`, the gradient of a lookup, with dims of indices unsharded that an axis may pad.

    Where indices are sharded unevenly, and repeated along another axis of the mesh, XLA adds up its padding, too.

    Seen with jax 0.10.2 and 0.12.0. Upstream: not reported; https://github.com/openxla/xla/issues/42481 is similar.
    """
    sizes = [size for size in mesh.axis_sizes if size > 1]

    def add(
        operand: jax.Array,
        indices: jax.Array,
        updates: jax.Array,
        *,
        dimension_numbers: lax.ScatterDimensionNumbers,
        **params: Any,
    ) -> jax.Array:
        lengths = enumerate(indices.shape[:-1])
        uneven = [dim for dim, length in lengths if length > 1 and any(length % size for size in sizes)]
        if len(sizes) > 1 and uneven:
            window = dimension_numbers.update_window_dims
            rows = [dim for dim in range(updates.ndim) if dim not in window]  # in the order of the indices' dims
            indices = _whole(indices, uneven, mesh)
            updates = _whole(updates, [rows[dim] for dim in uneven], mesh)
        return lax.scatter_add_p.bind(operand, indices, updates, dimension_numbers=dimension_numbers, **params)

    return add


def shard_alike(array: Any, like: Any) -> Any:
    """Return a traced array in the layout that XLA chooses for `like`, an array of the same shape.

    JAX 0.12 removed `jax.experimental.shard_alike` without a replacement. There a `select` whose predicate is always
    false ties both arrays: XLA gives them one layout, unless other operations decide the layout of `array`.

    Seen with jax 0.12.0. Upstream: not reported.
    """
    if _shard_alike is not None:
        return _shard_alike(array, like)[0]
    never = lax.optimization_barrier(jnp.zeros(array.shape, bool))
    return lax.select(never, like.astype(array.dtype), array)


def with_one_layout(array: jax.Array) -> jax.Array:
    """Return the operand of an all-to-all.

    XLA for CPUs gives the parts of a transposed operand several layouts, and refuses its program.

    Seen with jax 0.10.2, not with 0.12.0.
    """
    return lax.optimization_barrier(array)


def _shards(mesh: Mesh, axes: str | tuple[str, ...] | None) -> int:
    """The number of shards of a dim."""
    names = (axes,) if isinstance(axes, str) else axes or ()
    return math.prod(mesh.shape[name] for name in names)


def _whole(array: jax.Array, dims: Sequence[int], mesh: Mesh) -> jax.Array:
    """`array` with these dims unsharded; XLA chooses for the others (traced)."""
    if jax.sharding.get_abstract_mesh().manual_axes:  # in `jax.shard_map`, where XLA shards nothing
        return array
    free = jax.sharding.PartitionSpec.UNCONSTRAINED
    spec = jax.sharding.PartitionSpec(*(None if dim in dims else free for dim in range(array.ndim)))
    return lax.with_sharding_constraint(array, jax.sharding.NamedSharding(mesh, spec))


def _permutation(given: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """The permutation that brings each dim from where it is given to where it is wanted."""
    return tuple(dim for _, dim in sorted(zip(wanted, given, strict=True)))
