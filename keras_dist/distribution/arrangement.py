"""Arrangement of the devices of several processes in a mesh: inner axes stay inside one process, where they fit."""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Sequence

import numpy as np
from jax.experimental import mesh_utils

from keras_dist._support.located_warnings import warn
from keras_dist._support.types import Device
from keras_dist.errors import LayoutWarning
from keras_dist.jobs import job


def group_of(device: Device) -> int:
    """Return the slice of a TPU or GPU, within which devices are connected directly; the process of a CPU device."""
    return job.process_of(device) if _kind_of_group(device) == "process" else device.slice_index


def _kind_of_group(device: Device) -> str:
    # JAX also numbers slices of CPUs, by machine, but not in a program of one process
    return "process" if device.platform == "cpu" or getattr(device, "slice_index", None) is None else "slice"


def groups_of(devices: Sequence[Device]) -> list[list[Device]]:
    """Group devices by slice or process, within which the network is fast; groups are sorted by their numbers."""
    groups: dict[int, list[Device]] = collections.defaultdict(list)
    for device in devices:
        groups[group_of(device)].append(device)
    return [groups[number] for number in sorted(groups)]


def arranged(groups: Sequence[Sequence[Device]], shape: Sequence[int], dcn_shape: Sequence[int]) -> np.ndarray:
    """Arrange equal groups of devices: a mesh of `shape` in each group, and a mesh of `dcn_shape` of the groups.

    Source: `jax.experimental.mesh_utils.create_hybrid_device_mesh`.
    """
    inner = [_placed(group, shape) for group in groups]
    rank = len(shape)
    order = [dim for pair in zip(range(rank), range(rank, 2 * rank), strict=True) for dim in pair]
    sizes = [size * span for size, span in zip(shape, dcn_shape, strict=True)]
    return np.stack(inner).reshape(*dcn_shape, *shape).transpose(order).reshape(sizes)


def by_default(devices: Sequence[Device], shape: Sequence[int]) -> np.ndarray:
    """Arrange devices in this shape: outer dims across groups, inner dims within a group."""
    groups = groups_of(devices)
    if len({len(group) for group in groups}) > 1:
        return _in_order([device for group in groups for device in group], shape)
    dcn_shape = _outermost(shape, len(groups))
    return arranged(groups, [size // outer for size, outer in zip(shape, dcn_shape, strict=True)], dcn_shape)


def _placed(group: Sequence[Device], shape: Sequence[int]) -> np.ndarray:
    try:
        return mesh_utils.create_device_mesh(shape, group, allow_split_physical_axes=True)
    except (NotImplementedError, AssertionError):  # no arrangement along the connections of TPUs has this shape
        return _in_order(group, shape)


def _in_order(devices: Sequence[Device], shape: Sequence[int]) -> np.ndarray:
    flat = np.empty(len(devices), dtype=object)
    flat[:] = devices
    return flat.reshape(shape)


def _outermost(shape: Sequence[int], count: int) -> list[int]:
    """Divide `count` groups among the dims of a mesh, first dims first."""
    parts: list[int] = []
    for size in shape:
        parts.append(math.gcd(size, count))
        count //= parts[-1]
    return parts


def warn_of_crossing(devices: np.ndarray, axis_names: Sequence[str]) -> None:
    """Warn, once in a process, if an inner axis crosses groups although another mesh would keep it inside one."""
    groups = np.vectorize(group_of, otypes=[int])(devices)
    each, *others = np.unique(groups, return_counts=True)[1].tolist()
    sizes = dict(zip(axis_names, devices.shape, strict=True))
    inner = [name for name, size in sizes.items() if size > 1][1:]
    if each == 1 or any(other != each for other in others):  # without a choice
        return
    for dim, name in reversed([*enumerate(sizes)]):
        fits = not each % math.prod(devices.shape[dim:])
        if name in inner and (fits or name == inner[-1]) and np.ptp(groups, axis=dim).any():
            kind = _kind_of_group(devices.flat[0])
            order = f"To keep it inside one {kind}, leave out `devices`, or list them {kind} by {kind}."
            remedies = order if fits else _shapes(sizes, name, each, kind)
            _warn_once(
                f"axis {name!r} of {_mesh(sizes)} crosses from {kind} to {kind}, each of {each} devices: what it moves "
                f"goes over the slow network between them. {remedies}"
            )
            return


def _shapes(sizes: dict[str, int], axis: str, each: int, kind: str) -> str:
    total = math.prod(sizes.values())
    outermost = next(name for name, size in sizes.items() if size > 1)
    smaller = {**sizes, outermost: total // each, axis: each}
    fits = math.prod(smaller.values()) == total
    way = f": {_mesh(smaller)}" if fits else f", give it a size that divides {each}"
    spans = dict(zip(sizes, _outermost(list(sizes.values()), total // each), strict=True))
    within = {name: size // spans[name] for name, size in sizes.items()}
    meant = f'If it is meant: {_mesh(within)[:-1]}, dcn_shape="{_sizes(spans)}").'
    return f"To keep it inside one {kind}{way}. {meant}"


def _mesh(sizes: dict[str, int]) -> str:
    return f'DeviceMesh("{_sizes(sizes)}")'


def _sizes(sizes: dict[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in sizes.items())


@functools.cache
def _warn_once(text: str) -> None:
    warn(text, LayoutWarning)  # where the mesh is made
