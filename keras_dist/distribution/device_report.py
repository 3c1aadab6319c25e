"""`DeviceReport`: the devices of this machine, the meshes they can form, and settings for fake devices."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from keras_dist._support.arguments import check_int
from keras_dist._support.text_tables import Table, render
from keras_dist.distribution.devices import find_device, list_devices
from keras_dist.errors import DeviceError

_VARIABLES = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS", "PJRT_NPROC")
_LISTED = 8

_MORE = (
    ("kd.use_cpu_devices(8)", "in a program; sizes XLA's thread pool, too"),
    ("XLA_FLAGS=--xla_force_host_platform_device_count=8", "in the environment; importing keras_dist sizes the pool"),
    ("JAX_NUM_CPU_DEVICES=8 JAX_PLATFORMS=cpu", "the same"),
)
_POOL = "PJRT_NPROC=16 is the pool: with fewer than two threads for each fake device, XLA may deadlock"


@dataclasses.dataclass(frozen=True)
class DeviceReport:
    """The devices of this machine. Printing it gives text."""

    devices: tuple[str, ...]  # names such as "cpu:0"
    kinds: tuple[str, ...]  # product names
    mesh_shapes: tuple[dict[str, int], ...]  # meshes of all devices with the axes "data" and "model"
    environment: dict[str, str]  # variables that configure devices

    @property
    def fake_devices(self) -> int:
        """Number of fake devices: CPU devices, if there are several."""
        count = sum(name.startswith("cpu:") for name in self.devices)
        return count if count > 1 else 0

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes as plain values."""
        return {**dataclasses.asdict(self), "fake_devices": self.fake_devices}

    def __str__(self) -> str:
        count = len(self.devices)
        shown = ", ".join(self.devices[:_LISTED]) + (f", ... {self.devices[-1]}" if count > _LISTED else "")
        meshes = Table(
            "meshes of all of them, for [mesh] shape, --mesh or kd.DeviceMesh:",
            ("mesh", "meaning"),
            rows=[(_text(shape), _meaning(shape)) for shape in self.mesh_shapes],
        )
        found = [f"{name}={value}" for name, value in self.environment.items()]
        fake = f"{self.fake_devices} of the devices are fake" if self.fake_devices else "none of the devices is fake"
        more = "for more fake CPU devices, one of these before anything is computed:"
        return render(
            f"{count} device{'s' * (count > 1)} ({', '.join(self.kinds)}): {shown}",
            "",
            meshes,
            "",
            f"{fake}; the environment has {' '.join(found) or 'no settings of devices'}",
            Table(more, ("setting", "where"), rows=[*_MORE]),
            _POOL,
        )


def report_devices() -> DeviceReport:
    """Return a report of the devices of this machine. Starts JAX's backend."""
    names = list_devices()
    return DeviceReport(
        tuple(names),
        tuple(sorted({find_device(name).device_kind for name in names})),
        tuple(suggest_mesh_shapes(len(names))),
        {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)},
    )


def suggest_mesh_shapes(count: int) -> list[dict[str, int]]:
    """Return the meshes of `count` devices with the axes `data` and `model`, largest `data` first."""
    count = check_int("count", count, 1, example=8, error=DeviceError)
    return [{"data": count // model, "model": model} for model in range(1, count + 1) if count % model == 0]


def _text(shape: dict[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in shape.items())


def _meaning(shape: dict[str, int]) -> str:
    data, model = shape["data"], shape["model"]
    if model == 1:
        return "every device has the whole model, or with strategy fully_sharded a part of each variable"
    rows = "all rows of a batch" if data == 1 else f"{_part(data)} of the rows of a batch"
    return f"each device has {rows}, and {_part(model)} of what rules shard along model"


def _part(parts: int) -> str:
    return {2: "half", 3: "a third", 4: "a quarter"}.get(parts, f"1/{parts}")
