"""`initialize`: join this process to its job, through JAX's distributed runtime.

jaxlib aborts a process whose time-out passes, and all processes when the coordination service ends with the first one.
So the client's time-outs raise, and the service is a child process of the first that forgives the exit of a client. A
process first takes an abstract Unix socket of its index: the service would give its place to whoever connects last.

The first process shows its warnings at once, others what it does not warn of within five seconds: only some warnings
appear in all processes, and whoever warns cannot know.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import re
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Mapping
from typing import Any, Literal, TextIO

import jax

from keras_dist import random
from keras_dist._support.arguments import check_flag, check_number, check_optional
from keras_dist._support.process_notes import ProcessNotes
from keras_dist._unstable import jax_runtime
from keras_dist._unstable.coordination_service import CoordinationService
from keras_dist.errors import ClusterError, KerasDistError, printable, shorten

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from keras_dist.jobs import heartbeat, same_rows
from keras_dist.jobs.addresses import (
    BIND_VARIABLE,
    EVERYWHERE,
    CoordinatorAddress,
    answers,
    are_same,
    cannot_listen,
    check_can_listen,
    host_and_port,
    is_loopback,
)
from keras_dist.jobs.job_arguments import (
    ADDRESSES_VARIABLE,
    HANG_TIMEOUT_VARIABLE,
    INITIALIZATION_TIMEOUT_VARIABLE,
    NUM_PROCESSES_VARIABLE,
    CommunicationOptions,
    JobArguments,
    apply_communication_options,
    integer_variable,
)

_INITIALIZATION_TIMEOUT_S = 60
_REPORT_EVERY_S = 15.0
_LONGEST_S = 1e6
_JOINED = "keras_dist/joined"
_WARNED = "keras_dist/warned/"
_WARNING_WAIT_S = 5.0
_NO_TEXT = "bad_cast"  # jaxlib's text of a time-out
_LIMIT_CHARACTERS = 4096  # of the message of a process that joins
_claims: list[socket.socket] = []  # kept open until this process exits


def initialize(
    job_addresses: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    required: bool = True,
    initialization_timeout_s: float | None = None,
    heartbeat_timeout_s: float = 60,
    shutdown_timeout_s: float = 300,
    hang_timeout_s: float | None = None,
    check_data: Literal["sample", "full", False] = "sample",
    communication_options: CommunicationOptions | None = None,
) -> None:
    """Join this process to its job. Call it before any computation.

    Values that are left out are read from their `KERAS_DISTRIBUTION_*` variables, then from `TF_CONFIG` as in
    `tf.distribute.MultiWorkerMirroredStrategy`, then from JAX's detection (Cloud TPU, Slurm, Open MPI, Kubernetes). All
    processes then agree on one random seed. A process that waits for others reports it on stderr every 15 seconds.

    In a job, only the first process shows progress and tables and writes logs. A warning that several processes give is
    shown once. C++ logs are shown from level ERROR on; with the variable `TF_CPP_MIN_LOG_LEVEL=0` all are shown.

    The coordinator listens only on the address that is given. Anyone who can reach its port can end the job, so use a
    private network. Where the host's name is a loopback address on its own machine, as 127.0.1.1 on Debian, the
    coordinator listens on the machine's address towards the other processes or the default route, and logs it. The
    variable `JAX_COORDINATOR_BIND_ADDRESS="host:port"` of process 0 chooses another address; it is needed if the given
    one is not an address of the machine. Gloo, which moves data between CPU devices, listens on the address with which
    its process reaches the coordinator.

    If Ray's JaxTrainer or the program has called `jax.distributed.initialize`, this process takes over that job, also
    after a backend has started. Values that are given must agree with it. JAX's own coordination service then aborts
    all other processes when process 0 exits, or one does not answer it for 100 s, without a reason on stderr. Other
    processes that exit are noticed when a collective fails, or after `heartbeat_timeout_s`.

    Args:
        job_addresses: `"10.0.0.1:1234,10.0.0.2:2345"`, or only the first, the coordinator's; variable
            `KERAS_DISTRIBUTION_JOB_ADDRESSES`.
        num_processes: number of processes in the job; variable `KERAS_DISTRIBUTION_NUM_PROCESSES`.
        process_id: index of this process, from 0; variable `KERAS_DISTRIBUTION_PROCESS_ID`.
        required: whether a missing job is an error. With False, for scripts that also run alone, the process trains
            alone if it finds neither arguments nor variables, and JAX detects no job.
        initialization_timeout_s: limit for all processes to join, and later for all to connect for their first
            collective [s]; None for 60; variable `KERAS_DISTRIBUTION_INITIALIZATION_TIMEOUT_S`.
        heartbeat_timeout_s: time without a heartbeat after which a process is considered failed [s]; must be longer
            than any call of the program blocks other Python threads. A process that exits is noticed at once.
        shutdown_timeout_s: time that the first process waits at its end for the others, which depend on its
            coordinator [s].
        hang_timeout_s: time without a step, in `fit`, `evaluate` or `predict`, or of waiting for other processes, after
            which the job exits, with the stacks of all threads on stderr; includes compilation [s]. With None steps may
            take any time, and other waits end after an hour; variable `KERAS_DISTRIBUTION_HANG_TIMEOUT_S`.
        check_data: comparison of rows that several processes must hold alike: all rows, or, under a distribution with
            `auto_shard_dataset=False`, the rows of processes that own the same part of a batch. "sample" exchanges
            digests of 32 rows once before each epoch, evaluation and prediction; for batched data, rows of the first
            batch; for `train_on_batch` and similar methods in call 1, 2, 4, 8 ... It finds another order and other
            values, but a single changed row only by chance. "full" compares every row and every batch, and reads arrays
            and examples once more in each epoch. False compares nothing.
        communication_options: collective communication between processes, the same in all of them.

    Raises:
        ClusterError: no job is found; this process has called `initialize` before, or has started a JAX backend alone;
            the values are malformed or contradict each other, another process or the running job;
            `communication_options` are not available; the coordinator cannot listen on its address or does not answer;
            or a process does not join in time.

    Source: `keras.distribution.initialize`, `jax.distributed.initialize`.
    """
    if initialization_timeout_s is None:
        initialization_timeout_s = integer_variable(INITIALIZATION_TIMEOUT_VARIABLE)
    if initialization_timeout_s is None:
        initialization_timeout_s = _INITIALIZATION_TIMEOUT_S
    timeouts = {
        "initialization_timeout_s": initialization_timeout_s,
        "heartbeat_timeout_s": heartbeat_timeout_s,
        "shutdown_timeout_s": shutdown_timeout_s,
    }
    for name, value in timeouts.items():
        check_number(name, value, low=1, high=_LONGEST_S, error=ClusterError)
    if hang_timeout_s is None:
        hang_timeout_s = integer_variable(HANG_TIMEOUT_VARIABLE)
    check_optional(check_number, "hang_timeout_s", hang_timeout_s, low=1, high=_LONGEST_S, error=ClusterError)
    check_data = same_rows.checked_option(check_data)
    check_flag("required", required, ClusterError)
    given = JobArguments.resolve(job_addresses, num_processes, process_id)
    is_running = jax_runtime.job_client() is not None
    if not required and not (is_running or given.is_any_given or jax_runtime.detects_job()):
        _check_is_alone()
        return
    _check_is_first_use(is_running)
    if communication_options is not None:
        apply_communication_options(communication_options)
    end = time.monotonic() + initialization_timeout_s
    entrance = _take_over(given) if is_running else _join(given, end, shutdown_timeout_s)
    process, processes = jax_runtime.place_in_job()
    heartbeat.watch_job(entrance, **timeouts, hang_timeout_s=hang_timeout_s)
    with _telling(lambda: f"the arguments of the other processes of {processes}"):
        seed = _agree(jax_runtime.job_client(), process, processes, end, check_data)
    same_rows.choose_check(check_data)
    random.set_random_seed(seed)
    _show_warnings_once(jax_runtime.job_client(), process)


def has_job_to_join(*, detect: bool) -> bool:
    """Return whether variables, JAX if `detect`, or a runtime that runs describe a job that has no heartbeats here."""
    if jax_runtime.job_client() is not None:
        return not heartbeat.current().is_watching
    found = JobArguments.resolve(None, None, None)
    by_launcher = any(name in os.environ for name in (ADDRESSES_VARIABLE, NUM_PROCESSES_VARIABLE))
    return by_launcher or (found.num_processes or 1) > 1 or (detect and jax_runtime.detects_job())


def _seconds_until(end: float) -> int:
    return max(round(end - time.monotonic()), 1)


def _check_is_alone() -> None:
    """Raise in one of several workers of Ray Train, which JAX does not detect."""
    workers: Any = 1
    with contextlib.suppress(Exception):  # outside of a worker
        workers = sys.modules["ray.train"].get_context().get_world_size()
    if workers > 1:
        fix = "pass the address of rank 0, world size and rank; or use JaxConfig(use_gpu=True), which joins the workers"
        raise ClusterError("initialize: a worker of Ray Train would train alone", given=f"{workers} workers", fix=fix)


def _check_is_first_use(is_running: bool) -> None:
    if heartbeat.current().is_watching:
        given = "process {} of {}".format(*jax_runtime.place_in_job())
        raise ClusterError(
            "initialize: this process has joined a job already", given=given, fix="remove the second call"
        )
    if jax_runtime.backend_started() and not is_running:
        given = f"a {jax.default_backend()} backend with {jax.local_device_count()} devices"
        fix = "make keras_dist.initialize() the first line of the program after the imports"
        raise ClusterError("initialize: JAX has started already, as a single process", given=given, fix=fix)


def _join(given: JobArguments, end: float, shutdown_timeout_s: float) -> str | None:
    """Join the job by `jax.distributed.initialize`; return the entrance of its service, in the first process."""
    arguments = {
        "coordinator_address": given.coordinator,
        "num_processes": given.num_processes,
        "process_id": given.process_id,
        "initialization_timeout": _seconds_until(end),
        "heartbeat_timeout_seconds": round(_LONGEST_S),  # JAX aborts without a reason, also after a suspension
        "shutdown_timeout_seconds": round(shutdown_timeout_s),
    }
    attempt = _Attempt(given, end)
    try:
        with attempt.waiting:
            jax_runtime.join_job(arguments, attempt.start_service, attempt.await_coordinator)
    except BaseException as error:
        while _claims:
            _claims.pop().close()
        if isinstance(error, ClusterError) or not isinstance(error, RuntimeError | ValueError):
            raise
        raise attempt.failed(error) from None
    return attempt.entrance


def _take_over(given: JobArguments) -> str | None:
    """Check that arguments agree with a job that others have joined; its service has an empty entrance."""
    process, processes = jax_runtime.place_in_job()
    address = jax_runtime.coordinator_address() or ""
    running = {"job_addresses": address, "num_processes": processes, "process_id": process}
    coordinator = given.coordinator
    if coordinator is not None:
        reached = CoordinatorAddress(coordinator, processes, given.addresses).reached
        coordinator = address if are_same(coordinator, address) or are_same(reached, address) else coordinator
    asked = zip(running, (coordinator, given.num_processes, given.process_id), strict=True)
    differ = [
        f"{name}={value}, but {running[name]} there" for name, value in asked if value not in (None, running[name])
    ]
    if differ:
        raise ClusterError(
            "initialize: the arguments contradict the job that jax.distributed.initialize has joined",
            given="; ".join(differ),
            fix="leave out the arguments and their KERAS_DISTRIBUTION_* variables, or the call of jax.distributed",
        )
    for place in (CoordinatorAddress(address, processes, given.addresses).reached, address):
        with contextlib.suppress(OSError), socket.create_connection(host_and_port(place), _REPORT_EVERY_S) as reached:
            jax_runtime.configure_joined(reached.getsockname()[0])
            break
    return None if process else ""


@contextlib.contextmanager
def _telling(what: Callable[[], str]) -> Generator[None]:
    """Report on stderr, every 15 seconds, that this process waits for what the function describes."""
    done = threading.Event()
    begin = time.monotonic()

    def log_waiting() -> None:
        while not done.wait(_REPORT_EVERY_S):
            sys.stderr.write(f"keras_dist: waiting for {what()} since {time.monotonic() - begin:.0f} s\n")
            sys.stderr.flush()

    thread = threading.Thread(target=log_waiting, name="keras_dist waits", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class _Attempt:
    """Callbacks of JAX while a process joins its job, and the error if it fails."""

    def __init__(self, given: JobArguments, end: float) -> None:
        self._given, self._end = given, end  # deadline by `time.monotonic`
        self._service: CoordinationService | None = None
        self.entrance: str | None = None  # of the service, if this process has started it
        self._bound: str | None = None  # host on which the service listens
        self._place: tuple[CoordinatorAddress, int, int] | None = None  # of the coordinator; this process, processes
        self.waiting = contextlib.ExitStack()  # reports waiting for other processes, until it is closed

    def start_service(self, address: str, processes: int, options: Mapping[str, Any]) -> CoordinationService:
        """Start the coordination service, in the first process."""
        coordinator = CoordinatorAddress(address, processes, self._given.addresses)
        _claim(coordinator.bound, 0, processes)
        self._bound = check_can_listen(coordinator.bound)
        if (note := coordinator.note()) is not None:
            sys.stderr.write(printable(f"keras_dist: {note}\n"))
        options = {**options, "cluster_register_timeout": _seconds_until(self._end)}
        try:
            self._service = CoordinationService(coordinator.bound, processes, options)
        except RuntimeError as error:
            raise cannot_listen(coordinator.bound, error) from error
        self.entrance = self._service.entrance
        return self._service

    def await_coordinator(self, address: str, process: int, processes: int) -> tuple[str, str]:
        """Wait until the coordinator listens; return its address, and the host on which this process must listen."""
        coordinator = CoordinatorAddress(address, processes, self._given.addresses)
        self._place = coordinator, process, processes
        if process:
            _claim(address, process, processes)
        reason: Exception | None = None
        others = f"process {1 - process}" if processes == 2 else "the others"
        with _telling(lambda: f"process 0 of {processes} at {coordinator}" + (f": {reason}" if reason else "")):
            while reason is None or time.monotonic() < self._end:
                try:
                    place = host_and_port(coordinator.reached)
                    with socket.create_connection(place, min(_seconds_until(self._end), _REPORT_EVERY_S)) as reached:
                        own_host = reached.getsockname()[0]
                except (OSError, UnicodeError) as error:
                    reason = error
                    time.sleep(min(0.2, max(self._end - time.monotonic(), 0)))
                else:
                    self.waiting.enter_context(_telling(lambda: f"{others} of {processes} at {coordinator.reached}"))
                    return coordinator.reached, self._listening_host(own_host)
        unknown = isinstance(reason, socket.gaierror | UnicodeError)
        _note_absent([0])
        summary = f"process {process} of {processes} cannot reach the coordinator at {coordinator}"
        fix = (
            "start process 0 on the machine with this address, in time; check whether a firewall closes the port; "
            f"if it must listen on another address, set {BIND_VARIABLE} there"
        )
        raise ClusterError(summary, given=f"{'unknown host' if unknown else 'no answer'}: {reason}", fix=fix)

    def _listening_host(self, reaching: str) -> str:
        """Return the given host of this process, or else its address `reaching` the coordinator."""
        host = self._bound
        if host is None and self._given.own_address is not None:
            with contextlib.suppress(ClusterError):  # of another machine
                host = check_can_listen(self._given.own_address)
        is_bad = host in (None, *EVERYWHERE) or (is_loopback(host) and not is_loopback(reaching))
        return reaching if host is None or is_bad else host

    def failed(self, error: Exception) -> ClusterError:
        """Return the error for arguments that JAX could not detect, or for processes that did not join in time."""
        if self._place is None:
            given = {"address": self._given.coordinator, **dataclasses.asdict(self._given)}
            del given["addresses"]
            missing = [name for name, value in given.items() if value is None]
            known = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
            alone = (
                "`keras-dist launch --processes 1 -- train.py` runs a job of one process; to run without a job, leave "
                "the call out, or write initialize(required=False), which joins a job where there is one"
            )
            without = f" without {', '.join(missing)}" if missing else ""
            summary = f"initialize: called{without}, and JAX detects no job"
            fix = 'initialize("10.0.0.1:1234", num_processes=2, process_id=0)' if known else alone
            fix += "; or KERAS_DISTRIBUTION_* variables, TF_CONFIG, Cloud TPU, Slurm, Open MPI, Kubernetes"
            return ClusterError(summary, given=f"{known or 'nothing'}; {shorten(error)}", fix=fix)
        coordinator, process, processes = self._place
        logged = "" if self._service is None else self._service.log()
        missing = re.search(r"Some timed out task names:\n((?:\d+\n)+)", logged)
        if missing is not None:
            what = f"process {', '.join(missing[1].split())} did not join the job"
        elif not answers(coordinator.reached):
            what = "process 0, with the coordinator, has exited"
        elif time.monotonic() < self._end - 1:
            what = "the coordinator does not let it join the job"
        else:
            what = "another process did not join the job"
        if missing is not None or time.monotonic() >= self._end - 1:
            _note_absent([int(index) for index in missing[1].split()] if missing else [])
        return ClusterError(
            f"process {process} of {processes}: {what}",
            given=f"coordinator {coordinator}" + (f": {shorten(error)}" if _NO_TEXT not in str(error) else ""),
            expected=f"processes 0 to {processes - 1}, each once, all with num_processes={processes}, in time",
            fix="check the logs of the missing process and its arguments, and start all again",
        )


def _agree(client: Any, process: int, processes: int, end: float, check_data: same_rows.CheckData = "sample") -> int:
    """Check that all have the same number of processes, collectives and comparisons; return the seed of the first."""
    same = {
        "num_processes": processes,
        "collectives": str(getattr(jax.config, "jax_cpu_collectives_implementation", None)),
        "check_data": check_data,
    }
    mine = {**same, "seed": random.current_seed()}
    try:
        client.key_value_set(f"{_JOINED}/{process}", json.dumps(mine))
    except RuntimeError as error:
        raise _has_joined(process, processes, shorten(error)) from error
    seeds: list[int] = []
    for other in range(processes):
        try:
            joined = client.blocking_key_value_get(f"{_JOINED}/{other}", 1000 * _seconds_until(end))
            record = json.loads(joined[:_LIMIT_CHARACTERS])
            theirs = {name: record[name] for name in same}
            seeds.append(random.check_seed(record["seed"]))
        except (RuntimeError, ValueError, TypeError, LookupError, KerasDistError) as error:
            raise _disagreement(f"the arguments of process {other} are not known: {shorten(error)}") from error
        for name, value in same.items():
            if theirs[name] != value:
                raise _disagreement(f"{name}={value} in process {process}, {shorten(theirs[name])} in process {other}")
    return seeds[0]


def _claim(address: str, process: int, processes: int) -> None:
    """Check that no other process of this machine has the same index: JAX would make the other one abort."""
    if sys.platform != "linux":  # only Linux has names of sockets that are free as soon as a process has exited
        return
    name = hashlib.sha256(f"{address} {process}".encode()).hexdigest()  # of a length that fits
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0keras_dist {name}")
        _claims.append(claim)
    except OSError as error:
        claim.close()
        if error.errno == errno.EADDRINUSE:
            holder = f"another process on this machine, with coordinator {address}"
            raise _has_joined(process, processes, holder) from error


def _note_absent(processes: list[int]) -> None:
    """Note for the launcher that these processes, and perhaps others, did not join in time."""
    file = ProcessNotes.open_file()
    if file is not None:
        ProcessNotes(absent=processes).write(file)
        os.close(file)


def _has_joined(process: int, processes: int, given: str) -> ClusterError:
    summary = f"process {process} of {processes} has joined already"
    return ClusterError(summary, given=f"process_id={process}: {given}", fix="number the processes from 0, each once")


def _disagreement(given: str) -> ClusterError:
    fix = "start all with the same addresses, number of processes and communication_options"
    return ClusterError("initialize: the processes of the job must be given the same arguments", given=given, fix=fix)


def _show_warnings_once(client: Any, process: int) -> None:
    """Show warnings of the first process at once, and others if it gives none of the same text in 5 seconds."""
    show, here = warnings.showwarning, os.getpid()
    waiting = concurrent.futures.ThreadPoolExecutor(1, "keras_dist warns")  # in order; Python waits for it at exit

    def show_in_job(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        digest = hashlib.sha256(f"{category.__module__}.{category.__qualname__}: {message}".encode()).hexdigest()
        key, end = f"{_WARNED}{digest}", time.monotonic() + _WARNING_WAIT_S

        def show_unless_shown() -> None:
            try:
                client.blocking_key_value_get(key, max(round(1000 * (end - time.monotonic())), 1))
            except RuntimeError:
                show(message, category, filename, lineno, file, line)

        if process and os.getpid() == here:
            with contextlib.suppress(RuntimeError):  # Python exits
                waiting.submit(show_unless_shown)
                return
        show(message, category, filename, lineno, file, line)
        if os.getpid() == here:  # forked processes have no client
            with contextlib.suppress(RuntimeError):  # the job has ended
                client.key_value_set(key, "", allow_overwrite=True)

    warnings.showwarning = show_in_job
