"""Machines to plan for, whose devices need not exist, `target("v5e:4x4")`, with the published figures of their chips.

All bandwidths are of one chip, in one direction: half of a published sum of both directions. To the host, TPUs have 16
GB/s, v6e 32 (How To Scale Your Model; tpu7x is taken as v6e), and GPUs 32 or 64 (PCIe 4 and 5, data sheets).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from keras_dist._support.arguments import argument_error, is_int
from keras_dist.distribution import arrangement
from keras_dist.distribution.mesh import fitting_sizes
from keras_dist.errors import ConfigError, KerasDistError, MeshError, shorten, unknown_name_error

Platform = Literal["cpu", "tpu", "cuda"]

_MIB, _GIB = 2**20, 2**30
_SCALING = "How To Scale Your Model, https://jax-ml.github.io/scaling-book/"
_SUPERCOMPUTER = "Jouppi et al., A Domain-Specific Supercomputer for Training Deep Neural Networks, CACM 63(7), 2020"
_CLOUD = "https://docs.cloud.google.com/tpu/docs/"


@dataclasses.dataclass(frozen=True)
class Chip:
    """Figures of a kind of chip.

    Attributes:
        name: name in targets, such as `v5e`.
        platform: platform that JAX lowers for.
        hbm_nbytes: bytes of memory, on GPUs without the driver's; 0 for memory of the host.
        flops_per_second: peak of matrix multiplication by element type. float32 has JAX's default precision: bfloat16
            on TPUs, TF32 on GPUs.
        hbm_bytes_per_second: bandwidth of memory.
        link_bytes_per_second: bandwidth of one link to a neighbour (ICI), or of all lanes to the switch between the
            GPUs of a host (NVLink).
        network_bytes_per_second: its share of the network cards of its host, between slices (TPUs) and hosts (GPUs).
        torus_dims: number of dims of the torus of its links; 0 for a switch.
        wraps_at: a dim of a slice is a ring if its size is a multiple of this number, else a line; 0 for no rings.
        devices: number of JAX devices per chip.
        source: sources of the figures.
        kind: `device_kind` of its devices in JAX; empty for CPUs.
        vector_nbytes: bytes of the vector memory (VMEM) of a TPU's core, in which XLA keeps arrays between operations;
            as `get_tpu_info` of `jax.experimental.pallas.tpu` has them.
        host_bytes_per_second: bandwidth to the memory of the host (PCIe).
    """

    name: str
    platform: Platform
    hbm_nbytes: int
    flops_per_second: Mapping[str, float]
    hbm_bytes_per_second: float
    link_bytes_per_second: float
    network_bytes_per_second: float
    torus_dims: int = 0
    wraps_at: int = 0
    devices: int = 1
    source: str = ""
    kind: str = ""
    vector_nbytes: int = 0
    host_bytes_per_second: float = 16e9


def _flops(bfloat16: float, int8: float | None = None, float32: float | None = None) -> dict[str, float]:
    return {"bfloat16": bfloat16, "float32": float32 or bfloat16, "int8": int8 or bfloat16}


_ALL = (
    Chip(
        "cpu", "cpu", 0, _flops(5e10, float32=5e10), 1e10, 1e10, 1e9,
        source="assumed: one core of a server, 16 float32 operations a turn at 3 GHz. Fake devices share their cores",
    ),
    Chip(
        "v2", "tpu", 16 * _GIB, _flops(46e12), 700e9, 62e9, 6.25e9, 2, 16, 2, kind="TPU v2",
        vector_nbytes=16 * _MIB,
        source=f"{_SUPERCOMPUTER}: 46 TFLOP/s, 700 GB/s, links of 496 Gbit/s; network as v3",
    ),
    Chip(
        "v3", "tpu", 32 * _GIB, _flops(123e12), 900e9, 82e9, 6.25e9, 2, 32, 2, kind="TPU v3",
        vector_nbytes=16 * _MIB,
        source=f"{_CLOUD}v3: 123 TFLOP/s, 32 GiB, 900 GB/s; {_SUPERCOMPUTER}: links of 656 Gbit/s; {_SCALING}tpus: "
        "25 GB/s of network a host",
    ),
    Chip(
        "v4", "tpu", 32 * _GIB, _flops(275e12, 275e12), 1200e9, 45e9, 6.25e9, 3, 4, 1, kind="TPU v4",
        vector_nbytes=16 * _MIB,
        source=f"{_CLOUD}v4: 275 TFLOP/s, 32 GiB, 1200 GB/s; {_SCALING}tpus: 45 GB/s a link, 25 GB/s of network a host",
    ),
    Chip(
        "v5e", "tpu", 16 * _GIB, _flops(197e12, 393e12), 819e9, 50e9, 3.125e9, 2, 16, 1, kind="TPU v5 lite",
        vector_nbytes=128 * _MIB,
        source=f"{_CLOUD}v5e: 197 TFLOP/s, 393 TOP/s, 16 GB, 819 GB/s, 400 GB/s over 4 links in both directions, "
        "6.4 Tbit/s of network for 256 chips",
    ),
    Chip(
        "v5p", "tpu", 95 * _GIB, _flops(459e12, 918e12), 2765e9, 100e9, 6.25e9, 3, 4, 1, kind="TPU v5",
        vector_nbytes=64 * _MIB,
        source=f"{_CLOUD}v5p-training: 459 TFLOP/s, 95 GiB, 2765 GB/s, 1200 GB/s over 6 links in both directions, "
        f"50 Gbit/s of network; {_SCALING}tpus: 918 TOP/s",
    ),
    Chip(
        "v6e", "tpu", 32 * _GIB, _flops(918e12, 1836e12), 1638e9, 100e9, 12.5e9, 2, 16, 1, kind="TPU v6 lite",
        vector_nbytes=128 * _MIB, host_bytes_per_second=32e9,
        source=f"{_CLOUD}v6e and {_CLOUD}tpu7x: 918 TFLOP/s, 1836 TOP/s, 32 GB, 1638 GB/s, 800 GB/s over 4 links in "
        "both directions, 100 Gbit/s of network",
    ),
    Chip(
        "tpu7x", "tpu", 192 * _GIB, _flops(2307e12), 7380e9, 100e9, 12.5e9, 3, 4, 2, kind="TPU7x",
        vector_nbytes=64 * _MIB, host_bytes_per_second=32e9,
        source=f"{_CLOUD}tpu7x: 2307 TFLOP/s (4614 of 8-bit floats), 192 GiB, 7380 GB/s, 1200 GB/s over 6 links in "
        "both directions, 100 Gbit/s of network",
    ),
    Chip(
        "a100", "cuda", 79 * _GIB, _flops(312e12, 624e12, 156e12), 2039e9, 300e9, 25e9, kind="NVIDIA A100-SXM4-80GB",
        host_bytes_per_second=32e9,
        source="NVIDIA A100 Tensor Core GPU data sheet (SXM, 80 GB): 312 TFLOP/s, TF32 156, 624 TOP/s, 2039 GB/s, "
        "NVLink 600 GB/s in both directions; DGX A100 data sheet: 8 cards of 200 Gbit/s",
    ),
    Chip(
        "h100", "cuda", 79 * _GIB, _flops(989e12, 1979e12, 494e12), 3350e9, 450e9, 50e9, kind="NVIDIA H100 80GB HBM3",
        host_bytes_per_second=64e9,
        source="NVIDIA H100 Tensor Core GPU data sheet (SXM): 989 TFLOP/s, TF32 494, 1979 TOP/s (half of what it says "
        f"for sparse ones), 3.35 TB/s, NVLink 900 GB/s in both directions; {_SCALING}gpus: 8 cards of 400 Gbit/s",
    ),
    Chip(
        "h200", "cuda", 141 * _GIB, _flops(989e12, 1979e12, 494e12), 4800e9, 450e9, 50e9, kind="NVIDIA H200",
        host_bytes_per_second=64e9,
        source="NVIDIA H200 Tensor Core GPU data sheet (SXM): as H100, 141 GB, 4.8 TB/s",
    ),
    Chip(
        "b200", "cuda", 178 * _GIB, _flops(2250e12, 4500e12, 1125e12), 8000e9, 900e9, 50e9, kind="NVIDIA B200",
        host_bytes_per_second=64e9,
        source="NVIDIA DGX B200 data sheet: 1440 GB and 64 TB/s for 8 GPUs, NVLink 1.8 TB/s in both directions; "
        f"{_SCALING}gpus: 2.25 PFLOP/s, 4.5 POP/s, 400 GB/s of network a host",
    ),
)  # fmt: skip  # a chip's figures in one line

CHIPS: Mapping[str, Chip] = {chip.name: chip for chip in _ALL}
"""All chips by name."""


_FORM = re.compile(r"(?P<chip>\w+):(?P<shape>\d{1,18}(?:x\d{1,18})*)(?:\*(?P<slices>\d{1,18}))?", re.ASCII)
_EXAMPLES = "'cpu:8', 'v5e:4x4', 'v5p:8x8x8', 'v5e:4x4*2' (two slices), 'h100:1x16x8' (slices x hosts x GPUs)"
_MOST_DEVICES = 2**17
_SLICE_IDS = 100_000


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
        taken_nbytes: bytes of memory that JAX takes of a device that is here; None for all of it.
    """

    name: str
    chip: Chip
    shape: tuple[int, ...]
    slices: int
    taken_nbytes: int | None = None

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
        """Bytes of memory of one device, as published or as JAX takes them; 0 for memory of the host."""
        return self.taken_nbytes or self.chip.hbm_nbytes // self.chip.devices

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

    GPUs of one process count as one host. The memory of GPUs of this process is what JAX takes of it: 75 %, or
    `XLA_CLIENT_MEM_FRACTION`.

    Args:
        devices: devices of JAX.
    """
    found = list(devices)
    kinds, chips = {device.device_kind for device in found}, {chip.kind: chip for chip in CHIPS.values() if chip.kind}
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
    if machine.device_count != len(found):
        return None
    limits = _limits_of(found) if chip.platform == "cuda" else []
    return dataclasses.replace(machine, taken_nbytes=min(limits)) if limits else machine


def _limits_of(devices: Iterable[Any]) -> list[int]:
    """Return the bytes of memory that JAX takes of the devices of this process, where it says so."""
    live = [device for device in devices if hasattr(device, "memory_stats")]  # a `Target` has no memory
    here = [device for device in live if device.process_index == jax.process_index()]
    return [stats["bytes_limit"] for device in here if "bytes_limit" in (stats := device.memory_stats() or {})]


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
    kind, shape = chip.kind or chip.name, target.shape
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
        TargetDevice(index, number, number * hosts + host, (gpu,), 0, "gpu", target.chip.kind)
        for index, (number, host, gpu) in enumerate(itertools.product(*map(range, sizes)))
    ]


def _no_target(name: Any, expected: str) -> KerasDistError:
    return argument_error("target", name, expected, fix=f"for example {_EXAMPLES}", error=ConfigError)
