"""Arguments of `initialize`: `JobArguments`, the processes of a job, and `CommunicationOptions`."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any, Literal, cast

import jax

from keras_dist._support.arguments import check_int, check_kind, check_optional
from keras_dist._unstable import jax_runtime
from keras_dist.errors import ClusterError, one_of, shorten
from keras_dist.jobs.addresses import check_address

ADDRESSES_VARIABLE = "KERAS_DISTRIBUTION_JOB_ADDRESSES"
NUM_PROCESSES_VARIABLE = "KERAS_DISTRIBUTION_NUM_PROCESSES"
PROCESS_ID_VARIABLE = "KERAS_DISTRIBUTION_PROCESS_ID"
INITIALIZATION_TIMEOUT_VARIABLE = "KERAS_DISTRIBUTION_INITIALIZATION_TIMEOUT_S"
HANG_TIMEOUT_VARIABLE = "KERAS_DISTRIBUTION_HANG_TIMEOUT_S"
TF_CONFIG_VARIABLE = "TF_CONFIG"

_TF_CONFIG_EXAMPLE = '{"cluster": {"worker": ["host1:1234", "host2:2345"]}, "task": {"type": "worker", "index": 0}}'
_LIMIT_CHARACTERS = 2**20  # of TF_CONFIG
_MOST_PROCESSES = 10**6

_REFUSED = {
    "ps": (
        "keras_dist has no parameter servers: all processes train, and hold shards of the variables",
        'list every process under "worker", and drop "ps"',
    ),
    "evaluator": (
        "an evaluator is not part of a job: the other processes would wait for it in every step",
        'drop "evaluator"; run model.evaluate on the checkpoints of the job in a separate program',
    ),
}


@dataclasses.dataclass(frozen=True)
class JobArguments:
    """The arguments of `initialize` after reading the environment; JAX detects those that are None."""

    addresses: tuple[str, ...]  # "host:port" of each process, or of the first alone
    num_processes: int | None
    process_id: int | None

    @property
    def is_any_given(self) -> bool:
        """Whether any argument is given."""
        return self != JobArguments((), None, None)

    @property
    def coordinator(self) -> str | None:
        """Address of the first process, `"host:port"`."""
        return self.addresses[0] if self.addresses else None

    @property
    def own_address(self) -> str | None:
        """Address of this process, if the addresses of all processes are given."""
        if self.process_id is None or len(self.addresses) != self.num_processes:
            return None
        return self.addresses[self.process_id]

    @classmethod
    def resolve(
        cls,
        job_addresses: str | None,
        num_processes: int | None,
        process_id: int | None,
        environ: Mapping[str, str] = os.environ,
    ) -> JobArguments:
        """Take each value from the argument, else from its `KERAS_DISTRIBUTION_*` variable, else from `TF_CONFIG`."""
        if job_addresses is None:
            job_addresses = environ.get(ADDRESSES_VARIABLE)
        if num_processes is None:
            num_processes = integer_variable(NUM_PROCESSES_VARIABLE, environ)
        if process_id is None:
            process_id = integer_variable(PROCESS_ID_VARIABLE, environ)
        if None in (job_addresses, num_processes, process_id) and TF_CONFIG_VARIABLE in environ:
            described = _tf_config(environ[TF_CONFIG_VARIABLE])
            if described is not None:
                workers, index = described
                job_addresses = ",".join(workers) if job_addresses is None else job_addresses
                num_processes = len(workers) if num_processes is None else num_processes
                process_id = index if process_id is None else process_id
        _check_process_id(num_processes, process_id)
        return cls(_addresses(job_addresses, num_processes), num_processes, process_id)


def integer_variable(name: str, environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the integer in an environment variable; None if it is not set."""
    text = environ.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        given = f"{name}={text!r}"
        fix = f"export {name}=2, or unset it and pass the argument to initialize()"
        raise ClusterError(f"environment variable {name} must be an integer", given=given, fix=fix) from None


