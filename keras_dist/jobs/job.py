"""The processes of a job, and the index of this process.

The first collective makes the connections between processes. Gloo waits without a limit for a peer whose connection
another program has taken, so all processes run one small collective within the join time-out.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import sys
from collections.abc import Iterable

import jax
import numpy as np
from jax.experimental import multihost_utils

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from keras_dist._support.types import Device
from keras_dist._unstable import jax_runtime
from keras_dist.config.settings import is_interactive_logging_enabled
from keras_dist.errors import printable
from keras_dist.jobs import heartbeat

_LOGGER = logging.getLogger("keras_dist")
_preemption_points = itertools.count()


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes of this job and their devices. Printing it gives one line of text.

    Attributes:
        process_index: index of this process, from 0.
        process_count: number of processes.
        coordinator: `"host:port"` of the coordinator; None in a program of one process.
        platform: `"cpu"`, `"gpu"` or `"tpu"`.
        local_device_count: number of devices of this process.
        device_count: number of devices of all processes.
    """

    process_index: int
    process_count: int
    coordinator: str | None
    platform: str
    local_device_count: int
    device_count: int

    def __str__(self) -> str:
        where = "" if self.coordinator is None else f", coordinator {self.coordinator}"
        devices = f"{self.local_device_count} of {self.device_count} {self.platform} devices"
        return f"process {self.process_index} of {self.process_count}{where}, {devices}"


def cluster() -> Cluster:
    """Return the processes and devices of this job. Starts JAX's backend, so call `initialize` first."""
    return Cluster(
        jax.process_index(),
        jax.process_count(),
        jax_runtime.coordinator_address(),
        jax.default_backend(),
        jax.local_device_count(),
        jax.device_count(),
    )


def process_count() -> int:
    """Return the number of processes in this job; 1 without `initialize`."""
    return jax.process_count()


def process_index() -> int:
    """Return the index of this process in its job; 0 without `initialize`."""
    return jax.process_index()


def is_chief() -> bool:
    """Return whether this is the process that writes files and messages."""
    return jax.process_index() == 0


def print_message(text: str) -> None:
    """Print a line in the first process only."""
    if is_chief():
        sys.stdout.write(f"{printable(text)}\n")


def print_progress(text: str) -> None:
    """Print a line on standard error in the first process only; `disable_interactive_logging` logs it instead."""
    if is_chief() and is_interactive_logging_enabled():
        sys.stderr.write(f"{printable(text)}\n")
    elif is_chief():
        _LOGGER.info(text)


def process_of(device: Device) -> int:
    """Return the index of the process that a device belongs to."""
    return device.process_index


def are_shared(devices: Iterable[Device]) -> bool:
    """Return whether there are several processes, each with some of the devices."""
    return process_count() > 1 and len({process_of(device) for device in devices}) == process_count()


def has_preemption_points() -> bool:
    """Return whether JAX's preemption service is enabled, as it is by default."""
    return process_count() > 1 and jax_runtime.has_preemption_service()


def reached_preemption_point() -> bool:
    """Return whether all processes must stop at this step, because a scheduler preempts one of them (SIGTERM).

    All must call it equally often. Source: `jax.experimental.multihost_utils.reached_preemption_sync_point`.
    """
    return multihost_utils.reached_preemption_sync_point(next(_preemption_points))


def connect(devices: Iterable[Device]) -> None:
    """Run a small collective over these devices, once. All processes must call it."""
    ordered = sorted(devices, key=lambda device: device.id)
    with heartbeat.current().connecting(frozenset(ordered)) as is_first:
        if not is_first:
            return
        heartbeat.current().note_act("the first collective")
        mesh = jax.sharding.Mesh(np.array(ordered), ("devices",))
        parts, whole = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("devices",), ()))
        own = [device for device in ordered if process_of(device) == process_index()]
        ones = [jax.device_put(np.ones(1, np.float32), device) for device in own]
        array = jax.make_array_from_single_device_arrays((len(ordered),), parts, ones)
        jax.block_until_ready(jax.jit(jax.numpy.sum, out_shardings=whole)(array))
