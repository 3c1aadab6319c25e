"""Machines to plan for, whose devices need not exist: `target("v5e:4x4")`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_dist._support.arguments import argument_error, is_int
from keras_dist.distribution import arrangement
from keras_dist.distribution.mesh import fitting_sizes
from keras_dist.errors import ConfigError, KerasDistError, MeshError, shorten, unknown_name_error
from keras_dist.planner.hardware import CHIPS, Chip, Platform

_FORM = re.compile(r"(?P<chip>\w+):(?P<shape>\d{1,18}(?:x\d{1,18})*)(?:\*(?P<slices>\d{1,18}))?", re.ASCII)
_EXAMPLES = "'cpu:8', 'v5e:4x4', 'v5p:8x8x8', 'v5e:4x4*2' (two slices), 'h100:1x16x8' (slices x hosts x GPUs)"
_MOST_DEVICES = 2**17
_SLICE_IDS = 100_000
_KINDS = {
    "v2": "TPU v2",
    "v3": "TPU v3",
    "v4": "TPU v4",
    "v5e": "TPU v5 lite",
    "v5p": "TPU v5",
    "v6e": "TPU v6 lite",
    "tpu7x": "TPU7x",
    "a100": "NVIDIA A100-SXM4-80GB",
    "h100": "NVIDIA H100 80GB HBM3",
    "h200": "NVIDIA H200",
    "b200": "NVIDIA B200",
}
"""`device_kind` of the devices of a chip in JAX."""


@dataclasses.dataclass(frozen=True)
class TargetDevice:
    """A device of a target, with the attributes of a `jax.Device` by which JAX arranges TPUs along their links."""

    id: int
    slice_index: int
    host: int
    coords: tuple[int, ...]  # of the chip in its slice; of a GPU, its index in the host
    core_on_chip: int
    platform: str
    device_kind: str

    @property
    def process_index(self) -> int:
        """The host: each runs one process."""
        return self.host

    @property
    def name(self) -> str:
        """Name of the device in a mesh."""
        return f"{self.platform}:{self.id}"


@dataclasses.dataclass(frozen=True)
class Target:
    """A machine to plan for. Created by `target`.

    Attributes:
        name: name of the machine, as `v5e:4x4*2`.
        chip: figures of its chips.
        shape: shape of a slice: sizes of the torus of TPUs, `(hosts, GPUs per host)`, or the number of CPU devices.
        slices: number of slices, which the network of the data center connects.
    """

    name: str
    chip: Chip
    shape: tuple[int, ...]
    slices: int

    @property
    def platform(self) -> Platform:
        """Platform to lower for: `jax.jit(f).trace(x).lower(lowering_platforms=(target.platform,))`."""
        return self.chip.platform

    @property
    def device_count(self) -> int:
        """Number of JAX devices; a chip with two cores counts as two."""
        return self.slices * math.prod(self.shape) * self.chip.devices

    @property
    def hbm_nbytes(self) -> int:
        """Bytes of memory of one device, as published; 0 for memory of the host."""
        return self.chip.hbm_nbytes // self.chip.devices

    @functools.cached_property
    def places(self) -> tuple[TargetDevice, ...]:
        """The devices by number, slice by slice."""
        return tuple(_gpus(self) if self.platform == "cuda" else _torus(self))


def target(name: str) -> Target:
    """Return the machine of this name.

    Args:
        name: a chip and the shape of a slice: `cpu:8` is eight CPU devices, `v5e:4x4` a slice of TPUs, `v5p:8x8x8` a
            slice with a torus of three dims, `v5e:4x4*2` two slices, `h100:1x16x8` slices x hosts x GPUs per host.

    Raises:
        UnknownNameError: the chip is unknown.
        ConfigError: the chip has no slices of this shape.

    Example:
        >>> import keras_dist as kd
        >>> v5e = kd.planner.target("v5e:4x4*2")
        >>> v5e.device_count, v5e.chip.hbm_nbytes // 2**30, v5e.platform
        (32, 16, 'tpu')
    """
    found = _FORM.fullmatch(name) if isinstance(name, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    chip_name = found["chip"] if found else str(name).partition(":")[0]
    if isinstance(name, str) and chip_name not in CHIPS:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise unknown_name_error("`target`: unknown chip", chip_name, CHIPS, given=f"target={shorten(name)}")
    if found is None:
        raise _no_target(name, "a chip and a shape, with ':' between them")
    chip = CHIPS[chip_name]
    shape, slices = tuple(map(int, found["shape"].split("x"))), int(found["slices"] or 1)
    if chip.platform == "cuda":
        if len(shape) != 3 or found["slices"]:
            raise _no_target(name, "slices x hosts x GPUs, three numbers")
        slices, *rest = shape
        shape = tuple(rest)
    elif chip.platform == "cpu" and (len(shape) != 1 or found["slices"]):
        raise _no_target(name, "one number of devices")
    elif chip.platform == "tpu" and (len(shape) not in (2, 3) or len(shape) > chip.torus_dims):
        raise _no_target(name, "two dims" if chip.torus_dims == 2 else "two or three dims")
    count = slices * math.prod(shape) * chip.devices
    if not 1 <= count <= _MOST_DEVICES:
        raise _no_target(name, f"at least one device and at most {_MOST_DEVICES:,}")
    return Target(name, chip, shape, slices)


def target_of(devices: Iterable[Any]) -> Target | None:
    """Return the machine that these devices are all of; None for CPUs and for devices whose figures are not known.

    GPUs of one process count as one host.

    Args:
        devices: devices of JAX.
    """
    found = list(devices)
    kinds, chips = {device.device_kind for device in found}, {kind: CHIPS[name] for name, kind in _KINDS.items()}
    chip = chips.get(*kinds) if len(kinds) == 1 else None
    if chip is None:
        return None
    slices = len({getattr(device, "slice_index", 0) for device in found})
    if chip.platform == "cuda":
        hosts = len({device.process_index for device in found}) // slices
        shape, more = (slices, hosts, len(found) // max(hosts * slices, 1)), ""
    else:
        corners = [device.coords for device in found]
        extents = [max(each) - min(each) + 1 for each in zip(*corners, strict=True)]
        used = max([2, *(dim + 1 for dim, size in enumerate(extents) if size > 1)])
        shape, more = extents[:used], f"*{slices}" if slices > 1 else ""
    try:
        machine = target(f"{chip.name}:{'x'.join(map(str, shape))}{more}")
    except ConfigError:
        return None
    return machine if machine.device_count == len(found) else None


def devices(target: str | Target, mesh_shape: Sequence[int] | None = None) -> list[str]:
    """Return the names of a target's devices, for a mesh of devices that need not exist here.

    Args:
        target: a machine, or its name.
        mesh_shape: sizes of the axes of the mesh. If given, the devices are in the order of a mesh whose inner axes run
            along links, and outer axes over slices or hosts; else by number.

    Raises:
        UnknownNameError, ConfigError: `target` is not the name of a machine.
        MeshError: `mesh_shape` is not a shape, or has another number of devices.

    Example:
        >>> import keras_dist as kd
        >>> kd.DeviceMesh("data=64,model=16", devices=kd.planner.devices("v5p:8x8x16", (64, 16)))
        <DeviceMesh shape=(64, 16), axis_names=['data', 'model']>
    """
    machine = as_target(target)
    if mesh_shape is None:
        return [place.name for place in machine.places]
    is_shape = isinstance(mesh_shape, Sequence) and all(is_int(size, 1) for size in mesh_shape)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_shape:
        expected = "sizes of the axes of a mesh, or None"
        raise argument_error("mesh_shape", mesh_shape, expected, example=(machine.device_count,), error=MeshError)
    return [place.name for place in places_in_mesh(machine, tuple(mesh_shape)).flat]


def as_target(name: str | Target) -> Target:
    """Return a target; convert the name of a target."""
    return name if isinstance(name, Target) else target(name)


def places_in_mesh(target: Target, shape: Sequence[int], names: Sequence[str] | None = None) -> np.ndarray:
    """Return a target's devices in the order of `names`, as an array of shape `shape`.

    For None and for names of other devices, inner axes run along links.
    """
    if math.prod(shape) != target.device_count:
        summary = f"a mesh for {target.name!r} must have all of its {target.device_count:,} devices"
        fitting = fitting_sizes(shape, target.device_count)
        fix = (
            f"a mesh of shape {fitting} with devices=kd.planner.devices({target.name!r}, {fitting}); or another target"
        )
        raise MeshError(summary, given=f"a mesh of shape {tuple(shape)}", fix=fix)
    if names is not None and not (isinstance(names, Sequence) and all(isinstance(name, str) for name in names)):
        raise argument_error("devices", names, "names of devices in a list, or None", error=MeshError)
    known = {place.name: place for place in target.places}
    if names is None or set(names) != known.keys():
        return arrangement.by_default(target.places, shape)  # type: ignore[arg-type]
    found = np.empty(len(known), dtype=object)
    found[:] = [known[name] for name in names]
    return found.reshape(tuple(shape))


def _torus(target: Target) -> list[TargetDevice]:
    """Return TPUs, numbered along the first dim first, with the cores of a chip next to each other; or CPUs."""
    chip, found = target.chip, []
    kind, shape = _KINDS.get(chip.name, chip.name), target.shape
    bounds = [2 if size % 2 == 0 and dim < 2 else 1 for dim, size in enumerate(shape)]
    hosts = math.prod(size // bound for size, bound in zip(shape, bounds, strict=True))
    for number in range(target.slices):
        first = (number + 1) * _SLICE_IDS if target.slices > 1 else 0
        for index, backwards in enumerate(itertools.product(*map(range, reversed(shape)))):
            at = backwards[::-1]
            host = 0
            for place, size, bound in reversed([*zip(at, shape, bounds, strict=True)]):
                host = host * (size // bound) + place // bound
            coords = (*at, *[0] * (3 - len(at)))
            for core in range(chip.devices):
                identity = first + index * chip.devices + core
                host_of_all = number * hosts + host if chip.platform == "tpu" else 0
                found.append(TargetDevice(identity, number, host_of_all, coords, core, chip.platform, kind))
    return found


def _gpus(target: Target) -> list[TargetDevice]:
    hosts, each = target.shape
    sizes = (target.slices, hosts, each)
    return [
        TargetDevice(index, number, number * hosts + host, (gpu,), 0, "gpu", _KINDS[target.chip.name])
        for index, (number, host, gpu) in enumerate(itertools.product(*map(range, sizes)))
    ]


def _no_target(name: Any, expected: str) -> KerasDistError:
    return argument_error("target", name, expected, fix=f"for example {_EXAMPLES}", error=ConfigError)
