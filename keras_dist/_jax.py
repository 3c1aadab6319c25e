"""Calls of JAX and Flax that differ between versions. Nothing else imports them."""

from __future__ import annotations

import contextlib
import functools
import os
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.core
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from flax import errors as flax_errors
from flax import nnx
from flax.core import meta, spmd
from flax.nnx import reprlib
from jax._src import clusters, core, distributed, dtypes, xla_bridge
from jax._src import mesh as mesh_lib
from jax.experimental import checkify
from jaxlib import utils  # pyright: ignore[reportAttributeAccessIssue]

from keras_dist import _paths

try:
    from jax.experimental.shard_alike import shard_alike as _shard_alike
except ImportError:
    _shard_alike = None

TraceError = flax_errors.TraceContextError
"""What Flax raises when a compiled function changes a module that was made outside of it."""

raw_value: Any = nnx.Variable.__dict__["_raw_value"]
"""The descriptor of where a variable of Flax has its array, which a subclass may put something in front of."""

_WARNING, _ERROR, _FATAL = 1, 2, 3  # as in TF_CPP_MIN_LOG_LEVEL, for which JAX takes the first
_KEY_IMPLS = ("threefry2x32", "rbg", "unsafe_rbg")


def backend_started() -> bool:
    """Whether a JAX backend exists already, so that devices can no longer be configured."""
    return bool(xla_bridge._backends)  # without its lock: whoever makes one holds that while he waits for others


def _note_fork() -> None:
    global _is_forked
    _is_forked = backend_started()


_is_forked = False
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def is_forked() -> bool:
    """Whether this process was forked from one whose JAX backend had started: its threads are not here."""
    return _is_forked


def configured_cpu_devices() -> int:
    """Return the number of fake CPU devices in JAX's own config, or 0."""
    return max(int(getattr(jax.config, "jax_num_cpu_devices", 0) or 0), 0)


def job_client() -> Any:
    """Return the client of JAX's distributed runtime; None without `initialize`."""
    return distributed.global_state.client


def coordinator_address() -> str | None:
    """Return the address of the job's coordinator; None without `initialize`."""
    return distributed.global_state.coordinator_address


def place_in_job() -> tuple[int, int]:
    """Return the index of this process and the number of processes, as `initialize` was told them."""
    return distributed.global_state.process_id, distributed.global_state.num_processes


def detects_job() -> bool:
    """Whether `jax.distributed.initialize` finds out by itself which processes form a job."""
    kinds = (kind for kind in clusters.ClusterEnv._cluster_types if not kind.opt_in_only_method)
    return "JAX_COORDINATOR_ADDRESS" in os.environ or any(kind.is_env_present() for kind in kinds)


def join_job(
    arguments: Mapping[str, Any],
    start_service: Callable[[str, int, Mapping[str, Any]], Any],
    before_connecting: Callable[[str, int, int], str],
) -> None:
    """Call `jax.distributed.initialize`, with a coordination service and time-outs that raise of our own.

    Once joined, Gloo, which moves data between CPU devices of several processes, listens on the address with which this
    process connects to the coordinator. By itself it takes the one that the machine's name has.

    Args:
        arguments: those of `jax.distributed.initialize`.
        start_service: called in the first process with the coordinator's address, the number of processes and further
            options of jaxlib's service; returns an object with `shutdown()`.
        before_connecting: called with the coordinator's address, the index of this process and their number; returns
            the address, without a port, with which this process connects.

    Raises:
        RuntimeError: the processes did not all come in time. Nothing is left of the attempt.
    """
    state, runtime = distributed.global_state, vars(distributed)["_jax"]
    own_address: str | None = None

    def service(address: str, processes: int, recoverable: bool, **options: Any) -> Any:
        bound = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", state.coordinator_address)
        return start_service(bound or address, processes, options)

    def client(address: str, process: int, **options: Any) -> Any:
        nonlocal own_address
        own_address = before_connecting(address, process, state.num_processes)
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
        _log_of_cpp_from(_FATAL)  # the client says at its end that it has failed, which the exception tells
        for name in ("service", "client", "preemption_sync_manager", "coordinator_address"):
            setattr(state, name, None)
        state.process_id, state.num_processes = 0, 1
        _log_of_cpp_from(_WARNING)
        raise
    else:
        _log_of_cpp_from(_ERROR)  # a warning is that a signal has come, which whoever handles it says
    finally:
        distributed._jax = runtime  # pyright: ignore[reportPrivateImportUsage]

    def make_cpu_client() -> Any:
        collectives = None  # those of JAX's settings
        if state.client is not None and getattr(jax.config, "jax_cpu_collectives_implementation", None) == "gloo":
            collectives = runtime.make_gloo_tcp_collectives(distributed_client=state.client, hostname=own_address)
        return xla_bridge.make_cpu_client(collectives)

    xla_bridge.register_backend_factory("cpu", make_cpu_client, priority=0, fail_quietly=False)


