"""Half precision arithmetic of `flax.nnx` modules, whose parameters keep their element types.

Parameters are exchanged for cast ones during the call, and modules that own some cast their inputs: without that, one
float32 output, such as that of a norm that is kept, would promote everything after it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from keras_dist._support import tree_paths
from keras_dist._support.located_warnings import warn
from keras_dist._support.safe_patterns import pattern
from keras_dist._support.types import DTypeLike, PyTree
from keras_dist.distribution import trace_context
from keras_dist.distribution.variables import tied_names, tied_paths
from keras_dist.errors import nearest
from keras_dist.layers.base.layer import Layer
from keras_dist.mixed_precision import DTypePolicy

T = TypeVar("T")

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# graphs of Flax have no types


def compute_under(policy: DTypePolicy, module: nnx.Module, call: Callable[[], T]) -> T:
    """Return `call()`, during which `module` computes under a mixed policy; its parameters are restored afterwards.

    Parameters are cast once, and modules that own some cast their floating inputs, unless `policy.keep` matches or a
    module has its own `dtype`. A warning names modules that still compute in a wider type.
    """
    compute = jnp.dtype(policy.compute_dtype)
    wide: dict[str, str] = {}
    kept = None if policy.keep is None else pattern(policy.keep)
    tied = tied_paths(module)
    found = _owned_parameters(module)
    names = {path: tied_names(path, tied) for path, _, _ in found}
    chosen = {path for path in names if kept is not None and any(map(kept.fullmatch, names[path]))}
    cast: list[tuple[nnx.Variable[Any], Any, Any]] = []
    owners: dict[int, tuple[nnx.Module, str]] = {}
    for path, variable, (owner, place) in found:
        before = variable.get_raw_value()
        if path in chosen or not _is_floating(before) or before.dtype.itemsize <= compute.itemsize:
            continue
        own = _own_dtype(owner)
        if own not in (None, compute):
            wide[place] = f"{type(owner).__name__} with dtype={own}"
            continue
        owners[id(owner)] = owner, place
        cast.append((variable, before, before.astype(compute)))
    classes = [(owner, type(owner), place) for owner, place in owners.values()]
    try:
        for variable, _, narrow in cast:
            variable.set_raw_value(narrow)
        for owner, cls, place in classes:
            object.__setattr__(owner, "__class__", _casting_class(cls, compute.name, place))
        with trace_context.traced_with(wide=wide):
            result = call()
    finally:
        for owner, cls, _ in classes:
            object.__setattr__(owner, "__class__", cls)
        for variable, before, _ in cast:
            variable.set_raw_value(before)
    _warn(policy, wide, [] if kept is None or chosen else [name for path in names for name in names[path]])
    return result


def precision_of_modules(policy: DTypePolicy) -> DTypePolicy | None:
    """Return the policy for foreign modules if it is mixed, else None; warn if they ignore it."""
    if not policy.is_mixed and policy.name != "float32":
        _warn_once(
            f"the dtype policy {policy.name!r} does not change flax.nnx modules: they keep the element types that they "
            f"were made with; pass them param_dtype={policy.name!r} and dtype={policy.name!r}, or choose a mixed policy"
        )
    return policy if policy.is_mixed else None


def follow(policy: DTypePolicy, module: nnx.Module) -> None:
    """Change the class of `module` so that calls compute under a mixed policy and return float32."""
    if callable(module):
        object.__setattr__(module, "__class__", _computing_class(type(module), policy))


def cast_floats(tree: PyTree, dtype: DTypeLike) -> PyTree:
    """Cast the floating arrays in a tree; modules and variables in it stay the same objects."""

    def cast(leaf: Any) -> Any:
        return leaf.astype(dtype) if _is_floating(leaf) and leaf.dtype != dtype else leaf

    return jax.tree.map(cast, tree, is_leaf=_is_of_flax)


@functools.lru_cache(maxsize=1024)
def _casting_class(cls: type, compute: str, path: str) -> type:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = cls.__call__(self, *cast_floats(args, compute), **cast_floats(kwargs, compute))
        wide, itemsize = trace_context.current().wide, jnp.dtype(compute).itemsize
        if wide is not None and path:  # not for outputs of the whole model
            for leaf in jax.tree.leaves(outputs, is_leaf=_is_of_flax):
                if _is_floating(leaf) and leaf.dtype.itemsize > itemsize:
                    wide[path] = f"{cls.__name__} returns {leaf.dtype}"
        return outputs

    return type(cls.__name__, (cls,), {"__call__": __call__, "__module__": cls.__module__})


@functools.lru_cache(maxsize=1024)
def _computing_class(cls: type, policy: DTypePolicy) -> type:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = cast_floats((args, kwargs), policy.compute_dtype)
        outputs = compute_under(policy, self, lambda: cls.__call__(self, *args, **kwargs))
        return cast_floats(outputs, policy.variable_dtype)

    return type(cls.__name__, (cls,), {"__call__": __call__, "__module__": cls.__module__})


def _owned_parameters(module: nnx.Module) -> list[tuple[str, nnx.Variable[Any], tuple[nnx.Module, str]]]:
    """Return parameters with their paths and owners, without parameters of layers."""
    nodes = {path: node for path, node in nnx.iter_graph(module) if isinstance(node, nnx.Module | nnx.Variable)}
    modules = {path: node for path, node in nodes.items() if isinstance(node, nnx.Module)}
    found: list[tuple[str, nnx.Variable[Any], tuple[nnx.Module, str]]] = []
    for path, variable in nodes.items():
        if not isinstance(variable, nnx.Param):
            continue
        around = [path[:length] for length in range(len(path)) if path[:length] in modules]
        if any(isinstance(modules[place], Layer) for place in around):
            continue
        place = [place for place in around if not isinstance(modules[place], nnx.List | nnx.Dict)][-1]
        owner = modules[place], tree_paths.join(tree_paths.visible(place))
        found.append((tree_paths.join(tree_paths.visible(path)), variable, owner))
    return found


def _own_dtype(module: nnx.Module) -> np.dtype[Any] | None:
    """Return the `dtype` of a module; None if it follows its inputs and parameters."""
    given = vars(module).get("dtype")
    try:
        return None if given is None else jnp.dtype(given)
    except Exception:  # numpy raises several
        return None


def _warn(policy: DTypePolicy, wide: dict[str, str], not_kept: list[str]) -> None:
    if wide:
        named = ", ".join(f"{path!r} ({reason})" for path, reason in list(wide.items())[:6])
        more = f" and {len(wide) - 6} more" if len(wide) > 6 else ""
        _warn_once(
            f"modules compute in a wider type than {policy.name!r} says: {named}{more}\n"
            "  given:    a `dtype` of their own, or wider arrays in them, to which JAX promotes half precision\n"
            f"  expected: modules that follow their inputs and parameters, or compute in {policy.compute_dtype}\n"
            f"  fix:      make them with dtype={policy.compute_dtype!r}, or cast what they return; where it is meant, "
            "keep=... of DTypePolicy with their paths"
        )
    if not_kept:
        near = nearest(str(policy.keep), not_kept)
        _warn_once(
            f"`keep` matches no parameter: all are cast to {policy.compute_dtype}\n"
            f"  given:    keep={policy.keep!r}\n"
            f"  expected: a regular expression for the whole paths of some of {not_kept[:6]}\n"
            f"  fix:      {f'the nearest path is {near!r}' if near else 'leave it out'}"
        )


@functools.cache
def _warn_once(text: str) -> None:
    warn(text)


def _is_floating(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray | np.generic) and jnp.issubdtype(value.dtype, jnp.floating)


def _is_of_flax(node: Any) -> bool:
    return isinstance(node, nnx.Pytree | nnx.Variable)
