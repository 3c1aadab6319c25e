"""Convolutions that XLA compiles well on CPUs, also in loops; they and max pooling right where their dims are split."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from keras_dist.distribution import lint
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.strategy import Distribution

Convolve = Callable[..., jax.Array]
"""As `lax.conv_general_dilated_p.bind`."""

LayoutsOf = Callable[[tuple[int, ...]], Sequence[Sequence[Axis]]]


def batch_first(
    lhs: jax.Array, rhs: jax.Array, *, dimension_numbers: lax.ConvDimensionNumbers, **params: Any
) -> jax.Array:
    """`lax.conv_general_dilated` with the dims of its operands where XLA's fast convolutions on CPUs want them.

    XLA moves them there by itself, but not in the body of a loop: there the gradient of a kernel takes twice as long
    or more, and is another in its last bits.

    Source: XLA, `xla/service/cpu/conv_canonicalization.cc`, which looks at the entry computation alone.
    """
    dims, ndim = dimension_numbers, lhs.ndim
    # (batch, *space, channels) by (*space, channels in, channels out)
    data, kernel = (0, ndim - 1, *range(1, ndim - 1)), (ndim - 1, ndim - 2, *range(ndim - 2))
    moved = lax.ConvDimensionNumbers(data, kernel, data)
    result = lax.conv_general_dilated_p.bind(
        lax.transpose(lhs, _from_to(dims.lhs_spec, moved.lhs_spec)),
        lax.transpose(rhs, _from_to(dims.rhs_spec, moved.rhs_spec)),
        dimension_numbers=moved,
        **params,
    )
    return lax.transpose(result, _from_to(moved.out_spec, dims.out_spec))


def windows_on(
    mesh: DeviceMesh, layouts_of: LayoutsOf
) -> Callable[[Sequence[Sequence[Axis]]], dict[Any, Callable[..., jax.Array]]]:
    """Return the rule for `_programs.lower_with` of convolutions, and of gradients of pooling and lookups."""
    primitive = lax.conv_general_dilated_p
    is_cpu = mesh.platform == "cpu"

    def instead(constraints: Sequence[Sequence[Axis]]) -> dict[Any, Callable[..., jax.Array]]:
        def layouts(shape: tuple[int, ...]) -> Sequence[Sequence[Axis]]:
            return [*layouts_of(shape), *(axes for axes in constraints if len(axes) == len(shape))]

        return {
            primitive: split_rightly(batch_first if is_cpu else primitive.bind, mesh, layouts),
            lax.select_and_scatter_add_p: scatter_rightly(mesh, layouts),
            lax.scatter_add_p: add_rightly(mesh),
        }

    return instead


def layouts_of_tensors(distribution: Distribution) -> LayoutsOf:
    """The layouts that a distribution gives inputs and activations."""
    rules = distribution.layout_map
    ruled = [] if rules is None else [rules.rule_layout(rule).axes for rule in rules if lint.names_tensor(rule)]
    return lambda shape: [*ruled, distribution.get_data_layout(shape).axes]


def split_rightly(convolve: Convolve, mesh: DeviceMesh, layouts_of: LayoutsOf) -> Convolve:
    """`convolve` with its operands and its result whole in their spatial dims where XLA would not split those rightly.

    Measured with jax 0.10: where several devices hold the same part of space, gradients of kernels are as many times
    too large, as if XLA's partitioner added up over all devices; where parts differ in size, they are wrong, too.
    Those of grouped convolutions also where several devices hold the same part of the batch: there all dims are whole.
    """

    def convolve_rightly(
        lhs: jax.Array, rhs: jax.Array, *, dimension_numbers: lax.ConvDimensionNumbers, **params: Any
    ) -> jax.Array:
        dims, bound = dimension_numbers, functools.partial(convolve, dimension_numbers=dimension_numbers, **params)
        space = dims.lhs_spec[2:]
        is_gradient_of_groups = params["batch_group_count"] > 1  # of their kernel

        def splits_rightly(axes: Sequence[Axis]) -> bool:
            shards = [mesh.axis_size(axis) for axis in axes]
            if is_gradient_of_groups and math.prod(shards) not in (1, mesh.size):
                return False
            if len(axes) != lhs.ndim:  # of what is reshaped
                return math.prod(shards[1:]) == 1
            if all(shards[dim] == 1 for dim in space):
                return True
            # dim 0 is the batch, but in the gradient of a kernel, whose other operand is the output's gradient
            other, spec = (rhs, dims.rhs_spec) if dims.lhs_spec[0] else (jax.eval_shape(bound, lhs, rhs), dims.out_spec)
            sizes = [(lhs.shape[dim], other.shape[same]) for dim, same in zip(space, spec[2:], strict=True)]
            are_even = all(size % shards[dim] == 0 for dim, pair in zip(space, sizes, strict=True) for size in pair)
            return math.prod(shards) == mesh.size and are_even

        if all(map(splits_rightly, layouts_of(lhs.shape))):
            return bound(lhs, rhs)
        first = 0 if is_gradient_of_groups else 2  # of the dims that shall be whole
        result = bound(_whole(lhs, dims.lhs_spec[first:], mesh), _whole(rhs, dims.rhs_spec[first:], mesh))
        return _whole(result, dims.out_spec[first:], mesh)

    return convolve_rightly


def scatter_rightly(mesh: DeviceMesh, layouts_of: LayoutsOf) -> Callable[..., jax.Array]:
    """`lax.select_and_scatter_add_p.bind`, the gradient of max pooling, with dims whole in which windows overlap.

    Measured with jax 0.10 and 0.12: gradients are wrong at the borders of the parts, whatever the mesh, with windows of
    3 by strides of 1 and of 4 by 2; values, and sums and their gradients, are right.
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

        def are_whole(axes: Sequence[Axis]) -> bool:
            dims = overlapping if len(axes) == operand.ndim else range(1, len(axes))  # else of what is reshaped
            return all(mesh.axis_size(axes[dim]) == 1 for dim in dims)

        if not overlapping or all(map(are_whole, layouts_of(operand.shape))):
            return bound(source, operand)
        return _whole(bound(*(_whole(array, overlapping, mesh) for array in (source, operand))), overlapping, mesh)

    return scatter


def add_rightly(mesh: DeviceMesh) -> Callable[..., jax.Array]:
    """`lax.scatter_add_p.bind`, the gradient of a lookup, with dims of indices whole that an axis does not divide.

    Measured with jax 0.10 and 0.12: where indices are split unevenly, and repeated along another axis of the mesh,
    XLA's partitioner adds up its padding, too.
    """
    sizes = [size for size in mesh.shape if size > 1]

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


def _whole(array: jax.Array, dims: Sequence[int], mesh: DeviceMesh) -> jax.Array:
    """`array` with these dims on every device; XLA chooses for the others (traced)."""
    free = jax.sharding.PartitionSpec.UNCONSTRAINED
    spec = jax.sharding.PartitionSpec(*(None if dim in dims else free for dim in range(array.ndim)))
    return lax.with_sharding_constraint(array, jax.sharding.NamedSharding(mesh.backend_mesh, spec))


def _from_to(given: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """The permutation that brings each dim from where it is given to where it is wanted."""
    return tuple(dim for _, dim in sorted(zip(wanted, given, strict=True)))
