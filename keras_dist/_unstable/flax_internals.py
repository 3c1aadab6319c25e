"""Access to private parts of Flax: variable roles, sharding metadata, attribute order, traced buffers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from flax import errors as flax_errors
from flax import nnx
from flax.core import meta, spmd
from flax.nnx import reprlib
from jax._src import core

from keras_dist._unstable.jax_internals import is_traced

TraceError = flax_errors.TraceContextError
"""Raised by Flax when a compiled function changes a module that was created outside of it."""

raw_value: Any = nnx.Variable.__dict__["_raw_value"]
"""The descriptor of the attribute that holds the array of an `nnx.Variable`."""

PRIVATE_PREFIXES = ("_pytree__", "_object__")
"""Prefixes of attributes in which Flax keeps the bookkeeping of modules."""


class InterceptedVariable(nnx.Variable):
    """A Variable whose array is read by `_read_raw` and written by `_write_raw`.

    Flax reads and writes the attribute `_raw_value` itself, instead of calling `get_raw_value` and `set_raw_value`.

    Seen with flax 0.12.8 and 0.12.12. Upstream: not reported.
    """

    __slots__ = ()

    @property
    def _raw_value(self) -> Any:
        return self._read_raw()

    @_raw_value.setter
    def _raw_value(self, value: Any) -> None:
        self._write_raw(value)

    def _read_raw(self) -> Any:
        return raw_value.__get__(self)

    def _write_raw(self, value: Any) -> None:
        raw_value.__set__(self, value)


def is_data_attribute(module: Any, name: str) -> bool:
    """Return whether Flax treats an attribute of a module as data, and not as static.

    Seen with flax 0.12.8 and 0.12.12, where `nnx.is_data` takes a value, not an attribute. Upstream: not reported.
    """
    return module._pytree__nodes.get(name, False)


def trace_state_of(module: Any) -> Any:
    """Return the state of the trace in which a module was created; `is_valid()` is true inside this trace.

    Seen with flax 0.12.8 and 0.12.12, which compare it only to raise `TraceContextError`. Upstream: not reported.
    """
    return module._pytree__state.trace_state


def in_trace_of(module: Any) -> contextlib.AbstractContextManager[object]:
    """Return a context in which JAX traces where a module was created: outside of all traces, or in an outer trace.

    There Flax lets the module be changed, and new arrays are not tracers of the inner trace.

    Seen with jax 0.10.2 and 0.12, whose `jax.core.eval_context` leaves all traces. Upstream: not reported.
    """
    trace = trace_state_of(module).jax_trace._trace_ref()
    return contextlib.nullcontext() if trace is None else core.set_current_trace(trace)


def is_variable(node: Any) -> bool:
    """Whether `node` holds an array as `value`: an NNX `Variable`, or a box of Linen's metadata."""
    return isinstance(node, nnx.Variable | meta.Partitioned)


def without_eager_sharding() -> Any:
    """Return a context in which Flax does not shard annotated variables when they are created."""
    return nnx.use_eager_sharding(False)


def variable_role(variable: Any) -> str:
    """Return the role of an NNX `Variable` (parameter, rng, state or statistic); boxes of Linen are parameters."""
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
    """Return the entry of each dim in a variable's sharding metadata, and Flax's rules for logical names, or None."""
    metadata = metadata_of(variable)
    sharding = metadata.get("out_sharding")  # also set by the arguments `sharding` and `sharding_names`
    sharding = getattr(sharding, "sharding", sharding)  # of a `jax.experimental.layout.Format`
    sharding = getattr(sharding, "spec", sharding)  # of a `NamedSharding`
    if not sharding:
        return None
    is_sequence = isinstance(sharding, tuple | list | jax.sharding.PartitionSpec)
    entries = tuple(sharding) if is_sequence else (sharding,)
    if isinstance(sharding, jax.sharding.PartitionSpec):  # dims beyond its end are unsharded
        entries += (None,) * (getattr(variable.get_raw_value(), "ndim", 0) - len(entries))
    return entries, dict([*spmd.get_logical_axis_rules(), *(metadata.get("sharding_rules") or ())])


def is_nnx_state(tree: Any) -> bool:
    """Whether `tree` is an NNX state, whose array leaves outside Variables are buffers of the module."""
    return isinstance(tree, nnx.State)


def state_of(tree: Any) -> Any:
    """Return the state of an NNX module; return any other tree unchanged."""
    return nnx.state(tree) if isinstance(tree, nnx.Module) else tree


class _RngStream(nnx.RngStream):
    """A stream whose count is replaced, instead of updated in place.

    Flax updates `count[...] = value`, which reads `value.sharding`. In a trace JAX 0.10 then raises an error whose text
    walks the whole trace: 400 draws take 2.7 s instead of 0.2 s.

    Seen with flax 0.12.8 on jax 0.10.2. Upstream: https://github.com/jax-ml/jax/pull/40041 (fixed in jax 0.12).
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


def attribute_order(module: Any) -> dict[tuple[Any, ...], list[str]]:
    """Return the attribute names of each submodule, by path, in the order of assignment."""
    return {path: list(vars(node)) for path, node in nnx.iter_graph(module) if isinstance(node, nnx.Module)}


def restore_order(module: Any, order: Mapping[tuple[Any, ...], Sequence[str]]) -> None:
    """Restore the order of a module's attributes, which `nnx.merge` sorts; loops over `vars` depend on it.

    Seen with flax 0.12.8 and 0.12.12. Upstream: not reported.
    """
    for path, node in list(nnx.iter_graph(module)):
        if isinstance(node, nnx.Module) and path in order:
            attributes = dict(vars(node))
            vars(node).clear()
            vars(node).update({name: attributes[name] for name in order[path] if name in attributes} | attributes)


def shown_as(text: str) -> Any:
    """Return the value that `__nnx_repr__` yields to be displayed as `text`."""
    return reprlib.Object(type=text, start="", end="")


def adopt_traced_buffers(module: Any) -> None:
    """Make arrays that a module assigned to attributes inside a trace part of its state.

    Flax recognises a concrete array in `self.table = jnp.arange(8)` as data. It takes a traced one for a static
    attribute, and the tracer leaks.

    Seen with flax 0.12.8 and 0.12.12. Upstream: not reported.
    """
    for _, node in list(nnx.iter_graph(module)):
        if not isinstance(node, nnx.Pytree):
            continue
        for name, value in list(vars(node).items()):
            if not is_data_attribute(node, name) and any(map(is_traced, jax.tree.leaves(value))):
                setattr(node, name, nnx.data(value))
