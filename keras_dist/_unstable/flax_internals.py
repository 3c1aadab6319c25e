"""Access to private parts of Flax: variable roles, sharding metadata, attribute order, traced buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from flax import errors as flax_errors
from flax import nnx
from flax.core import meta, spmd
from flax.nnx import reprlib

from keras_dist._unstable.jax_internals import is_traced

TraceError = flax_errors.TraceContextError
"""What Flax raises when a compiled function changes a module that was made outside of it."""


raw_value: Any = nnx.Variable.__dict__["_raw_value"]
"""The descriptor of where a variable of Flax has its array, which a subclass may put something in front of."""


def is_variable(node: Any) -> bool:
    """Whether `node` hides its array behind the name `value`: an NNX `Variable`, or a box of Linen's metadata."""
    return isinstance(node, nnx.Variable | meta.Partitioned)


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


def duplicates_in(tree: Any) -> list[list[tuple[Any, ...]]]:
    """Return groups of key paths in an NNX module that lead to one submodule or Variable; none for other trees."""
    return nnx.find_duplicates(tree) if isinstance(tree, nnx.Module) else []


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
