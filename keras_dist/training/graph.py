"""An NNX module as pure functions of its arrays: split once, merged inside each traced step; positions of its arrays.

`nnx.merge` sorts attributes, and a loop over a dict of layers must follow the order of the user: it is restored. Raw
arrays that a module assigns in a trace are made part of its state, since Flax takes a traced array for a static
attribute. A submodule that activation rules name gets a subclass whose call constrains its output: NNX has no hooks,
and a rule without effect would be silent.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np
from flax import nnx, traverse_util

from keras_dist._support import tree_paths
from keras_dist._support.dim_names import DimNames
from keras_dist._support.located_warnings import warn
from keras_dist._support.safe_patterns import Pattern, pattern
from keras_dist._support.signatures import takes
from keras_dist._support.types import ArrayLike, PyTree, PyTreeDef
from keras_dist._unstable import flax_internals
from keras_dist._unstable.flax_internals import (
    adopt_traced_buffers,
    is_data_attribute,
    is_variable,
    metadata_of,
    restore_order,
    rngs_for_creation,
    without_eager_sharding,
)
from keras_dist.distribution.variables import VariableSpec, describe_variables, leaf_owners, leaf_parts, tied_paths
from keras_dist.errors import ModelError, nearest, shorten, with_type
from keras_dist.layers import Layer
from keras_dist.layers.base.other_frameworks import check_is_ours
from keras_dist.training.module_dims import dims_in
from keras_dist.variables.lending import Lendable

_RAW = "raw array"
_HOOK = "_after_update"  # of layers

Trainable = Any  # a filter of trained variables: an NNX filter, or a regular expression for whole paths of `nnx.Param`s


@dataclasses.dataclass(frozen=True, eq=False)
class ModuleGraph:
    """The static part of an NNX module, with the names of its arrays.

    Arrays travel as two nested dicts keyed by attribute names, `trainable` and `rest`, so that optax masks and labels
    can be written against them. Tuples have an entry for each variable, in flattening order of the module's state.
    """

    graphdef: nnx.GraphDef
    treedef: PyTreeDef  # of the module's state
    specs: tuple[VariableSpec, ...]
    parts: tuple[tree_paths.Parts, ...]  # names that lead to the variable
    dim_names: tuple[DimNames, ...]  # as their layers give them, and as is known of other modules
    trained: tuple[bool, ...]
    regularizers: tuple[Callable[[Any], jax.Array] | None, ...]  # of its value, added to the loss
    constraints: tuple[Callable[[Any], jax.Array] | None, ...]  # applied to its value after an update
    module_paths: tuple[str, ...]  # of all submodules
    attribute_order: Mapping[tuple[Any, ...], list[str]]  # for each submodule, in the order of assignment
    kinds: tuple[str, ...]  # name of the variable's class, or `raw array`
    is_foreign: bool  # the module does not consist of layers
    untrained: tuple[str, ...]  # paths of raw floating arrays of foreign modules, without a `trainable` argument

    def check_trains(self) -> None:
        """Raise unless a variable is trained; for layers without weights, which are legitimate, only warn."""
        if any(self.trained) or (not self.is_foreign and any(spec.role == "parameter" for spec in self.specs)):
            return  # layers with weights are frozen on purpose
        fix = "make the weights nnx.Param(array), or choose with from_nnx(..., trainable=) what is trained"
        summary = "nothing is trainable: the loss would stay as it is"
        given = f"variables {self.described_kinds()}" if self.specs else "a model without variables"
        error = ModelError(summary, given=given, fix=fix if self.is_foreign else "make the weights with add_weight")
        if self.is_foreign:
            raise error
        warn(str(error))

    def warn_of_untrained(self) -> None:
        """Warn of raw arrays, which may be meant as weights, beside trained variables."""
        if self.untrained and any(self.trained):
            warn(
                f"raw floating arrays are not trained: {', '.join(map(repr, self.untrained[:6]))}\n"
                f"  given:    {self.described_kinds()}\n"
                f"  expected: arrays in variables: nnx.Param if trained, else another nnx.Variable\n"
                f"  fix:      nnx.Param(array) for weights; from_nnx(..., trainable=nnx.Param) where none is meant"
            )

    def described_kinds(self) -> str:
        """Describe the paths of variables by the names of their classes."""
        by_kind: dict[str, list[str]] = {}
        for kind, spec in zip(self.kinds, self.specs, strict=True):
            by_kind.setdefault(kind, []).append(spec.path)
        return "; ".join(f"{kind}: {', '.join(map(repr, paths[:6]))}" for kind, paths in by_kind.items())

    def nest(self, leaves: Sequence[PyTree]) -> tuple[PyTree, PyTree]:
        """Arrange a value for each variable as the nested dicts `(trainable, rest)`."""
        by_kind: tuple[dict[tree_paths.Parts, Any], dict[tree_paths.Parts, Any]] = ({}, {})
        for parts, trained, leaf in zip(self.parts, self.trained, leaves, strict=True):
            by_kind[not trained][parts] = leaf
        return traverse_util.unflatten_dict(by_kind[0]), traverse_util.unflatten_dict(by_kind[1])

    def flatten(self, trainable: PyTree, rest: PyTree) -> list[Any]:
        """Invert `nest`."""
        flat = {**traverse_util.flatten_dict(trainable), **traverse_util.flatten_dict(rest)}
        return [flat[parts] for parts in self.parts]

    def edited(self, change: Callable[[nnx.Module], None], trained: Sequence[bool]) -> Self:
        """Return the graph after a change of static attributes, with other variables trained."""

        def edit() -> None:
            module = self._merged([jax.lax.empty(spec.shape, spec.dtype) for spec in self.specs])
            change(module)
            edited.append(nnx.split(module)[0])

        edited: list[Any] = []
        jax.eval_shape(edit)
        return dataclasses.replace(self, graphdef=edited[0], trained=tuple(trained))

    def described(self) -> PyTree:
        """Return the module with shapes instead of arrays."""
        shapes = [jax.ShapeDtypeStruct(spec.shape, spec.dtype) for spec in self.specs]
        return self._merged(shapes)

    def constrained(self, trainable: PyTree) -> PyTree:
        """Apply the constraints to the trained variables."""
        by_parts = {parts: rule for parts, rule in zip(self.parts, self.constraints, strict=True) if rule is not None}
        flat = traverse_util.flatten_dict(trainable)
        return traverse_util.unflatten_dict(
            {parts: by_parts[parts](leaf) if parts in by_parts else leaf for parts, leaf in flat.items()}
        )

    @functools.cached_property
    def has_hooks(self) -> bool:
        """Whether a layer changes variables after an update of weights."""
        return any(hasattr(getattr(node, "type", None), _HOOK) for node in self.graphdef.nodes)

    def updated(self, trainable: PyTree, rest: PyTree) -> tuple[PyTree, PyTree]:
        """Return the values after an update of weights: constrained, then changed by layers."""
        trainable = self.constrained(trainable)
        if not self.has_hooks:
            return trainable, rest
        module = self.merge(trainable, rest)
        for _, node in nnx.iter_graph(module):
            if hasattr(type(node), _HOOK):
                getattr(node, _HOOK)()
        return self.split(module)

    def merge(self, trainable: PyTree, rest: PyTree) -> Any:
        """Return a module with these values, which shares nothing with another and may be changed."""
        return self._merged(self.flatten(trainable, rest))

    def _merged(self, leaves: Sequence[Any]) -> Any:
        with without_eager_sharding():
            module = nnx.merge(self.graphdef, self.treedef.unflatten(leaves), copy=True)
        restore_order(module, self.attribute_order)
        return module

    def split(self, module: nnx.Module) -> tuple[PyTree, PyTree]:
        """Return the values in `module` as `(trainable, rest)`, without sown `nnx.Intermediate`s."""
        state = nnx.state(module)
        found, known = dict(zip(leaf_parts(state), jax.tree.leaves(state), strict=True)), set(self.parts)
        lost = [tree_paths.join(parts) for parts in self.parts if parts not in found]
        if lost:
            summary = f"the module lost variables: {', '.join(map(repr, lost))}"
            fix = "change the values of variables, never remove them"
            raise ModelError(summary, given=f"a {type(module).__name__} without them", fix=fix)
        gained = [
            tree_paths.join(parts)
            for parts, owner in zip(found, leaf_owners(state), strict=True)
            if parts not in known and not isinstance(owner, nnx.Intermediate)
        ]
        if gained:
            summary = f"the module gained variables when it was called: {', '.join(map(repr, gained))}"
            fix = "create them in __init__, as by self.teacher.build((None, 8)), or call the module once in the factory"
            raise ModelError(summary, given=f"a {type(module).__name__} with them", fix=fix)
        return self.nest([found[parts] for parts in self.parts])


def trace_factory(
    factory: Callable[..., object], trainable: Trainable
) -> tuple[ModuleGraph, Callable[[ArrayLike], PyTree]]:
    """Trace `factory(rngs=rngs)`; return the graph of its module, and the function from a uint32 seed to its state."""
    by_keyword = as_factory(factory)
    if by_keyword is None:
        summary = "from_nnx: the factory cannot be called as factory(rngs=rngs) or factory(rngs)"
        fix = "wrap it: Model.from_nnx(lambda rngs: MyNet(..., rngs=rngs))"
        raise ModelError(summary, given=shorten(factory), fix=fix)
    seen: dict[str, Any] = {}

    def init(seed: ArrayLike) -> PyTree:
        with without_eager_sharding():
            module = by_keyword(rngs=rngs_for_creation(jax.random.key(seed)))
            if not isinstance(module, nnx.Module):
                check_is_ours("from_nnx: the factory's result", module)
                summary = "from_nnx: the factory's result is not a flax.nnx.Module"
                fix = "for other code use your distribution's plan() and jax.jit"
                raise ModelError(summary, given=type(module).__name__, fix=fix)
            adopt_traced_buffers(module)
            seen["module"] = module
            seen["graphdef"], state = nnx.split(module)
        return state

    state = jax.eval_shape(init, jax.ShapeDtypeStruct((), np.uint32))
    module = seen.pop("module")
    return _graph_of(module, seen["graphdef"], state, trainable), init


def split_module(module: nnx.Module, trainable: Trainable, *, needs_values: bool = True) -> tuple[ModuleGraph, PyTree]:
    """Return the graph of an existing module, and its state; only planners do not need the values."""
    graphdef, state = nnx.split(module)
    if needs_values and any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(state)):
        given = f"an abstract {type(module).__name__}, as nnx.eval_shape makes it"
        fix = "pass the factory: Model.from_nnx(lambda rngs: MyNet(rngs=rngs))"
        raise ModelError("from_nnx: the module holds shapes, not arrays", given=given, fix=fix)
    return _graph_of(module, graphdef, state, trainable), state


def compile_rule(rule: str, argument: str) -> Pattern:
    """Compile a regular expression for whole paths."""
    try:
        return pattern(rule)
    except re.error as error:
        summary = f"`{argument}` is not a regular expression: {error}"
        raise ModelError(summary, given=f"{rule!r}", fix=f"escape special characters: {re.escape(rule)!r}") from error


def _graph_of(module: nnx.Module, graphdef: nnx.GraphDef, state: PyTree, trainable: Trainable) -> ModuleGraph:
    specs, treedef = describe_variables(state, tied_paths(module))
    parts = leaf_parts(state)
    owners = leaf_owners(state)
    order = flax_internals.attribute_order(module)
    return ModuleGraph(
        graphdef,
        treedef,
        tuple(specs),
        tuple(parts),
        tuple(dims_in(module, specs, parts)),
        _trained(specs, parts, owners, trainable),
        tuple(metadata_of(owner).get("regularizer") for owner in owners),
        tuple(metadata_of(owner).get("constraint") for owner in owners),
        tuple(tree_paths.join(tree_paths.visible(path)) for path in order),
        order,
        tuple(type(owner).__name__ if is_variable(owner) else _RAW for owner in owners),
        not isinstance(module, Layer),
        tuple(_raw_floats(module, specs, parts, owners)) if trainable is None else (),
    )


def _raw_floats(
    module: nnx.Module, specs: Sequence[VariableSpec], parts: Sequence[tree_paths.Parts], owners: Sequence[Any]
) -> Iterator[str]:
    """Yield the paths of raw floating arrays in modules that are not layers."""
    raw = [
        (spec.path, names)
        for spec, names, owner in zip(specs, parts, owners, strict=True)
        if not is_variable(owner) and jax.numpy.issubdtype(spec.dtype, jax.numpy.inexact)
    ]
    is_layer: dict[tree_paths.Parts, bool] = {}
    for path, node in nnx.iter_graph(module) if raw else ():
        if isinstance(node, nnx.Module) and not isinstance(node, nnx.Dict | nnx.List):
            place = tree_paths.visible(path)  # a module in an `NNXLayer` has the path of the layer
            is_layer[place] = isinstance(node, Layer) and is_layer.get(place, True)
    for path, names in raw:
        around = max((length for length in range(len(names)) if names[:length] in is_layer), default=0)
        if not is_layer.get(names[:around], False):
            yield path


def _trained(
    specs: Sequence[VariableSpec], parts: Sequence[tree_paths.Parts], owners: Sequence[Any], trainable: Trainable
) -> tuple[bool, ...]:
    if isinstance(trainable, str):
        predicate = nnx.filterlib.to_predicate(nnx.Param)
        pattern = compile_rule(trainable, "trainable")
        chosen = [
            bool(predicate(p, owner)) and any(pattern.fullmatch(name) for name in spec.names)
            for spec, p, owner in zip(specs, parts, owners, strict=True)
        ]
    else:
        try:
            predicate = nnx.filterlib.to_predicate(nnx.Param if trainable is None else trainable)
        except (TypeError, ValueError):  # ValueError: Flax fails while it formats the TypeError
            fix = 'for example trainable=nnx.LoRAParam or trainable="head/.*"'
            raise ModelError("`trainable` is not a filter", given=with_type(trainable), fix=fix) from None
        chosen = [bool(predicate(p, owner)) for p, owner in zip(parts, owners, strict=True)]
    if trainable is not None and not any(chosen):
        paths = [spec.path for spec in specs if spec.role == "parameter"]
        near = nearest(str(trainable), paths)
        fix = f"the nearest path is {near!r}" if near else f"choose some of {paths[:6]}"
        raise ModelError("`trainable` selects no variable", given=f"trainable={trainable!r}", fix=fix)
    inexact = [jax.numpy.issubdtype(spec.dtype, jax.numpy.inexact) for spec in specs]
    return tuple(want and can for want, can in zip(chosen, inexact, strict=True))


def as_factory(given: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return a callable that takes `rngs` by keyword, or a function of one argument; None for any other callable."""
    if takes(given, rngs=None):
        return given
    if inspect.isclass(given) or takes(given) or not takes(given, None) or takes(given, None, None):
        return None

    def by_keyword(rngs: nnx.Rngs) -> Any:
        try:
            return given(rngs)
        except Exception as error:
            error.add_note(f"{shorten(given)} was called with flax.nnx.Rngs, as a factory of a module")
            raise

    return by_keyword


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayPosition:
    """The position of an array in a module: a variable or attribute, and the index of a leaf in it."""

    holder: Any
    attribute: str | None = None
    index: int | None = None

    @property
    def variable(self) -> Any:
        """The variable if it holds a single array; else None."""
        return self.holder if self.attribute is None and self.index is None else None

    @functools.cached_property
    def lendable(self) -> Lendable | None:
        """The variable if it is a `Lendable`; else None."""
        return self.holder if isinstance(self.holder, Lendable) else None

    def array(self) -> Any:
        """Return the array itself, not a copy."""
        tree = self._tree()
        return tree if self.index is None else jax.tree.leaves(tree, is_leaf=is_variable)[self.index]

    def keep(self, array: Any) -> None:
        """Set the array, which nobody else holds."""
        if self.index is not None:
            leaves, structure = jax.tree.flatten(self._tree(), is_leaf=is_variable)
            array = structure.unflatten([*leaves[: self.index], array, *leaves[self.index + 1 :]])
        if self.attribute is not None:
            vars(self.holder)[self.attribute] = array
        elif self.lendable is not None:
            self.lendable.keep(array)
        else:
            flax_internals.raw_value.__set__(self.holder, array)

    def _tree(self) -> PyTree:
        if self.attribute is not None:
            return vars(self.holder)[self.attribute]
        return flax_internals.raw_value.__get__(self.holder) if self.lendable is None else self.lendable.peek()