def _check_process_id(num_processes: int | None, process_id: int | None) -> None:
    for name, value, low in (("num_processes", num_processes, 1), ("process_id", process_id, None)):
        check_optional(check_int, name, value, low, _MOST_PROCESSES, error=ClusterError)
    if num_processes is not None and process_id is not None and not 0 <= process_id < num_processes:
        given = f"process_id={process_id}, num_processes={num_processes}"
        fix = "number the processes from 0"
        raise ClusterError(f"process_id must be from 0 to {num_processes - 1}", given=given, fix=fix)


def _addresses(job_addresses: str | None, num_processes: int | None) -> tuple[str, ...]:
    if job_addresses is None:
        return ()
    expected = 'a string of addresses joined by commas, such as "10.0.0.1:1234,10.0.0.2:2345"'
    check_kind("job_addresses", job_addresses, str, expected, fix='",".join(job_addresses)', error=ClusterError)
    addresses = [address.strip() for address in job_addresses.split(",")]
    if len(addresses) > 1 and num_processes is not None and num_processes != len(addresses):
        raise ClusterError(
            f"The provided job_addresses {addresses} has {len(addresses)} jobs, but num_processes is {num_processes}",
            fix="list every process once, or only the coordinator's address",
        )
    check_address("the coordinator's address", addresses[0])
    return tuple(addresses)


def _tf_config(text: str) -> tuple[list[str], int] | None:
    """Return the addresses of the workers, the chief's first, and the index of this process; None without a cluster."""

    def mistake(summary: str, given: Any, fix: str = f"TF_CONFIG='{_TF_CONFIG_EXAMPLE}'") -> ClusterError:
        return ClusterError(f"TF_CONFIG: {summary}", given=shorten(given), fix=fix)

    try:
        document = json.loads(text) if len(text) <= _LIMIT_CHARACTERS else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise mistake("must be a JSON object", text)
    document = cast(dict[str, Any], document)
    cluster, task = cast(Any, document.get("cluster") or {}), document.get("task")
    if not isinstance(cluster, dict):
        raise mistake('"cluster" must be an object: a list of addresses for each type of task', cluster)
    cluster = cast(dict[str, Any], cluster)
    kind = cast(dict[str, Any], task).get("type") if isinstance(task, dict) else None
    for refused, (reason, fix) in _REFUSED.items():
        if kind == refused or cluster.get(refused):
            raise mistake(f'"{refused}" is not supported: {reason}', document, fix)
    if not cluster:
        return None
    if unknown := sorted({*map(str, cluster)} - {"chief", "worker", *_REFUSED}):
        raise mistake(f'the type of a task must be "chief" or "worker", not {unknown[0]!r}', cluster)
    addresses = {name: cluster.get(name, []) for name in ("chief", "worker")}
    for name, listed in addresses.items():
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in cast(list[Any], listed)):
            raise mistake(f'"{name}" must be a list of addresses, such as ["host1:1234", "host2:2345"]', listed)
    if len(addresses["chief"]) > 1:
        fix = "leave one address, or none: the first worker is chief"
        raise mistake("there can be only one chief", addresses["chief"], fix)
    if not isinstance(task, dict) or not isinstance(kind, str) or kind not in addresses:
        raise mistake('"task" must name this process, as {"type": "worker", "index": 0}', task)
    index = cast(dict[str, Any], task).get("index")
    count = len(addresses[kind])
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
        raise mistake(f'"index" of the {kind} must be an integer below {count}, the number of its addresses', task)
    workers = [*addresses["chief"], *addresses["worker"]]
    return workers, index if kind == "chief" else index + len(addresses["chief"])


# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

