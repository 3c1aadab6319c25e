"""The processes of a job, which DTensor calls clients, and their devices under its names."""

from __future__ import annotations

import os
import re
from typing import Any

import jax

from keras_dist._support.arguments import argument_error, is_int, is_number
from keras_dist._support.types import Device
from keras_dist.distribution import DeviceMesh, initialize, list_devices, process_count, process_index
from keras_dist.distribution.devices import device_name, find_device
from keras_dist.distribution.jobs.job_arguments import integer_variable
from keras_dist.distribution.jobs.rendezvous import Rendezvous
from keras_dist.distribution.mesh import check_mesh
from keras_dist.errors import ClusterError, DeviceError, MeshError

# pyright: reportUnknownMemberType=false
# JAX's own types are unknown in part
_SINGLE, _SEVERAL = "localhost", "worker"
_JOBS_VARIABLE, _CLIENT_ID_VARIABLE = "DTENSOR_JOBS", "DTENSOR_CLIENT_ID"


def initialize_accelerator_system(
    device_type: str | None = None, enable_coordination_service: bool | None = True, **options: Any
) -> str:
    """Join the job of several processes, if this one is started as one of them; call it before any computation.

    Which processes form the job is read from DTensor's variables: `DTENSOR_JOBS`, their addresses as
    `"host1:1234,host2:2345"`, and `DTENSOR_CLIENT_ID`, which of them this is, from 0; else it is found as
    `keras_dist.initialize` does. Without any of that this is the only process.

    Args:
        device_type: `"CPU"`, `"GPU"` or `"TPU"`, which must be here; by default the one that JAX prefers.
        enable_coordination_service: ignored: JAX always has one.
        options: those of `keras_dist.initialize`.

    Returns:
        The type of the devices, as `"CPU"`.

    Raises:
        ClusterError: the processes do not come together, or it is too late to join; see `keras_dist.initialize`.
        DeviceError: there are no such devices.

    Source: `tf.experimental.dtensor.initialize_accelerator_system`.
    """
    del enable_coordination_service
    told = {**_told_by_dtensor(), **options}
    initialize(**{"required": False, **told})
    return _type_of(list_devices(device_type)[0])


def shutdown_accelerator_system() -> None:
    """Do nothing: JAX's devices last as long as the process, which leaves its job when it ends.

    Source: `tf.experimental.dtensor.shutdown_accelerator_system`.
    """


def barrier(mesh: DeviceMesh, barrier_name: str | None = None, timeout_in_ms: int | None = None) -> None:
    """Wait until what all processes have computed so far is there, and until all of them are here.

    Args:
        mesh: a mesh; the processes of the job wait for each other whether they have a part of it or not.
        barrier_name: what it is called in errors; the same in all processes.
        timeout_in_ms: how long to wait for the other processes, in milliseconds; by default an hour.

    Raises:
        ProcessAbsentError: a process does not come in time, or has ended.
        ClusterError: another process is at another point of the program.

    Example:
        >>> from keras_dist import dtensor
        >>> dtensor.barrier(dtensor.create_mesh([("batch", 8)]), "before the end")

    Source: `tf.experimental.dtensor.barrier`.
    """
    check_mesh(mesh, MeshError)
    if timeout_in_ms is not None and not (is_number(timeout_in_ms) and timeout_in_ms > 0):
        raise argument_error("timeout_in_ms", timeout_in_ms, "a positive number", example=60_000, error=ClusterError)
    jax.effects_barrier()
    jax.block_until_ready([array for array in jax.live_arrays() if not array.is_deleted()])
    timeout_s = None if timeout_in_ms is None else timeout_in_ms / 1000
    Rendezvous(f"dtensor.barrier {barrier_name or ''}".rstrip(), timeout_s=timeout_s).each(lambda: None)


def client_id() -> int:
    """Return the index of this process in its job, from 0.

    Source: `tf.experimental.dtensor.client_id`.
    """
    return process_index()


def num_clients() -> int:
    """Return the number of processes of the job.

    Source: `tf.experimental.dtensor.num_clients`.
    """
    return process_count()


def job_name() -> str:
    """Return the name of the job as DTensor has it: `"localhost"` for one process, else `"worker"`.

    Source: `tf.experimental.dtensor.job_name`.
    """
    return _SINGLE if num_clients() == 1 else _SEVERAL


def full_job_name(task_id: int | None = None) -> str:
    """Return the name of a process as it stands in the names of devices.

    Args:
        task_id: its index; by default that of this process.

    Raises:
        ClusterError: the job has no such process.

    Source: `tf.experimental.dtensor.full_job_name`.
    """
    if task_id is not None and not is_int(task_id, 0, num_clients() - 1):
        raise argument_error("task_id", task_id, f"an index below {num_clients()}, from 0", error=ClusterError)
    return f"{job_name()}/replica:0/task:{client_id() if task_id is None else task_id}"


def jobs() -> list[str]:
    """Return the name of each process; none for a program of one process, which is no job.

    Differs from DTensor: names in place of addresses, of which JAX tells but one: `keras_dist.distribution.cluster()`.

    Source: `tf.experimental.dtensor.jobs`.
    """
    return [full_job_name(index) for index in range(num_clients())] if num_clients() > 1 else []


def local_devices(device_type: str | None = None) -> list[str]:
    """Return the full names of this process's devices of a type; by default of the one that JAX prefers.

    Raises:
        DeviceError: there are no such devices.

    Source: `tf.experimental.dtensor.local_devices`.
    """
    devices = map(find_device, list_devices(device_type))
    return [full_device_name(device) for device in devices if device.process_index == process_index()]


def num_local_devices(device_type: str | None = None) -> int:
    """Return how many devices of a type this process has.

    Source: `tf.experimental.dtensor.num_local_devices`.
    """
    return len(local_devices(device_type))


def num_global_devices(device_type: str | None = None) -> int:
    """Return how many devices of a type all processes have together.

    Source: `tf.experimental.dtensor.num_global_devices`.
    """
    return len(list_devices(device_type))


def preferred_device_type() -> str:
    """Return the type of the devices that JAX prefers, as `"CPU"`.

    Source: `tf.experimental.dtensor.preferred_device_type`.
    """
    return _type_of(list_devices()[0])


def full_device_name(device: Device) -> str:
    """`/job:localhost/replica:0/task:0/device:CPU:0`, with JAX's number of the device."""
    kind, _, number = device_name(device).partition(":")
    return f"/job:{full_job_name(device.process_index)}/device:{kind.upper()}:{number}"


def short_device_name(device: str | Device) -> str:
    """Return `"cpu:0"` for any name that DTensor has for a device, or for a `jax.Device`.

    Raises:
        DeviceError: the name is that of another process's device, or of none.
    """
    name = device_name(device)
    short = ":".join(name.rsplit(":", 2)[-2:])
    task = re.search(r"/task:(\d+)/", name)
    if task is not None and find_device(short).process_index != int(task[1]):
        expected = f"{full_device_name(find_device(short))!r}, or {short!r}"
        raise argument_error("device", device, expected, error=DeviceError)
    return short


def _told_by_dtensor() -> dict[str, Any]:
    """What DTensor's variables say, as arguments of `keras_dist.initialize`."""
    addresses = os.environ.get(_JOBS_VARIABLE)
    if not addresses:
        return {}
    process = integer_variable(_CLIENT_ID_VARIABLE) or 0
    return {"job_addresses": addresses, "num_processes": addresses.count(",") + 1, "process_id": process}


def _type_of(name: str) -> str:
    return name.partition(":")[0].upper()
