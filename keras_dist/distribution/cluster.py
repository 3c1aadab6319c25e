"""The processes of a job: Keras's arguments for JAX's distributed runtime."""

from __future__ import annotations

import itertools
import os
import socket
import sys

import jax
from jax.experimental import multihost_utils

from keras_dist import _jax, random
from keras_dist._arguments import check_int, check_optional

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# JAX's own types are unknown in part
from keras_dist._types import Device
from keras_dist.errors import ClusterError

ADDRESSES_VARIABLE = "KERAS_DISTRIBUTION_JOB_ADDRESSES"
NUM_PROCESSES_VARIABLE = "KERAS_DISTRIBUTION_NUM_PROCESSES"
PROCESS_ID_VARIABLE = "KERAS_DISTRIBUTION_PROCESS_ID"
_BIND_VARIABLE = "JAX_COORDINATOR_BIND_ADDRESS"

_preemption_points = itertools.count()


def initialize(
    job_addresses: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> None:
    """Join this process to its job. Call it before any computation.

    Every argument left out is read from the environment; where JAX detects the cluster itself (Cloud TPU, Slurm,
    Open MPI, Kubernetes), all may be left out. All processes then agree on one random seed.

    The coordinator listens on the address that it is given, and nowhere else; one that JAX detects listens on every
    interface. Anyone who can reach its port can end the job, so use a private network. If the address is not the
    machine's own, or resolves to 127.0.0.1 there, set `JAX_COORDINATOR_BIND_ADDRESS` to one to listen on.

    Args:
        job_addresses: `"10.0.0.1:1234,10.0.0.2:2345"`, or only the first, the coordinator's; variable
            `KERAS_DISTRIBUTION_JOB_ADDRESSES`.
        num_processes: processes in the job; variable `KERAS_DISTRIBUTION_NUM_PROCESSES`.
        process_id: which of them this is, from 0; variable `KERAS_DISTRIBUTION_PROCESS_ID`.

    Raises:
        ClusterError: a variable is not an integer, an id is out of range, or the number of addresses and
            `num_processes` differ; or the coordinator cannot listen on its address.
    """
    if job_addresses is None:
        job_addresses = os.environ.get(ADDRESSES_VARIABLE)
    if num_processes is None:
        num_processes = _integer_variable(NUM_PROCESSES_VARIABLE)
    if process_id is None:
        process_id = _integer_variable(PROCESS_ID_VARIABLE)
    _check_process_id(num_processes, process_id)
    coordinator = _coordinator(job_addresses, num_processes)
    listens_on = os.environ.get(_BIND_VARIABLE, coordinator)
    if process_id == 0 and listens_on is not None:
        _check_can_listen(listens_on)
    jax.distributed.initialize(
        coordinator_address=coordinator,
        num_processes=num_processes,
        process_id=process_id,
        coordinator_bind_address=listens_on,
    )
    _agree_on_seed()


def num_processes() -> int:
    """Return the number of processes in this job; 1 without `initialize`."""
    return jax.process_count()


def process_id() -> int:
    """Return the index of this process in its job; 0 without `initialize`."""
    return jax.process_index()


def is_first_process() -> bool:
    """Whether this is the process that writes files and messages."""
    return jax.process_index() == 0


def print_message(text: str) -> None:
    """Print a line, once for all processes."""
    if is_first_process():
        sys.stdout.write(f"{text}\n")


def process_of(device: Device) -> int:
    """Return the index of the process that a device belongs to."""
    return device.process_index


def has_preemption_points() -> bool:
    """Whether JAX's preemption service is enabled, which it is by default."""
    return num_processes() > 1 and _jax.has_preemption_service()


def reached_preemption_point() -> bool:
    """Whether all processes must stop at this step, because a scheduler preempts one of them (SIGTERM).

    All processes must call it equally often; the preempted one continues until all can stop at the same step.

    Source: `jax.experimental.multihost_utils.reached_preemption_sync_point`.
    """
    return multihost_utils.reached_preemption_sync_point(next(_preemption_points))


def _coordinator(job_addresses: str | None, num_processes: int | None) -> str | None:
    if job_addresses is None:
        return None
    if not isinstance(job_addresses, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ClusterError(
            "initialize: `job_addresses` is not a string",
            given=f"job_addresses={job_addresses!r}",
            expected='addresses joined by commas, such as "10.0.0.1:1234,10.0.0.2:2345"',
            fix='",".join(job_addresses)',
        )
    addresses = [address.strip() for address in job_addresses.split(",")]
    if len(addresses) > 1 and num_processes is not None and num_processes != len(addresses):
        raise ClusterError(
            f"The provided job_addresses {addresses} has {len(addresses)} jobs, but num_processes is {num_processes}",
            given=f"job_addresses={job_addresses!r}, num_processes={num_processes}",
            expected="one address for each process, or only the coordinator's",
            fix="list every process once, or drop all addresses but the first",
        )
    if not addresses[0].rpartition(":")[2].isdigit():
        raise ClusterError(
            "initialize: the coordinator's address has no port",
            given=f"{addresses[0]!r}",
            expected='"host:port", such as "10.0.0.1:1234"',
            fix=f'"{addresses[0]}:1234", with a free port of that machine',
        )
    return addresses[0]


def _check_can_listen(address: str) -> None:
    """Check that this process can listen on `address`, since jax 0.12 ends the process where it cannot."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, _, _, place = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        raise ClusterError(
            "initialize: the coordinator cannot listen on its address",
            given=f"{address!r}: {error}",
            expected="an address of this machine, and a port that is free",
            fix=f"name one; where others reach this machine by another address, set {_BIND_VARIABLE}",
        ) from error


def _integer_variable(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ClusterError(
            f"environment variable {name} is not an integer",
            given=f"{name}={text!r}",
            expected="an integer such as 2",
            fix=f"export {name}=2, or unset it and pass the argument to initialize()",
        ) from None


def _check_process_id(num_processes: int | None, process_id: int | None) -> None:
    for name, value, low in (("num_processes", num_processes, 1), ("process_id", process_id, None)):
        check_optional(check_int, name, value, low, error=ClusterError)
    if num_processes is not None and process_id is not None and not 0 <= process_id < num_processes:
        raise ClusterError(
            "process_id is out of range",
            given=f"process_id={process_id}, num_processes={num_processes}",
            expected=f"0 <= process_id < {num_processes}",
            fix="number the processes from 0",
        )


def _agree_on_seed() -> None:
    """Give every process the coordinator's seed, so that unseeded models are equal on all of them."""
    seed = multihost_utils.broadcast_one_to_all(jax.numpy.uint32(random.current_seed()))
    random.set_random_seed(int(seed))