_IMPLEMENTATIONS = ("auto", "gloo", "mpi", "nccl")
_MPI_VARIABLE = "MPITRAMPOLINE_LIB"
_WAYS_OUT_OF_TENSORFLOW = {
    "AUTO": 'CommunicationOptions("auto"), or none',
    "RING": 'CommunicationOptions("gloo"), or none: between CPU devices, Gloo sums in rings',
    "NCCL": 'CommunicationOptions("nccl") on GPUs, or none: NCCL is what JAX uses between them',
}


@dataclasses.dataclass(frozen=True)
class CommunicationOptions:
    """Collective communication between processes, for `initialize(communication_options=...)`.

    Args:
        implementation: `"auto"` for JAX's choice: NCCL between GPUs; between CPU devices Gloo, or the value of
            `JAX_CPU_COLLECTIVES_IMPLEMENTATION`. `"gloo"` and `"mpi"` apply to CPU devices only; MPItrampoline finds
            the MPI library through `MPITRAMPOLINE_LIB`. `"nccl"` checks that JAX runs on GPUs.

    Raises:
        ClusterError: the implementation has another value.

    Example:
        >>> import keras_dist as kd
        >>> kd.distribution.CommunicationOptions("gloo")
        CommunicationOptions(implementation='gloo')

    Differs from TensorFlow: passed to `initialize`, since JAX chooses when it starts; `RING` is `"gloo"`;
    `bytes_per_pack` and `timeout_seconds` are not available, since XLA decides what is sent together.

    Source: `tf.distribute.experimental.CommunicationOptions`, `jax_cpu_collectives_implementation`.
    """

    implementation: Literal["auto", "gloo", "mpi", "nccl"] = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.implementation, str) or self.implementation not in _IMPLEMENTATIONS:  # pyright: ignore[reportUnnecessaryIsInstance]
            summary = f"CommunicationOptions: `implementation` must be {one_of(_IMPLEMENTATIONS)}"
            name = str(getattr(self.implementation, "value", self.implementation)).upper()  # TensorFlow has an enum
            fix = _WAYS_OUT_OF_TENSORFLOW.get(name, 'CommunicationOptions("auto")')
            raise ClusterError(summary, given=f"implementation={shorten(self.implementation)}", fix=fix)


def apply_communication_options(options: Any) -> None:
    """Set JAX's options before its backend starts; raise a `ClusterError` before any is changed."""
    fix = 'communication_options=kd.distribution.CommunicationOptions("gloo")'
    check_kind(
        "communication_options", options, CommunicationOptions, "a CommunicationOptions", fix=fix, error=ClusterError
    )
    if options.implementation == "nccl":
        _check_gpus()
    elif options.implementation not in ("auto", getattr(jax.config, "jax_cpu_collectives_implementation", None)):
        if options.implementation == "mpi":
            _check_mpi()
        if jax_runtime.backend_started():
            given = f"communication_options={options}, after a {jax.default_backend()} backend has started"
            fix = "call initialize() before JAX computes, or leave out communication_options"
            raise ClusterError("CommunicationOptions: JAX reads them when it starts", given=given, fix=fix)
        jax.config.update("jax_cpu_collectives_implementation", options.implementation)


def _check_gpus() -> None:
    if not jax_runtime.looks_for_gpus():
        summary = "CommunicationOptions: NCCL connects GPUs, and JAX will not run on any"
        fix = 'pip install "jax[cuda12]" on machines with GPUs, or CommunicationOptions("gloo") for CPU devices'
        raise ClusterError(summary, given='implementation="nccl"', fix=fix)


def _check_mpi() -> None:
    # without the library, a call of MPI ends the process
    library = os.environ.get(_MPI_VARIABLE, "")
    if not os.path.isfile(library):
        summary = "CommunicationOptions: JAX finds no library of MPI, wrapped by MPIwrapper"
        fix = f'build MPIwrapper and set {_MPI_VARIABLE} to its file, or CommunicationOptions("gloo")'
        raise ClusterError(summary, given=f'implementation="mpi", {_MPI_VARIABLE}={library!r}', fix=fix)
