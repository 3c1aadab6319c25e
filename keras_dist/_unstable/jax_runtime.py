"""Backends of JAX, the processes of its distributed runtime, and its plugins."""

from __future__ import annotations

import atexit
import os
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax._src import api, clusters, distributed, xla_bridge
from jaxlib import utils  # pyright: ignore[reportAttributeAccessIssue]

_WARNING, _ERROR, _FATAL = 1, 2, 3  # as in TF_CPP_MIN_LOG_LEVEL, which JAX sets to the first


def backend_started() -> bool:
    """Whether a JAX backend has started, so that devices can no longer be configured."""
    return bool(xla_bridge._backends)  # without its lock, which JAX holds while it waits for other processes


def _note_fork() -> None:
    global _is_forked
    _is_forked = backend_started()


_is_forked = False

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def is_forked() -> bool:
    """Whether this process was forked from one whose JAX backend had started; it lacks the backend's threads."""
    return _is_forked


def configured_cpu_devices() -> int:
    """Return the number of fake CPU devices in JAX's own config, or 0."""
    return max(int(getattr(jax.config, "jax_num_cpu_devices", 0) or 0), 0)


def job_client() -> Any:
    """Return the client of JAX's distributed runtime; None before `initialize`."""
    return distributed.global_state.client


def coordinator_address() -> str | None:
    """Return the address of the job's coordinator; None before `initialize`."""
    return distributed.global_state.coordinator_address


def place_in_job() -> tuple[int, int]:
    """Return the index of this process and the number of processes, as given to `initialize`."""
    return distributed.global_state.process_id, distributed.global_state.num_processes


def detects_job() -> bool:
    """Whether `jax.distributed.initialize` detects the processes of the job."""
    kinds = (kind for kind in clusters.ClusterEnv._cluster_types if not kind.opt_in_only_method)
    return "JAX_COORDINATOR_ADDRESS" in os.environ or any(kind.is_env_present() for kind in kinds)


def join_job(
    arguments: Mapping[str, Any],
    start_service: Callable[[str, int, Mapping[str, Any]], Any],
    before_connecting: Callable[[str, int, int], tuple[str, str]],
) -> None:
    """Call `jax.distributed.initialize`; raise RuntimeError if a process is missing, so that it can be called again.

    Three defects of jax 0.10.2 and 0.12.0 are avoided; none is reported upstream. A time-out aborts the process. After
    an error the state of the attempt stays. Gloo, which moves data between CPU devices of several processes, listens on
    the address of the machine's name (https://github.com/pytorch/gloo/issues/70) instead of the address with which this
    process connects to the coordinator.

    Args:
        arguments: arguments of `jax.distributed.initialize`.
        start_service: called in the first process with the coordinator's address, the number of processes and further
            options of jaxlib's service; returns an object with `shutdown()`.
        before_connecting: called with the coordinator's address, the index of this process and the number of
            processes; returns the coordinator's address for this process, and the host on which this process listens.
    """
    state, runtime = distributed.global_state, vars(distributed)["_jax"]
    own_host = ""

    def service(address: str, processes: int, recoverable: bool, **options: Any) -> Any:
        return start_service(state.coordinator_address or address, processes, options)

    def client(address: str, process: int, **options: Any) -> Any:
        nonlocal own_host
        address, own_host = before_connecting(address, process, state.num_processes)
        state.coordinator_address = address
        # Any callback turns a time-out into an exception. Without one, jaxlib aborts the process.
        return runtime.get_distributed_runtime_client(
            address, process, missed_heartbeat_callback=lambda status: None, shutdown_on_destruction=False, **options
        )

    standing_in = types.SimpleNamespace(
        get_distributed_runtime_service=service,
        get_distributed_runtime_client=client,
        create_preemption_sync_manager=runtime.create_preemption_sync_manager,
    )
    distributed._jax = standing_in  # pyright: ignore[reportPrivateImportUsage]
    try:
        jax.distributed.initialize(**arguments)
    except BaseException:
        if state.service is not None:
            state.service.shutdown()
        _log_of_cpp_from(_FATAL)  # the client logs at its end what the exception says already
        for name in ("service", "client", "preemption_sync_manager", "coordinator_address"):
            setattr(state, name, None)
        state.process_id, state.num_processes = 0, 1
        _log_of_cpp_from(_WARNING)
        raise
    finally:
        distributed._jax = runtime  # pyright: ignore[reportPrivateImportUsage]
    configure_joined(own_host)


def configure_joined(own_host: str) -> None:
    """Let Gloo, which a backend of CPU devices will start, listen on this host, and C++ log errors only."""
    _log_of_cpp_from(_ERROR)  # jaxlib warns of signals, which their handlers log
    state, runtime = distributed.global_state, vars(distributed)["_jax"]

    def make_cpu_client() -> Any:
        collectives = None  # JAX's setting
        if state.client is not None and getattr(jax.config, "jax_cpu_collectives_implementation", None) == "gloo":
            collectives = runtime.make_gloo_tcp_collectives(distributed_client=state.client, hostname=own_host)
        return xla_bridge.make_cpu_client(collectives)

    if not backend_started():
        xla_bridge.register_backend_factory("cpu", make_cpu_client, priority=0, fail_quietly=False)


def looks_for_gpus() -> bool:
    """Whether JAX has a plugin for GPUs of NVIDIA or AMD that its settings allow. Starts no backend."""
    xla_bridge._discover_and_register_pjrt_plugins()
    asked = (getattr(jax.config, "jax_platforms", None) or "gpu").split(",")
    names = {name for alias in asked for name in xla_bridge.expand_platform_alias(alias)}
    return bool(names & {"cuda", "rocm"} & set(xla_bridge._backend_factories))


def _log_of_cpp_from(level: int) -> None:
    """Set the level from which C++ logs, unless the user has set another than JAX's."""
    has_default = getattr(jax.config, "jax_logging_level", "NOTSET") == "NOTSET"
    if has_default and os.environ.get("TF_CPP_MIN_LOG_LEVEL") == str(_WARNING):
        utils.absl_set_min_log_level(level)


def leave_job() -> None:
    """Close the connection to the coordinator, without waiting for other processes."""
    jax.distributed.shutdown()


def abandon_job() -> Any:
    """Keep JAX from stopping the coordination service at exit, which would abort the other processes.

    JAX does not wait for running computations, either. The caller must keep the returned objects alive. For the defect
    see `coordination_service`.
    """
    atexit.unregister(api.clean_up)
    state = distributed.global_state
    kept = state.service, state.client, state.preemption_sync_manager
    state.service = state.client = state.preemption_sync_manager = None
    return kept


def has_preemption_service() -> bool:
    """Whether JAX's preemption service notifies the processes of a job of a preemption."""
    return distributed.global_state.preemption_sync_manager is not None
