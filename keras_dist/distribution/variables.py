"""Descriptions of the arrays of a tree for planning: name, shape, role and neighbours."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
from flax import nnx

from keras_dist._support import dim_names, tree_paths
from keras_dist._support.types import DTypeLike, PyTree, PyTreeDef
from keras_dist._unstable import jax_internals
from keras_dist._unstable.flax_internals import is_nnx_state, is_variable, metadata_of, sharding_metadata, variable_role
from keras_dist._unstable.jax_internals import is_key_dtype
from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.model_layout_hints import ModelLayoutHint

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from keras_dist.errors import LayoutError, with_type

Role = Literal["parameter", "statistic", "state", "rng", "counter", "slot", "gradient", "batch", "cache"]

PLANNED_BY_RULE: tuple[Role, ...] = ("parameter", "statistic", "state")
"""Roles to which layout rules apply; others are replicated or follow a parameter."""

CHANGED_ALWAYS: tuple[Role, ...] = ("rng", "state")
"""Roles of arrays that change in evaluation and prediction, too: random streams, states from batch to batch."""


@dataclasses.dataclass(frozen=True)
class VariableSpec:
    """One array of a tree, the argument of `Distribution.get_variable_layout`.

    Attributes:
        path: path of the array, such as `d1/kernel`.
        shape: shape of the array.
        dtype: dtype of the array.
        role: parameter, statistic, rng or counter.
        aliases: other paths of the same array.
        beside: for a statistic, the parameters of the same module and shape.
        own: the model's own layout.
        factor_of: for a factor of LoRA, or the scales of a quantized weight, that weight, and for each dim the dim of
            the weight; None for the rank.
        keras_path: path of the variable in Keras, where it differs from `path`.
        is_frozen: whether it is a parameter that no gradient trains, because adapters do.
        dim_names: names that the layer gives to dims, see `_support.dim_names`; empty if it gives none.
    """

    path: str
    shape: tuple[int, ...]
    dtype: Any
    role: Role
    aliases: tuple[str, ...] = ()
    beside: tuple[VariableSpec, ...] = ()
    own: ModelLayoutHint | None = None
    factor_of: tuple[VariableSpec, tuple[int | None, ...]] | None = None
    keras_path: str | None = None
    is_frozen: bool = False
    dim_names: tuple[str | None, ...] = ()

    @property
    def expert_dim(self) -> int | None:
        """The dim of experts, which compiled steps never gather: tokens move to their experts."""
        return self.dim_names.index("experts") if "experts" in self.dim_names else None

    @property
    def names(self) -> tuple[str, ...]:
        """All paths that rules can match: `path` first."""
        return (self.path, *self.aliases, *(() if self.keras_path is None else (self.keras_path,)))

    def called(self, matches: Callable[[str], bool]) -> str:
        """Return the path in quotes, with the path that a rule matches, if it differs."""
        name = next(filter(matches, self.names), self.path)
        if name == self.path:
            return repr(self.path)
        return f"{self.path!r} ({name!r} in Keras)" if name == self.keras_path else f"{self.path!r} (also {name!r})"

    @property
    def nbytes(self) -> int:
        """Size of the whole array [bytes]."""
        return int(np.prod(self.shape, dtype=np.int64)) * jax_internals.itemsize(self.dtype)


def describe_variables(tree: PyTree, tied: Sequence[Sequence[str]] = ()) -> tuple[list[VariableSpec], PyTreeDef]:
    """Return the arrays of `tree` in flattening order, and its structure."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(tree)
    variables = _variables_by_prefix(tree)
    collections = _linen_collections(tree)
    specs: list[VariableSpec] = []
    factors: dict[str, tuple[str, tuple[int | None, ...]]] = {}
    for (key_path, leaf), path, owner in zip(leaves, leaf_paths(tree), leaf_owners(tree), strict=True):
        shape, dtype = shape_and_dtype(leaf, path)
        collection = str(tree_paths.parts_of(key_path[:1])[0]) if collections else ""
        role = _role(variables.get(tuple(key_path[:-1])), shape, dtype, collection, is_nnx_state(tree))
        metadata = metadata_of(owner)
        is_frozen = bool(metadata.get("is_frozen"))
        names = dim_names.of_slice(metadata.get("dim_names", ()), len(shape))
        noted: dict[str, Any] = {"is_frozen": is_frozen, "dim_names": names}
        specs.append(VariableSpec(path, shape, dtype, role, own=_own_layout(path, owner), **noted))
        if factor_of := metadata.get("factor_of"):  # the name of a weight beside it, or "/" and a path
            weight, dims = factor_of
            path_of_weight = weight if weight.startswith("/") else f"{_parent(path)}/{weight}"
            factors[path] = (path_of_weight.lstrip("/"), dims)
    _refuse_equal_paths(specs)
    specs = _with_aliases(specs, [leaf for _, leaf in leaves], tied)
    return _with_factors(_with_neighbours(specs, factors, collections), factors), treedef


