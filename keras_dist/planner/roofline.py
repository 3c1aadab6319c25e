"""Least time of a step on a machine, from its FLOPs, memory traffic and collectives, each at peak rate.

Latency is not modelled: times of small collectives are too small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_dist._support.arguments import argument_error, check_axis_sizes, check_number, check_option
from keras_dist.errors import MeshError
from keras_dist.planner.backends import Kind
from keras_dist.planner.propagated import Collective
from keras_dist.planner.targets import Target, TargetDevice, as_target, places_in_mesh

Axes = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Least times of the parts of a step [s].

    Attributes:
        compute_seconds: matrix multiplications and convolutions.
        memory_seconds: reads and writes of memory.
        communication_seconds: collectives, one after the other, by axes of the mesh.
        host_seconds: transfer from the memory of the host, and back at the same time.
    """

    compute_seconds: float
    memory_seconds: float
    communication_seconds: Mapping[Axes, float]
    host_seconds: float = 0.0

    @property
    def seconds_by_resource(self) -> dict[str, float]:
        """Seconds of `compute`, `memory`, `communication over data` for each axis, and `transfer from the host`."""
        over = {f"communication over {', '.join(axes)}": time for axes, time in self.communication_seconds.items()}
        host = {"transfer from the host": self.host_seconds} if self.host_seconds else {}
        return {"compute": self.compute_seconds, "memory": self.memory_seconds, **over, **host}

    @property
    def bottleneck(self) -> str:
        """The key of the largest value of `seconds_by_resource`."""
        times = self.seconds_by_resource
        return max(times, key=lambda name: times[name])

    @property
    def step_seconds(self) -> float:
        """`max(compute, memory, host, sum of communication)`: a lower bound, with full overlap."""
        return max(self._seconds_inside, sum(self.communication_seconds.values()))

    @property
    def serial_step_seconds(self) -> float:
        """`max(compute, memory, host) + sum of communication`: the time of a step that waits for each collective."""
        return self._seconds_inside + sum(self.communication_seconds.values())

    @property
    def _seconds_inside(self) -> float:
        return max(self.compute_seconds, self.memory_seconds, self.host_seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return the times as plain values for JSON."""
        names = ("step_seconds", "serial_step_seconds", "bottleneck")
        return {**{name: getattr(self, name) for name in names}, "seconds": self.seconds_by_resource}


def roofline(
    target: str | Target,
    mesh: Mapping[str, int],
    *,
    flops: float,
    accessed_nbytes: float,
    collectives: Iterable[Collective],
    dtype: str = "bfloat16",
    devices: Sequence[str] | None = None,
    host_nbytes: float = 0,
) -> Roofline:
    """Return the least time of a step on a target.

    `F` FLOPs and `B` bytes of a device take `F / peak` and `B / bandwidth` of its chip, which all devices of the chip
    share. A collective takes `collective_seconds` in each turn.

    Args:
        target: a machine, or its name.
        mesh: sizes of the axes of the mesh, in order.
        flops: FLOPs of one device in a step.
        accessed_nbytes: bytes that one device reads and writes in a step.
        collectives: the collectives of a step.
        dtype: element type of the products: `bfloat16`, `float32` or `int8`.
        devices: names of the devices, in the order of the mesh. By default, and for devices of another machine, the
            default order of the target for a mesh of this shape.
        host_nbytes: bytes that one device reads from the memory of its host in a step, and writes back.

    Raises:
        UnknownNameError, ConfigError: `target` is not the name of a machine.
        MeshError: the mesh and the target have different numbers of devices.
        ModelError: the chip has no figure for the element type.

    Example:
        >>> from keras_dist.planner import Collective, roofline
        >>> reduced = Collective("all_reduce", ("model",), 2**30, 1, "", "dot_general")
        >>> mesh = {"data": 16, "model": 4}
        >>> line = roofline("v5p:4x4x4", mesh, flops=1e12, accessed_nbytes=1e9, collectives=[reduced])
        >>> line.bottleneck, round(1e3 * line.step_seconds, 1)
        ('communication over model', 8.1)

    Source: How To Scale Your Model, https://jax-ml.github.io/scaling-book/
    """
    machine = as_target(target)
    chip = machine.chip
    mesh = check_axis_sizes("mesh", mesh, MeshError)
    for name, value in (("flops", flops), ("accessed_nbytes", accessed_nbytes), ("host_nbytes", host_nbytes)):
        check_number(name, value, 0, example=1e12)
    collectives = list(collectives) if isinstance(collectives, Iterable) else [collectives]
    if not all(isinstance(each, Collective) for each in collectives):
        raise argument_error("collectives", collectives, "a list of Collectives, as propagate(...).collectives")
    dtype = check_option("dtype", dtype, [*chip.flops_per_second])
    places = places_in_mesh(machine, tuple(mesh.values()), devices)
    seconds: dict[Axes, float] = {}
    for each in collectives:
        group = [places.flat[place] for place in each.places] or group_of(places, tuple(mesh), each.axes)
        once = collective_seconds(machine, each.kind, each.nbytes, group)
        seconds[each.axes] = seconds.get(each.axes, 0.0) + once * max(each.turns, 1)
    return Roofline(
        compute_seconds=flops * chip.devices / chip.flops_per_second[dtype],
        memory_seconds=accessed_nbytes * chip.devices / chip.hbm_bytes_per_second,
        communication_seconds=seconds,
        host_seconds=host_nbytes * chip.devices / chip.host_bytes_per_second,
    )


def group_of(places: np.ndarray, names: Sequence[str], axes: Axes) -> list[TargetDevice]:
    """Return the first group of devices that exchange along axes of a mesh."""
    return list(places[tuple(slice(None) if name in axes else 0 for name in names)].flat) if axes else [places.flat[0]]


def collective_seconds(target: Target, kind: Kind, nbytes: float, group: Sequence[TargetDevice]) -> float:
    """Return the time of one collective of a group of devices [s].

    A group of `n` devices in `s` slices (TPUs) or hosts (GPUs), `m = n / s` in each, exchanges in two steps, as
    hierarchical collectives do. `V` is the size of the larger of operand and result of a device. A device sends `W`
    bytes per second inside a slice or host, and `N` over the network::

        all_gather, reduce_scatter   (m - 1) / m * V / W + (s - 1) / s * (V / m) / N
        all_reduce                   twice that: a reduce_scatter, then an all_gather
        all_to_all                   max over dims of a * V / (4 * W_dim), at least (m - 1) / m * V / W;
                                     and (s - 1) / s * V / N
        collective_permute           V / link, or V / N for a group in more than one slice or host

    On GPUs `W` is the bandwidth of NVLink. TPUs send along all dims of their torus in which the group extends: `W` is
    the sum of `W_dim`, which is two links for a ring of `a` chips and one for a line. A group is a ring if it extends
    along a whole dim whose size is a multiple of `wraps_at`. Devices of one chip share its links, and exchange with
    each other through its memory.
    """
    count = len(group)
    if count == 1:
        return 0.0
    chip = target.chip
    islands = len({place.host if target.platform == "cuda" else place.slice_index for place in group})
    inside = count // islands
    network = chip.network_bytes_per_second / chip.devices
    dims = _dims(target, group)
    bandwidth = sum(each for _, each in dims)
    if kind == "collective_permute":
        return nbytes / (network if islands > 1 else chip.link_bytes_per_second / chip.devices)
    if kind == "all_to_all":
        local = (inside - 1) / inside * nbytes / bandwidth if inside > 1 else 0.0
        if target.platform == "tpu" and inside > 1:
            local = max(local, *(size * nbytes / (4 * each) for size, each in dims))
        return local + (islands - 1) / islands * nbytes / network
    once = (inside - 1) / inside * nbytes / bandwidth if inside > 1 else 0.0
    once += (islands - 1) / islands * nbytes / inside / network
    return 2 * once if kind == "all_reduce" else once


def _dims(target: Target, group: Sequence[TargetDevice]) -> list[tuple[int, float]]:
    """Return, for each dim of the torus in which a group extends, its extent and the bandwidth of a device [B/s]."""
    chip = target.chip
    if target.platform != "tpu":
        return [(len(group), chip.link_bytes_per_second)]
    found: list[tuple[int, float]] = []
    for dim, size in enumerate(target.shape):
        extent = len({place.coords[dim] for place in group})
        if extent > 1:
            is_ring = extent == size and size % chip.wraps_at == 0 and _is_whole(target)
            found.append((extent, (2 if is_ring else 1) * chip.link_bytes_per_second / chip.devices))
    return found or [(len(group), chip.hbm_bytes_per_second / chip.devices)]


def _is_whole(target: Target) -> bool:
    """Whether a slice consists of whole cubes; otherwise a torus of three dims has no rings."""
    chip = target.chip
    return chip.torus_dims < 3 or (len(target.shape) == 3 and all(not size % chip.wraps_at for size in target.shape))
