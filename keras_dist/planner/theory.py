"""Bytes that a train step moves because of the layouts of its weights, by textbook formulas."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Mapping

from keras_dist.distribution.layout import Axis
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.strategy import Distribution
from keras_dist.planner.propagation import Kind


def theory_of(state: LayoutPlan, distribution: Distribution) -> dict[tuple[Kind, tuple[str, ...]], int]:
    """Return the bytes that a train step moves for its parameters, by kind and axes of the mesh.

    For each parameter, with `B` bytes per device in computations::

        all_reduce of the gradient over the axes of the batch                         B
        all_gather of a fully sharded weight, in the forward and the backward pass    2 B
        all_gather of the update where slots alone are sharded (ZeRO-1)               B

    Activations, which tensor parallelism moves, are not included.

    Source: Rajbhandari et al. 2020, arXiv:1910.02054; Shoeybi et al. 2019, arXiv:1909.08053.
    """
    sizes = state.mesh.axis_sizes
    batch = axis_tuple(distribution.get_data_layout((1,)).axes[0])
    found: collections.Counter[tuple[Kind, tuple[str, ...]]] = collections.Counter()
    for row in state.rows:
        if row.role != "parameter":
            continue
        used, stored, of_slots = (_names(axes) for axes in (row.compute_axes, row.axes, row.slot_axes))
        nbytes = row.nbytes // math.prod(sizes[name] for name in used)
        found["all_reduce", _over(batch, used, sizes)] += nbytes
        found["all_gather", _over(stored, used, sizes)] += 2 * nbytes
        found["all_gather", _over(of_slots, stored, sizes)] += row.nbytes // math.prod(sizes[name] for name in stored)
    return {key: nbytes for key, nbytes in found.items() if key[1]}


def _names(axes: Iterable[Axis]) -> list[str]:
    return [name for axis in axes for name in axis_tuple(axis)]


def _over(names: Iterable[str], but: Iterable[str], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return `names` without `but`, in the order of the mesh, for axes of several devices."""
    wanted = set(names) - set(but)
    return tuple(name for name, size in sizes.items() if name in wanted and size > 1)