def leaf_paths(tree: PyTree) -> list[str]:
    """Return the paths of the arrays of `tree` in flattening order, as users write them; see `leaf_parts`."""
    return [tree_paths.join(parts) for parts in leaf_parts(tree)]


def leaf_parts(tree: PyTree) -> list[tree_paths.Parts]:
    """Return the names and indices that lead to each array, without NNX's `value` and Linen's leading `params`."""
    variables = _variables_by_prefix(tree)
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    names = [_parts(key_path, variables) for key_path, _ in leaves]
    if _linen_collections(tree):
        shorter = [parts[1:] if parts[0] == "params" else parts for parts in names]
        return shorter if len(set(shorter)) == len(shorter) else names
    return names


def leaf_owners(tree: PyTree) -> list[Any]:
    """Return the variable that holds each array of `tree`; a raw array stands for itself."""
    nodes = jax.tree.leaves(tree, is_leaf=is_variable)
    return [node for node in nodes for _ in jax.tree.leaves(node)]


def _own_layout(path: str, owner: Any) -> ModelLayoutHint | None:
    """Return the model's own layout: the argument of a layer, or sharding metadata."""
    layout, metadata = metadata_of(owner).get("layout"), sharding_metadata(owner)
    label = f"{path.rpartition('/')[2]}'s own "
    if layout is not None:
        layout = layout if isinstance(layout, TensorLayout) else TensorLayout(layout)
        return ModelLayoutHint(f"{label}{layout.axes}", layout=layout)
    if metadata is not None:
        return ModelLayoutHint(f"{label}{metadata[0]}", *metadata)
    return None


def _variables_by_prefix(tree: PyTree) -> dict[tuple[Any, ...], Any]:
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_variable)
    return {tuple(key_path): node for key_path, node in flat if is_variable(node)}


def _parts(key_path: Sequence[Any], variables: Mapping[tuple[Any, ...], Any]) -> tree_paths.Parts:
    """Return the names in a key path, without the `value` of an NNX Variable."""
    for length in range(len(key_path)):
        if tuple(key_path[:length]) in variables:
            return tree_paths.parts_of((*key_path[:length], *key_path[length + 1 :]))
    return tree_paths.parts_of(key_path)


def shape_and_dtype(leaf: PyTree, path: str) -> tuple[tuple[int, ...], Any]:
    """Return shape and dtype of an array, a `jax.ShapeDtypeStruct` or a Python number."""
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        dtype = leaf.dtype if is_key_dtype(leaf.dtype) else jax.dtypes.canonicalize_dtype(leaf.dtype)
        return tuple(int(size) for size in leaf.shape), dtype
    if isinstance(leaf, bool | int | float | complex):
        return (), jax.dtypes.result_type(leaf)
    fix = "filter the tree first, for example with equinox.filter(tree, equinox.is_array)"
    raise LayoutError(f"plan: {path!r} must be an array or a jax.ShapeDtypeStruct", given=with_type(leaf), fix=fix)


def _refuse_equal_paths(specs: Sequence[VariableSpec]) -> None:
    paths = Counter(spec.path for spec in specs)
    twice = [path for path, count in paths.items() if count > 1]
    if twice:
        summary = f"plan: {len(twice)} path(s) lead to more than one array: {', '.join(map(repr, twice[:5]))}"
        given = "names that contain '/', or equal numbers and strings, such as {'a/b': x, 'a': {'b': y}}"
        raise LayoutError(summary, given=given, fix="rename one of them")


