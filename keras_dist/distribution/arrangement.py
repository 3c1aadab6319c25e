"""Where the devices of several processes stand in a mesh: inner axes inside one process, where they fit."""

from __future__ import annotations

import collections
import functools
import math
import warnings
from collections.abc import Sequence

import numpy as np
from jax.experimental import mesh_utils

from keras_dist._support.types import Device
from keras_dist.distribution.jobs import job
from keras_dist.errors import LayoutWarning

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# JAX's own types are unknown in part


def group_of(device: Device) -> int:
    """Return the number of the slice of a device, within which TPUs and GPUs are connected; for CPUs of its process."""
    return job.process_of(device) if _kind_of_group(device) == "process" else device.slice_index


def _kind_of_group(device: Device) -> str:
    # JAX numbers slices of CPUs, too: by machine, and not at all in a program of one process
    return "process" if device.platform == "cpu" or getattr(device, "slice_index", None) is None else "slice"


def groups_of(devices: Sequence[Device]) -> list[list[Device]]:
    """Return the devices in groups within which the network is fast, in the order of the groups' numbers."""
    groups: dict[int, list[Device]] = collections.defaultdict(list)
    for device in devices:
        groups[group_of(device)].append(device)
    return [groups[number] for number in sorted(groups)]


def arranged(groups: Sequence[Sequence[Device]], shape: Sequence[int], dcn_shape: Sequence[int]) -> np.ndarray:
    """Return the devices as an array whose dims are the products of those of `shape` and `dcn_shape`.

    Args:
        groups: equally large ones, as many as `dcn_shape` has places.
        shape: of the mesh within each group.
        dcn_shape: of the mesh of groups.

    Source: `jax.experimental.mesh_utils.create_hybrid_device_mesh`.
    """
    inner = [_placed(group, shape) for group in groups]
    rank = len(shape)
    order = [dim for pair in zip(range(rank), range(rank, 2 * rank), strict=True) for dim in pair]
    sizes = [size * span for size, span in zip(shape, dcn_shape, strict=True)]
    return np.stack(inner).reshape(*dcn_shape, *shape).transpose(order).reshape(sizes)


def by_default(devices: Sequence[Device], shape: Sequence[int]) -> np.ndarray:
    """Return the devices as an array of this shape, whose first dims go over the groups and last ones inside them."""
    groups = groups_of(devices)
    if len({len(group) for group in groups}) > 1:
        return _in_order([device for group in groups for device in group], shape)
    dcn_shape = _outermost(shape, len(groups))
    return arranged(groups, [size // outer for size, outer in zip(shape, dcn_shape, strict=True)], dcn_shape)


def _placed(group: Sequence[Device], shape: Sequence[int]) -> np.ndarray:
    """Return the devices of a group as an array whose dims follow their wires."""
    try:
        return mesh_utils.create_device_mesh(shape, group, allow_split_physical_axes=True)
    except (NotImplementedError, AssertionError):  # such sizes, or these of the TPUs, have no place along the wires
        return _in_order(group, shape)


def _in_order(devices: Sequence[Device], shape: Sequence[int]) -> np.ndarray:
    flat = np.empty(len(devices), dtype=object)
    flat[:] = devices
    return flat.reshape(shape)


def _outermost(shape: Sequence[int], count: int) -> list[int]:
    """Divide `count` groups among the dims of a mesh that they fill, the first dims first."""
    parts: list[int] = []
    for size in shape:
        parts.append(math.gcd(size, count))
        count //= parts[-1]
    return parts


def warn_of_crossing(devices: np.ndarray, axis_names: Sequence[str]) -> None:
    """Warn, once in a process, of an inner axis that crosses groups although another mesh would keep it inside one.

    The outermost axis of more than one device may cross them, and so may an axis for which those inside it leave no
    room. Nor is there a choice where groups have one device each.
    """
    groups = np.vectorize(group_of, otypes=[int])(devices)
    each, *others = np.unique(groups, return_counts=True)[1].tolist()
    sizes = dict(zip(axis_names, devices.shape, strict=True))
    inner = [name for name, size in sizes.items() if size > 1][1:]
    if each == 1 or any(other != each for other in others):
        return
    for dim, name in reversed([*enumerate(sizes)]):
        fits = not each % math.prod(devices.shape[dim:])
        if name in inner and (fits or name == inner[-1]) and np.ptp(groups, axis=dim).any():
            kind = _kind_of_group(devices.flat[0])
            remedies = _order(kind) if fits else _shapes(sizes, name, each, kind)
            _warn_once(
                f"axis {name!r} of {_mesh(sizes)} crosses from {kind} to {kind}, each of {each} devices: what it moves "
                f"goes over the slow network between them. {remedies}"
            )
            return


def _order(kind: str) -> str:
    return f"To keep it inside one {kind}, leave out `devices`, or list them {kind} by {kind}."


def _shapes(sizes: dict[str, int], axis: str, each: int, kind: str) -> str:
    """The ways out for an innermost axis that is too long for a group."""
    total = math.prod(sizes.values())
    outermost = next(name for name, size in sizes.items() if size > 1)
    smaller = {**sizes, outermost: total // each, axis: each}
    if math.prod(smaller.values()) == total:
        remedies = [f"To keep it inside one {kind}: {_mesh(smaller)}."]
    else:
        remedies = [f"To keep it inside one {kind}, give it a size that divides {each}."]
    may_cross = [name for name, size in sizes.items() if not each % (total // size)]  # the others fit inside a group
    remedies += [f"To let {name!r} alone cross: {_mesh({name: sizes[name], **sizes})}." for name in may_cross[:1]]
    spans = dict(zip(sizes, _outermost(list(sizes.values()), total // each), strict=True))
    within = {name: size // spans[name] for name, size in sizes.items()}
    remedies.append(f'If it is meant: {_mesh(within)[:-1]}, dcn_shape="{_sizes(spans)}").')
    return " ".join(remedies)


def _mesh(sizes: dict[str, int]) -> str:
    return f'DeviceMesh("{_sizes(sizes)}")'


def _sizes(sizes: dict[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in sizes.items())


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, LayoutWarning, stacklevel=4)  # where the mesh is made
