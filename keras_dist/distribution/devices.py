"""The devices of this job: list them, find one by name, configure fake ones, and report what meshes they can form."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import jax

from keras_dist._support import backend_environment
from keras_dist._support.arguments import check_int
from keras_dist._support.text_tables import Table, render
from keras_dist._support.types import Device
from keras_dist._unstable import jax_runtime
from keras_dist.errors import DeviceError

if TYPE_CHECKING:
    from keras_dist.distribution.mesh import DeviceMesh


def list_devices(device_type: str | None = None) -> list[str]:
    """Return the names of all devices of one type, over all processes.

    Args:
        device_type: `"cpu"`, `"gpu"` or `"tpu"`; by default the type JAX prefers on this machine.

    Returns:
        Names such as `"cpu:0"`, in JAX's order.

    Raises:
        DeviceError: this machine has no such devices.
    """
    return [device_name(device) for device in _devices_of(device_type)]


def get_device_count(device_type: str | None = None) -> int:
    """Return the number of devices of one type, over all processes; types are never mixed.

    Args:
        device_type: `"cpu"`, `"gpu"` or `"tpu"`; by default the type JAX prefers on this machine.

    Raises:
        DeviceError: this machine has no such devices.
    """
    return len(_devices_of(device_type))


def device_name(device: Any) -> str:
    """Return `"cpu:0"` for a `jax.Device`, and the full form of a name (`"CPU"` is `"cpu:0"`)."""
    if isinstance(device, jax.Device):
        return f"{device.platform}:{device.id}"
    name = str(device).lower()
    return name if ":" in name else f"{name}:0"


def find_device(device: Device | str) -> Device:
    """Return the `jax.Device` called `device`."""
    if isinstance(device, jax.Device):
        return device
    name = device_name(device)
    device_type, _, device_id = name.partition(":")
    candidates = _devices_of(device_type)
    for candidate in candidates:
        if str(candidate.id) == device_id:
            return candidate
    given = f"devices {_span([device_name(d) for d in candidates])}"
    fix = "name an existing device; for more fake CPU devices call `kd.use_cpu_devices(n)` before any other JAX call"
    raise DeviceError(f"Device not found: {name!r}", given=given, fix=fix)


def use_cpu_devices(count: int) -> None:
    """Make JAX run on `count` fake CPU devices, with settings under which collectives cannot deadlock.

    Call it before anything uses a device. A second call with the same count does nothing, so a notebook cell can run
    twice. With `XLA_FLAGS=--xla_force_host_platform_device_count=8`, importing `keras_dist` applies the same settings.

    Args:
        count: number of devices.

    Raises:
        DeviceError: `count` is not a positive integer, or JAX has already started with other devices.

    Example:
        >>> import keras_dist as kd
        >>> kd.use_cpu_devices(8)
        >>> kd.distribution.get_device_count("cpu")
        8
    """
    count = check_int("count", count, 1, example=8, error=DeviceError)
    if jax_runtime.backend_started():
        _confirm_cpu_devices(count)
        return
    backend_environment.forget_fake_device_count()
    backend_environment.size_thread_pool(count)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)


def check_memory_kind(kind: str, mesh: DeviceMesh) -> None:
    """Raise if devices of a mesh have no memory of a kind; on an abstract mesh this is not known."""
    for device in () if mesh.is_abstract else mesh.backend_mesh.local_devices:
        kinds = [memory.kind for memory in device.addressable_memories()]
        if kind not in kinds:
            given, fix = f"device {device_name(device)} with memory {', '.join(kinds)}", "leave out slot_memory"
            raise DeviceError(f"slot_memory: the devices have no memory {kind!r}", given=given, fix=fix)


def check_not_forked() -> None:
    """Raise if this is a forked process, in which JAX would hang."""
    if jax_runtime.is_forked():
        given = "os.fork, or multiprocessing with the start method 'fork', after the first JAX computation"
        fix = 'multiprocessing.get_context("spawn"), subprocess, or a fork before anything touches a device'
        raise DeviceError("JAX cannot run in a process that was forked after JAX had started", given=given, fix=fix)


def _confirm_cpu_devices(count: int) -> None:
    existing = [device_name(device) for device in jax.devices()]
    if len(existing) != count or not all(name.startswith("cpu:") for name in existing):
        summary = f"use_cpu_devices({count}): JAX has already started, and its devices can no longer be changed"
        fix = f"restart the process (notebook: the kernel) and put `kd.use_cpu_devices({count})` first"
        raise DeviceError(summary, given=f"{len(existing)} running device(s), {_span(existing)}", fix=fix)


def _devices_of(device_type: str | None) -> list[Device]:
    if not jax_runtime.backend_started():
        # the count may have been set after keras_dist was imported, in XLA_FLAGS or in JAX's config
        backend_environment.size_thread_pool(
            max(backend_environment.fake_device_count(), jax_runtime.configured_cpu_devices())
        )
    try:
        return jax.devices(device_type.lower() if device_type else None)
    except RuntimeError as error:
        raise DeviceError(
            f"Device not found: this machine has no {device_type!r} devices",
            given=f"devices {_span([device_name(d) for d in jax.devices()])}",
            fix=f"install the JAX plugin, or use another type (JAX said: {error})",
        ) from error


def _span(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} ... {names[-1]}"


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