def looks_for_gpus() -> bool:
    """Whether JAX has a plugin for GPUs of NVIDIA or AMD, and no setting keeps it from them. Starts no backend."""
    xla_bridge._discover_and_register_pjrt_plugins()
    asked = (getattr(jax.config, "jax_platforms", None) or "gpu").split(",")
    names = {name for alias in asked for name in xla_bridge.expand_platform_alias(alias)}
    return bool(names & {"cuda", "rocm"} & set(xla_bridge._backend_factories))


def _log_of_cpp_from(level: int) -> None:
    """Let C++ log what is of this level or above, unless the user has chosen another than JAX's."""
    has_default = getattr(jax.config, "jax_logging_level", "NOTSET") == "NOTSET"
    if has_default and os.environ.get("TF_CPP_MIN_LOG_LEVEL") == str(_WARNING):
        utils.absl_set_min_log_level(level)


def leave_job() -> None:
    """Close the connection to the coordinator, without waiting for other processes."""
    jax.distributed.shutdown()


def abandon_job() -> Any:
    """Keep JAX from ending the coordination service at exit, which would abort the others. Keep what it returns."""
    state = distributed.global_state
    kept = state.service, state.client, state.preemption_sync_manager
    state.service = state.client = state.preemption_sync_manager = None
    return kept


def has_preemption_service() -> bool:
    """Whether JAX's preemption service tells the processes of a job when one of them is to end."""
    return distributed.global_state.preemption_sync_manager is not None


def is_traced(value: Any) -> bool:
    """Whether `value` is an abstract value inside a JAX transformation."""
    return isinstance(value, jax.core.Tracer)


def current_trace() -> Any:
    """What traces now, to be compared with what does at another time."""
    return jax.extend.core.get_opaque_trace_state(convention="nnx")


def is_tracing() -> bool:
    """Whether a JAX transformation traces a function now."""
    return not core.trace_state_clean()


def check(is_right: Any, text: str, **values: Any) -> None:
    """Check a condition inside a function that is called `with_checks`; the text of its error holds the values."""
    checkify.check(is_right, text, **values)


def with_checks(function: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """Return a function that returns the error of its checks, for `failed_check`, and its results."""
    return checkify.checkify(function, errors=checkify.user_checks)


def failed_check(error: Any) -> str | None:
    """Return the text of the first check that failed, or None."""
    text = error.get()
    return None if text is None else text.removesuffix(" (`check` failed)")


def is_variable(node: Any) -> bool:
    """Whether `node` hides its array behind the name `value`: an NNX `Variable`, or a box of Linen's metadata."""
    return isinstance(node, nnx.Variable | meta.Partitioned)


def is_key_dtype(dtype: Any) -> bool:
    """Whether `dtype` is that of typed PRNG keys (`key<fry>`)."""
    return jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)


