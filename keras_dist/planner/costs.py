"""What a candidate layout costs: seconds of a step, and bytes of a device."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from keras_dist.distribution.layout import Axis
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.distribution.plan import Row
from keras_dist.planner.propagation import Collective, Propagated
from keras_dist.planner.roofline import roofline
from keras_dist.planner.targets import Target

_FLOPS_PER_SECOND, _MEMORY_BYTES_PER_SECOND, _WIRE_BYTES_PER_SECOND = 2e14, 1e12, 5e10
"""Of a device of no machine in particular, with the proportions of those that are used."""


def step_seconds(sizes: Mapping[str, int], step: Propagated, target: Target | None) -> float:
    """The least time of a step that waits for each exchange, on a target; see `Roofline.serial_step_seconds`.

    Without a target exchanges go along rings of `n` devices at the bandwidth of one wire: `(n - 1) / n` of the bytes,
    twice that for an all-reduce.

    Args:
        sizes: the axes of the mesh.
        step: what one device does and exchanges.
        target: the machine.
    """
    accessed = step.accessed_nbytes
    if target is not None:
        dtype = step.dtype if step.dtype in target.chip.flops_per_second else "float32"
        found = step.collectives
        line = roofline(target, sizes, flops=step.flops, accessed_nbytes=accessed, collectives=found, dtype=dtype)
        return line.serial_step_seconds
    wires = sum(_wire_nbytes(each, math.prod(sizes[axis] for axis in each.axes)) for each in step.collectives)
    computed = max(step.flops / _FLOPS_PER_SECOND, accessed / _MEMORY_BYTES_PER_SECOND)
    return computed + wires / _WIRE_BYTES_PER_SECOND


def _wire_nbytes(each: Collective, devices: int) -> float:
    if each.is_joined:  # with another one
        return 0.0
    return (2 if each.kind == "all_reduce" else 1) * (devices - 1) / devices * each.nbytes_per_step


def fully_sharded(
    rows: Iterable[Row], layouts: Mapping[str, Sequence[Axis]], axes: tuple[str, ...], sizes: Mapping[str, int]
) -> dict[str, tuple[Axis, ...]]:
    """The layouts of `FullySharded`: each array also over `axes`, along its largest dim that divides."""
    shards = math.prod(sizes[axis] for axis in axes)
    found = {path: tuple(entries) for path, entries in layouts.items()}
    for row in rows:
        if row.role not in ("parameter", "statistic", "state", "slot"):
            continue
        entries = list(layouts.get(row.path) or (None,) * len(row.shape))
        dims = [dim for dim, size in enumerate(row.shape) if size and entries[dim] is None and size % shards == 0]
        if dims:
            entries[max(dims, key=lambda dim: (row.shape[dim], -dim))] = axes[0] if len(axes) == 1 else axes
            found[row.path] = tuple(entries)
    return found


def with_gathers(step: Propagated, gathered: int, axes: tuple[str, ...]) -> Propagated:
    """What a step exchanges whose weights are fully sharded: as without, with gathers and scattered gradients.

    Args:
        step: the same step with weights that are whole along `axes`.
        gathered: bytes of the weights that a device gathers.
        axes: over which they are sharded.
    """
    left, exchanged = gathered, list[Collective]()
    for each in step.collectives:
        if each.kind == "all_reduce" and each.axes == axes and 0 < each.nbytes_per_step <= left:
            left -= each.nbytes_per_step
            each = dataclasses.replace(each, kind="reduce_scatter")
        exchanged.append(each)
    exchanged += [Collective("all_gather", axes, gathered, 1, "", name) for name in ("forward", "backward")]
    return dataclasses.replace(step, collectives=tuple(exchanged))


def with_state(step: Propagated, more_nbytes: int) -> Propagated:
    """The same step with so many bytes more of state on a device, which are read and written."""
    return dataclasses.replace(step, accessed_nbytes=step.accessed_nbytes + 2 * more_nbytes)


def with_gathered_updates(step: Propagated, gathered: int, axes: tuple[str, ...]) -> Propagated:
    """What a step exchanges in which each device updates a part of the weights, and gathers the others."""
    return dataclasses.replace(
        step, collectives=(*step.collectives, Collective("all_gather", axes, gathered, 1, "", "update"))
    )


def nbytes_of(rows: Iterable[Row], layouts: Mapping[str, Sequence[Axis]], sizes: Mapping[str, int]) -> int:
    """Bytes of one device's shards."""
    total = 0
    for row in rows:
        entries = layouts.get(row.path, ())
        total += row.nbytes // math.prod(sizes[axis] for entry in entries for axis in axis_tuple(entry))
    return total
