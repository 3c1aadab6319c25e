"""Traces, checks, PRNG keys and meshes of JAX."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import jax
import jax.core
import jax.extend.core
import numpy as np
from jax._src import checkify as checkify_internals
from jax._src import config, core, dtypes, sharding_impls
from jax._src import mesh as mesh_lib
from jax._src.shard_map import shard_map_p
from jax.experimental import checkify

from keras_dist._unstable.class_guards import add_guard
from keras_dist.errors import ModelError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_AUTO = jax.sharding.AxisType.Auto
_KEY_IMPLS = ("threefry2x32", "rbg", "unsafe_rbg")


def is_traced(value: Any) -> bool:
    """Whether `value` is an abstract value inside a JAX transformation."""
    return isinstance(value, jax.core.Tracer)


def current_trace() -> Any:
    """Return the current trace, for comparison with a later one."""
    return jax.extend.core.get_opaque_trace_state(convention="nnx")


def is_tracing() -> bool:
    """Whether a JAX transformation is tracing a function."""
    return not core.trace_state_clean()


@contextlib.contextmanager
def outside_of_traces() -> Iterator[None]:
    """Context manager in which JAX computes at once, also inside of a function that it traces.

    `jax.ensure_compile_time_eval` computes the constants of a lowered program, too, so that the program has holes.
    """
    with jax.core.eval_context(), config.eager_constant_folding(False):
        yield


def check(is_right: Any, text: str, **values: Any) -> None:
    """Check a condition inside a function that `with_checks` wraps; `text` is formatted with the values."""
    checkify.check(is_right, text, **values)


def with_checks(function: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """Return a function that returns the error of its checks, for `failed_check`, and its result."""
    checkify_internals.error_checks[shard_map_p] = _checks_of_shard_map
    return checkify.checkify(function, errors=checkify.user_checks)


_jax_checks_of_shard_map = checkify_internals.error_checks[shard_map_p]


def _checks_of_shard_map(*arguments: Any, **params: Any) -> tuple[Any, Any]:
    """Call a `shard_map` without checks as it is.

    JAX 0.10 to 0.12 returns an error from each shard, which fails in a loop, and where the context has a mesh.
    """
    at = next(index for index, each in enumerate(arguments) if isinstance(each, checkify.Error))  # 1 from JAX 0.12 on
    error, enabled, *values = arguments[at:]
    effects = params["jaxpr"].effects
    if enabled != checkify.user_checks or any(isinstance(each, checkify_internals.ErrorEffect) for each in effects):
        return _jax_checks_of_shard_map(*arguments, **params)
    return error, shard_map_p.bind(*values, **shard_map_p.get_bind_params(params))


def failed_check(error: Any) -> str | None:
    """Return the text of the first check that failed, or None."""
    text = error.get()
    return None if text is None else text.removesuffix(" (`check` failed)")


def is_key_dtype(dtype: Any) -> bool:
    """Whether `dtype` is a dtype of typed PRNG keys, `key<fry>`."""
    return jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)


def key_impl(dtype: Any) -> str:
    """Return the name of the generator of typed PRNG keys, such as `threefry2x32`."""
    found: list[Any] = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), jax.ShapeDtypeStruct((), dtype))
    return str(found[0])


def dtype_named(name: str) -> Any:
    """Return the dtype of a name such as `bfloat16` or `key<fry>`."""
    if not name.startswith("key<"):
        return np.dtype(name)
    keys = [jax.eval_shape(functools.partial(jax.random.key, impl=impl), 0) for impl in _KEY_IMPLS]
    return next(key.dtype for key in keys if str(key.dtype) == name)


def itemsize(dtype: Any) -> int:
    """Return the bytes of one element of `dtype`, also of PRNG keys."""
    if is_key_dtype(dtype):
        data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype))
        return int(np.prod(data.shape)) * data.dtype.itemsize
    return int(np.dtype(dtype).itemsize)


@contextlib.contextmanager
def without_mesh() -> Iterator[None]:
    """Hide the mesh that the caller has set."""
    with (
        jax.sharding.use_abstract_mesh(mesh_lib.empty_abstract_mesh),
        sharding_impls._internal_use_concrete_mesh(mesh_lib.empty_concrete_mesh),
    ):
        yield


def has_explicit_mesh(mesh: Any = None) -> bool:
    """Whether a mesh, or the mesh that is set, has Explicit axes: under it JAX refuses arrays of one with Auto axes."""
    return jax.sharding.AxisType.Explicit in (mesh or jax.sharding.get_abstract_mesh()).axis_types


def mesh_of_programs(owner: Any) -> jax.sharding.Mesh | None:
    """Return the mesh on which an object computes. `distribution.tracing` replaces this function."""
    return None


_NEEDS_MESH = ("not under a mesh context", "mesh cannot be empty", "only refer to Auto axes", "passed to shard_map")


def hides_mesh(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate a function that users call: a mesh that they have set is hidden while it runs.

    An equal mesh with Auto axes stays, and in a trace every mesh with Auto axes, since layers may use bare specs. From
    a mesh with Explicit axes, arrays and traced values go to Auto axes, and results come back to it.
    """
    ambient, no_mesh = jax.sharding.get_abstract_mesh, mesh_lib.empty_abstract_mesh

    @functools.wraps(function)
    def hidden(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if ambient() is no_mesh:  # .1 us
            return function(*args, **kwargs)
        is_explicit, ours = has_explicit_mesh(), mesh_of_programs(args[0] if args else None)
        if not is_explicit and (is_tracing() or mesh_of_context() in (None, ours)):
            return function(*args, **kwargs)
        if is_explicit:
            args, kwargs = _map_arrays(_to_auto_axes, (args, kwargs), ours)
        try:
            with without_mesh():
                result = function(*args, **kwargs)
            return _map_arrays(_to_mesh_of_context, result) if is_explicit else result
        except ValueError as error:
            if not any(text in str(error) for text in _NEEDS_MESH):
                raise
            what = "the module is written for a mesh with Explicit axes"
            fix = "kd.set_distribution(...) before the model is made, and jax.lax.with_sharding_constraint in it"
            raise ModelError(what, given=str(error), fix=fix) from error

    return hidden


def hide_mesh_in(cls: type[Result]) -> type[Result]:
    """Apply `hides_mesh` to the public methods that a class defines; return the class."""
    for name, member in list(vars(cls).items()):
        is_entry = name in ("__call__", "__init__", "__getitem__", "__setitem__") or not name.startswith("_")
        if is_entry and inspect.isfunction(member) and name not in ("build", "call"):  # which `__call__` calls
            setattr(cls, name, hides_mesh(member))
    return cls


add_guard(hide_mesh_in)


def combinable(array: Any) -> Any:
    """Return an array, or a traced value, for the mesh that is set if it has Explicit axes, else for Auto axes."""
    if not isinstance(array, jax.Array):
        return array
    return _to_mesh_of_context(array) if has_explicit_mesh() else _to_auto_axes(array)


def _map_arrays(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to the arrays in lists, tuples and dicts; objects stay the same."""
    is_leaf: Callable[[Any], bool] = lambda node: type(node) not in (list, tuple, dict)  # noqa: E731
    return jax.tree.map(
        lambda one: function(one, *others) if isinstance(one, jax.Array) else one, tree, is_leaf=is_leaf
    )


def _to_auto_axes(array: jax.Array, ours: jax.sharding.Mesh | None = None) -> jax.Array:
    """Return it for a mesh with Auto axes: in the same memory, unless it is on other devices than `ours`."""
    if is_traced(array):
        spec = jax.sharding.PartitionSpec(*[None] * array.ndim)
        if has_explicit_mesh() and jax.typeof(array).sharding.mesh.empty:
            array = jax.sharding.reshard(array, spec)  # so that its gradient is on that mesh, too
        mesh: Any = jax.typeof(array).sharding.mesh
        if ours is not None and mesh.size != ours.size and not mesh.empty:
            given, fix = f"{mesh.size} and {ours.size} devices", "jax.set_mesh(mesh.backend_mesh) around the trace"
            raise ModelError("the mesh of a trace has other devices than the model's", given=given, fix=fix)
        if has_explicit_mesh(mesh):
            with jax.sharding.use_abstract_mesh(mesh.update_axis_types(dict.fromkeys(mesh.axis_names, _AUTO))):
                return jax.sharding.reshard(array, spec)
        return array
    sharding: Any = array.sharding
    if ours is not None and sharding.num_devices > 1 and sharding._device_assignment != tuple(ours.devices.flat):
        sharding = _sharding_on(ours, array)
    elif has_explicit_mesh(getattr(sharding, "mesh", mesh_lib.empty_abstract_mesh)):
        sharding = sharding.update(mesh=jax.sharding.Mesh(sharding.mesh.devices, sharding.mesh.axis_names))
    with without_mesh():
        return array if sharding is array.sharding else jax.device_put(array, sharding)


def _to_mesh_of_context(array: jax.Array) -> jax.Array:
    """Return it for the mesh that is set, without a mesh in its type: JAX asks for no sharding of results."""
    ours, mesh = jax.typeof(array).sharding.mesh, mesh_of_context()
    if ours.empty or ours == jax.sharding.get_abstract_mesh() or mesh is None:
        return array
    if is_traced(array):
        return jax.sharding.reshard(array, jax.sharding.PartitionSpec())
    sharding = _sharding_on(mesh, array)
    tiles, devices = sharding._to_xla_hlo_sharding(array.ndim), tuple(mesh.devices.flat)
    return jax.device_put(array, sharding_impls.GSPMDSharding(devices, tiles, memory_kind=sharding.memory_kind))


def _sharding_on(mesh: jax.sharding.Mesh, array: jax.Array) -> jax.sharding.NamedSharding:
    """Return the sharding of an array as a sharding on this mesh; another split if its axes cannot express it."""
    given, spec = array.sharding, jax.sharding.PartitionSpec()
    try:
        spec = sharding_impls.parse_flatten_op_sharding(given._to_xla_hlo_sharding(array.ndim), mesh)[0]
    except (ValueError, LookupError, AssertionError):
        dims = [dim for dim, size in enumerate(array.shape) if size % mesh.size == 0]
        spec = jax.sharding.PartitionSpec(*[None] * dims[0], mesh.axis_names) if dims else spec
    return jax.sharding.NamedSharding(mesh, spec, memory_kind=given.memory_kind)


@contextlib.contextmanager
def in_mesh(mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> Iterator[None]:
    """Set JAX's mesh, in both of its ways, for `shard_map`, bare specs and modules; a mesh set in a trace stays."""
    with contextlib.ExitStack() as stack:
        if has_explicit_mesh():
            stack.enter_context(without_mesh())
        inner = is_tracing()
        if inner and not jax.sharding.get_abstract_mesh().empty:
            yield
            return
        if isinstance(mesh, jax.sharding.AbstractMesh):
            stack.enter_context(jax.sharding.use_abstract_mesh(mesh))
            yield
            return
        stack.enter_context(jax.sharding.use_abstract_mesh(mesh.abstract_mesh) if inner else jax.set_mesh(mesh))
        if not getattr(jax.config, "jax_disallow_mesh_context_manager", False):
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                stack.enter_context(mesh)  # models of tunix read `thread_resources`
        yield


def mesh_of_context() -> jax.sharding.Mesh | None:
    """Return the mesh set by `jax.set_mesh`, also while a function is traced, or None."""
    mesh = mesh_lib.get_concrete_mesh()
    return None if mesh.empty else mesh


def refuse_as_array(cls: type, refuse: Callable[[Any], Exception]) -> None:
    """Raise `refuse(value)` where an object of this class is passed to a primitive of JAX."""

    def handler(value: Any) -> None:
        raise refuse(value)

    dtypes.canonicalize_value_handlers[cls] = handler