def _role(variable: Any, shape: tuple[int, ...], dtype: DTypeLike, collection: str, in_nnx: bool) -> Role:
    if is_key_dtype(dtype):
        return "rng"
    role = variable_role(variable) if variable is not None else ("statistic" if in_nnx else "parameter")
    if role != "parameter" or variable is None:
        is_integer = jax.numpy.issubdtype(dtype, jax.numpy.integer) or jax.numpy.issubdtype(dtype, jax.numpy.bool_)
        if role != "rng" and shape == () and is_integer:
            return "counter"
        if variable is None and shape[-1:] == (2,) and dtype == jax.numpy.uint32:
            return "rng"  # a raw PRNG key, as jax.random.PRNGKey makes it
    if collection not in ("", "params"):
        return "statistic"
    return role  # type: ignore[return-value]


def _linen_collections(tree: PyTree) -> tuple[str, ...]:
    """Return the collections of a Linen variable tree (`params`, `batch_stats`, ...); nothing for other trees."""
    if is_nnx_state(tree) or not isinstance(tree, Mapping) or not isinstance(tree.get("params"), Mapping):
        return ()
    return tuple(str(name) for name, subtree in tree.items() if isinstance(subtree, Mapping))


def _with_aliases(specs: list[VariableSpec], leaves: list[Any], tied: Sequence[Sequence[str]]) -> list[VariableSpec]:
    paths_by_array: dict[int, list[str]] = {}
    for spec, leaf in zip(specs, leaves, strict=True):
        if isinstance(leaf, jax.Array | np.ndarray):
            paths_by_array.setdefault(id(leaf), []).append(spec.path)
    result = []
    for spec, leaf in zip(specs, leaves, strict=True):
        known = [*tied_names(spec.path, tied), *paths_by_array.get(id(leaf), ())]
        unique = tuple(dict.fromkeys(path for path in known if path != spec.path))
        result.append(dataclasses.replace(spec, aliases=unique))
    return result


def tied_paths(tree: PyTree) -> list[list[str]]:
    """Return groups of paths in an NNX module of one submodule or Variable; none for other trees."""
    groups = nnx.find_duplicates(tree) if isinstance(tree, nnx.Module) else []
    return [[tree_paths.join(tree_paths.visible(parts)) for parts in group] for group in groups]


def tied_names(path: str, tied: Sequence[Sequence[str]]) -> list[str]:
    """Return `path` and all names that follow from exchanging tied prefixes."""
    names = [path]
    for name in names:
        for group in tied:
            for prefix in group:
                if name == prefix or name.startswith(prefix + "/"):
                    others = [other + name[len(prefix) :] for other in group]
                    names.extend(other for other in others if other not in names)
    return names


def _with_factors(
    specs: Sequence[VariableSpec], factors: Mapping[str, tuple[str, tuple[int | None, ...]]]
) -> list[VariableSpec]:
    by_path = {spec.path: spec for spec in specs} if factors else {}
    result: list[VariableSpec] = []
    for spec in specs:
        weight, dims = factors.get(spec.path, ("", ()))
        of = by_path.get(weight)
        result.append(spec if of is None else dataclasses.replace(spec, factor_of=(of, dims)))
    return result


def _with_neighbours(
    specs: Sequence[VariableSpec], factors: Container[str], collections: Container[str]
) -> list[VariableSpec]:
    parameters: dict[tuple[str, tuple[int, ...]], list[VariableSpec]] = {}
    for spec in specs:
        if spec.role == "parameter" and spec.path not in factors:
            parameters.setdefault((_parent(spec.path), spec.shape), []).append(spec)
    result = []
    for spec in specs:
        if spec.role == "statistic":
            names = [spec.path, *spec.aliases]
            collection, _, rest = spec.path.partition("/")
            parents = dict.fromkeys(map(_parent, [*names, rest] if collection in collections else names))
            beside = [parameter for parent in parents for parameter in parameters.get((parent, spec.shape), ())]
            spec = dataclasses.replace(spec, beside=tuple(beside))
        result.append(spec)
    return result


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