def key_impl(dtype: Any) -> str:
    """Return the name of the generator that typed PRNG keys of `dtype` are of (`threefry2x32`)."""
    found: list[Any] = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), jax.ShapeDtypeStruct((), dtype))
    return str(found[0])


def dtype_named(name: str) -> Any:
    """Return the element type of a name such as `bfloat16` or `key<fry>`."""
    if not name.startswith("key<"):
        return np.dtype(name)
    keys = [jax.eval_shape(functools.partial(jax.random.key, impl=impl), 0) for impl in _KEY_IMPLS]
    return next(key.dtype for key in keys if str(key.dtype) == name)


def itemsize(dtype: Any) -> int:
    """Return the bytes of one element of `dtype`, which may be that of PRNG keys."""
    if is_key_dtype(dtype):
        data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype))
        return int(np.prod(data.shape)) * data.dtype.itemsize
    return int(np.dtype(dtype).itemsize)


@contextlib.contextmanager
def in_mesh(mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> Iterator[None]:
    """Set the mesh of JAX's context inside, in both of its ways, for `shard_map`, bare specs and modules.

    Inside of a trace that goes on already, the mesh that is there stays.
    """
    inner = is_tracing()
    if inner and not jax.sharding.get_abstract_mesh().empty:
        yield
        return
    with contextlib.ExitStack() as stack:
        if isinstance(mesh, jax.sharding.AbstractMesh):
            stack.enter_context(jax.sharding.use_abstract_mesh(mesh))
            yield
            return
        stack.enter_context(jax.sharding.use_abstract_mesh(mesh.abstract_mesh) if inner else jax.set_mesh(mesh))
        if not getattr(jax.config, "jax_disallow_mesh_context_manager", False):
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                stack.enter_context(mesh)  # for what reads `thread_resources`, as models of tunix do
        yield


def mesh_of_context() -> jax.sharding.Mesh | None:
    """Return the mesh that `jax.set_mesh` has set, also while a function is traced; None without."""
    mesh = mesh_lib.get_concrete_mesh()
    return None if mesh.empty else mesh


def shard_alike(array: Any, like: Any) -> Any:
    """Return a traced array that lies as another one of its shape does, whose layout XLA may still choose.

    JAX from 0.12 on has nothing for it. There an operation that never takes a value of the other one ties them: XLA
    then gives them one layout, unless that of `array` is decided elsewhere.
    """
    if _shard_alike is not None:
        return _shard_alike(array, like)[0]
    never = jax.lax.optimization_barrier(jnp.zeros(array.shape, bool))
    return jax.lax.select(never, like.astype(array.dtype), array)


def refuse_as_array(cls: type, refuse: Callable[[Any], Exception]) -> None:
    """Raise `refuse(value)` where an object of this class is given to a primitive of JAX."""

    def handler(value: Any) -> None:
        raise refuse(value)

    dtypes.canonicalize_value_handlers[cls] = handler


def without_eager_sharding() -> Any:
    """Return a context in which Flax does not place annotated variables by itself."""
    return nnx.use_eager_sharding(False)


def variable_role(variable: Any) -> str:
    """Return the role of an NNX `Variable`: parameter, rng, state or statistic; parameter for a box of Linen's."""
    if isinstance(variable, nnx.Param | meta.Partitioned) or getattr(type(variable), "is_parameter", False):
        return "parameter"
    if isinstance(variable, nnx.RngState):
        return "rng"
    return "state" if variable.get_metadata().get("changes_always") else "statistic"


def metadata_of(variable: Any) -> dict[str, Any]:
    """Return the metadata of an NNX `Variable` or a box of Linen's; an empty dict for anything else."""
    if isinstance(variable, meta.Partitioned):
        return {"out_sharding": variable.names, "sharding_rules": getattr(variable, "rules", None)}
    return variable.get_metadata() if isinstance(variable, nnx.Variable) else {}


def sharding_metadata(variable: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the sharding metadata of a variable, under whichever name; None without any.

    Returns:
        An entry for each dim, as it is written there, and what the names in it stand for by Flax's own logical rules.
    """
    metadata = metadata_of(variable)
    sharding = metadata.get("out_sharding")  # also of what was given as `sharding` or `sharding_names`
    sharding = getattr(sharding, "sharding", sharding)  # of a `jax.experimental.layout.Format`
    sharding = getattr(sharding, "spec", sharding)  # of a `NamedSharding`
    if not sharding:
        return None
    is_sequence = isinstance(sharding, tuple | list | jax.sharding.PartitionSpec)
    entries = tuple(sharding) if is_sequence else (sharding,)
    if isinstance(sharding, jax.sharding.PartitionSpec):  # what it leaves out is unsharded
        entries += (None,) * (getattr(variable.get_raw_value(), "ndim", 0) - len(entries))
    return entries, dict([*spmd.get_logical_axis_rules(), *(metadata.get("sharding_rules") or ())])


def is_nnx_state(tree: Any) -> bool:
    """Whether `tree` is an NNX state, whose array leaves outside Variables are buffers of the module."""
    return isinstance(tree, nnx.State)


def state_of(tree: Any) -> Any:
    """Return the state of an NNX module; any other tree as it is."""
    return nnx.state(tree) if isinstance(tree, nnx.Module) else tree


class _RngStream(nnx.RngStream):
    """A stream that replaces its count whole.

    Flax 0.12 writes `count[...] = value`, for which it compares shardings. JAX 0.10 answers the question of a traced
    value for its sharding with an error as long as the trace: 48 blocks took five seconds more to be created.
    """

    def __call__(self) -> jax.Array:
        self.count._check_can_update()
        count = self.count[...]
        self.count.set_value(count + 1)
        return jax.random.fold_in(self.key[...], count)


def rngs_for_creation(key: jax.Array) -> nnx.Rngs:
    """Return `nnx.Rngs(key)` for a factory of modules that runs in a trace."""
    rngs = nnx.Rngs()
    rngs.default = _RngStream(key, tag="default")  # pyright: ignore[reportAttributeAccessIssue]
    return rngs


def tied_paths(tree: Any) -> list[list[str]]:
    """Return groups of paths in an NNX module that lead to one submodule or Variable; none for other trees."""
    if not isinstance(tree, nnx.Module):
        return []
    return [[_paths.join(_paths.visible(parts)) for parts in group] for group in nnx.find_duplicates(tree)]


def attribute_order(module: Any) -> dict[tuple[Any, ...], list[str]]:
    """Return the names of the attributes of each submodule, by path, in the order in which they were assigned."""
    return {path: list(vars(node)) for path, node in nnx.iter_graph(module) if isinstance(node, nnx.Module)}


def restore_order(module: Any, order: Mapping[tuple[Any, ...], Sequence[str]]) -> None:
    """Restore the order of the attributes of a module, which `nnx.merge` sorts; loops over dicts depend on it."""
    for path, node in list(nnx.iter_graph(module)):
        if isinstance(node, nnx.Module) and path in order:
            attributes = dict(vars(node))
            vars(node).clear()
            vars(node).update({name: attributes[name] for name in order[path] if name in attributes} | attributes)


def shown_as(text: str) -> Any:
    """Return what a module's `__nnx_repr__` yields for Flax to show it as `text`."""
    return reprlib.Object(type=text, start="", end="")


def adopt_traced_buffers(module: Any) -> None:
    """Make the raw arrays that a module assigned to itself inside a trace part of its state.

    Flax sees that `self.table = jnp.arange(8)` is data when the array is concrete; inside a trace it takes the traced
    value for a static attribute, and the trace leaks.
    """
    for _, node in list(nnx.iter_graph(module)):
        if not isinstance(node, nnx.Pytree):
            continue
        for name, value in list(vars(node).items()):
            if not node._pytree__nodes.get(name, False) and any(map(is_traced, jax.tree.leaves(value))):
                setattr(node, name, nnx.data(value))