def positions_of(module: nnx.Module, parts: Sequence[tree_paths.Parts]) -> list[ArrayPosition]:
    """Return the positions of the arrays with these key paths, as `leaf_parts` returns them for a module."""
    counted: collections.Counter[tuple[int, str | None]] = collections.Counter()
    found: list[ArrayPosition] = []
    for names in parts:
        holder, owner, attribute = _holder(module, names)
        around = (holder, None) if isinstance(holder, nnx.Variable) else (owner, attribute)
        if _is_alone(*around):
            found.append(ArrayPosition(*around))
        else:
            found.append(ArrayPosition(*around, counted[id(around[0]), around[1]]))
            counted[id(around[0]), around[1]] += 1
        if around[1] is None and vars(owner)[attribute] is not holder:
            counted[id(owner), attribute] += 1  # a variable in a pytree is one of its leaves
    return found


def _holder(module: Any, names: tree_paths.Parts) -> tuple[Any, Any, str]:
    """Return the variable or array at a key path, and the last module on the path with its attribute."""
    node, owner, attribute = module, module, ""
    for name in names:
        if isinstance(node, nnx.Variable):
            break
        if isinstance(node, nnx.Pytree):
            members = vars(node).get(tree_paths.MEMBERS)
            if members is not None and str(name) in vars(members) and not is_data_attribute(node, str(name)):
                node = members
            owner, attribute = node, str(name)
            node = vars(node)[attribute]
        else:
            node = _inside(node, name)
    return node, owner, attribute


def _inside(tree: Any, name: str | int) -> PyTree:
    """Return the child of a pytree with this name or index."""
    if isinstance(tree, Mapping):
        items: Iterable[tuple[Any, PyTree]] = tree.items()
        return next(value for key, value in items if str(key) == str(name))
    if isinstance(tree, list | tuple) and not hasattr(tree, str(name)):
        items = enumerate(tree)
        return next(value for index, value in items if index == name)
    return getattr(tree, str(name))


def _is_alone(holder: Any, attribute: str | None) -> bool:
    """Whether the value is a single array, not a pytree."""
    tree = vars(holder)[attribute] if attribute is not None else flax_internals.raw_value.__get__(holder)
    return jax.tree_util.treedef_is_leaf(jax.tree.structure(tree))


def in_nodes(tree: Mapping[str, Any]) -> Any:
    """Return nested dicts as nodes of NNX."""
    return nnx.Dict({name: in_nodes(item) if isinstance(item, Mapping) else item for name, item in tree.items()})
