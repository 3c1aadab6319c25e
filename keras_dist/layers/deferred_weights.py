"""Weights between a layer's first call on symbolic tensors and its model: variables with shapes, without arrays.

The call traces a copy of the layer. The layer adopts what building made in the copy, so that `layer.kernel` is one
object from then on. A model creates the arrays with all of its weights, sharded from the start, and so builds copies of
its layers as they were before. Code that reads or sets a value earlier gets the weights of the layer alone. A layer
whose `build` makes arrays or foreign modules cannot be without arrays: it adopts nothing; `layer.weights` builds it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import export

from keras_dist import random
from keras_dist._support import tree_paths
from keras_dist._support.lending import Borrower, Lendable
from keras_dist._support.types import ArrayLike
from keras_dist._unstable.flax_internals import (
    attribute_order,
    move_to_current_trace,
    raw_value,
    restore_order,
    trace_state_of,
    without_eager_sharding,
)
from keras_dist._unstable.jax_internals import is_key_dtype, is_traced
from keras_dist.distribution.variables import leaf_parts
from keras_dist.errors import ModelError
from keras_dist.layers.adoption import MISSING, adopt, nodes_in, pairs_of, take_static
from keras_dist.layers.runtime import HasRuntime
from keras_dist.layers.stacked_layers import is_block
from keras_dist.symbolic import shape_tracing
from keras_dist.symbolic.tensors import KerasTensor, mask_of
from keras_dist.variables import call_context

if TYPE_CHECKING:
    from keras_dist.layers.layer import Layer


class DeferredWeights(Borrower):
    """The variables without arrays that a layer and its sublayers have, and what building changed in them."""

    is_deferred = True

    def __init__(self, layer: Layer, before: list[tuple[nnx.Pytree, dict[str, Any]]], made: list[Any]) -> None:
        self.layer = layer
        self.check: Callable[[], None] = lambda: None  # raises while a model awaits its layout from `AutoParallel`
        self.changes: list[tuple[Any, dict[str, tuple[Any, Any]]]] = []
        for node, attributes in before:
            found = {name: (attributes.get(name, MISSING), value) for name, value in vars(node).items()}
            self.changes.append((node, {name: pair for name, pair in found.items() if pair[0] is not pair[1]}))
        built = [node for node, changed in self.changes if "_is_built" in changed]
        self.layers = [node for node in (*built, *made) if isinstance(node, HasRuntime)]
        self.variables = [node for node in made if isinstance(node, Lendable)]
        for variable in self.variables:
            variable.lend_to(self)
        for one in self.layers:
            one._runtime.deferred = self

    def end(self) -> None:
        """Stop lending the variables: their arrays exist from now on."""
        for variable in self.variables:
            variable.lend_to(None)
        for layer in self.layers:
            layer._runtime.deferred = None

    def create(self, *args: Any, **kwargs: Any) -> None:
        """Create the arrays of the layer alone, for these arguments, or as it was called first."""
        self.check()
        self.create_part(*args, **kwargs)

    def create_part(self, *args: Any, **kwargs: Any) -> None:
        """Create the arrays of the layer alone, also for a model that contains only a part of the layer."""
        self.layer._check_same_trace(is_alone=call_context.current() is None)
        with as_before_building(self.layer):
            copy: Any = copy_of(self.layer, lambda array: array)
        if args or kwargs:
            copy(*args, **kwargs)
        else:
            build_as_called(copy)
        check_same([self], self.layer, copy)
        self.end()
        own = {id(variable) for variable in self.variables}
        for ours, theirs in list(pairs_of(self.layer, copy)):
            if isinstance(ours, HasRuntime):
                take_static(ours, theirs._runtime.built_with)
            elif id(ours) in own:
                ours.keep(theirs.peek())

    def create_for(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Create the arrays before the call of a layer."""
        if layer is self.layer:
            self.create(*args, **kwargs)
        else:
            self.create()

    def array_of(self, variable: Lendable) -> Any:
        """Return the array, which is created first."""
        self.create()
        return variable.peek()

    copy_of = array_of

    def take(self, variable: Lendable, array: Any) -> None:
        """Set an unshared array, after all are created."""
        self.create()
        variable.keep(array)

    def set_to_copy(self, variable: Lendable, value: ArrayLike) -> None:
        """Set a copy of a value, after all are created."""
        self.take(variable, jnp.array(value, raw_value.__get__(variable).dtype, copy=True))

    def layout_of(self, variable: Lendable) -> Any:
        """Return the layout that the variable was made with."""
        return variable.get_metadata().get("layout")


def check_same(deferred: Iterable[DeferredWeights], module: nnx.Module, built: nnx.Module) -> None:
    """Raise if variables have another shape or dtype in a copy of a module that was built now, or are not there.

    Raises:
        ModelError: options of a layer were changed after its call, or it is called on arrays of another size.
    """
    now, there = {id(ours): theirs for ours, theirs in pairs_of(module, built)}, {id(node) for node in nodes_in(module)}
    for one in deferred:
        for variable in (variable for variable in one.variables if id(variable) in there):
            before, after = _described(variable), _described(now.get(id(variable)))
            if before != after:
                summary = f"layer {one.layer.name!r} has changed since its first call: variable {variable.path!r}"
                fix = "set its options, and fix the size of its inputs, before the first call; or make another layer"
                raise ModelError(summary, given=after, expected=before, fix=fix)


def _described(variable: Any) -> str:
    if variable is None:
        return "no such variable"
    array = raw_value.__get__(variable)
    return f"shape {array.shape}, {array.dtype}"


@contextlib.contextmanager
def defining(layer: Layer) -> Iterator[None]:
    """Context manager of a call on symbolic tensors: the layer adopts what building makes in the traced copy."""
    runtime = layer._runtime
    is_model = hasattr(type(layer).build, "creates_weights")
    if is_model or layer._is_built or has_variables(layer) or is_block() or not trace_state_of(layer).is_valid():
        yield
        return
    runtime.copies = []
    try:
        yield
        copies = runtime.copies
    finally:
        runtime.copies = None
    made = [_made_in(layer, copy) for copy in copies[-2:]]  # with two sizes for dims of unknown size
    shapes = [[node.shape for node in nodes or () if isinstance(node, Lendable)] for nodes in made]
    if made and made[-1] is not None and shapes[0] == shapes[-1]:  # else a weight has the size of an unknown dim
        _adopt(layer, copies[-1], made[-1])


def has_variables(layer: Layer) -> bool:
    """Whether a layer has all of its own variables, with or without arrays."""
    generators = [value for value in vars(layer).values() if isinstance(value, random.SeedGenerator)]
    is_ready = layer._is_built or layer._needs_no_building()
    return is_ready and all(hasattr(one, "seed_generator_state") for one in generators)


def _made_in(layer: Layer, copy: Any) -> list[Any] | None:
    """Return the modules and variables that building made in a copy; None if some cannot be without arrays."""
    pairs = list(pairs_of(layer, copy))
    known = {id(theirs) for _, theirs in pairs}
    made = [node for node in nodes_in(copy) if id(node) not in known]
    both = [(ours, theirs) for ours, theirs in pairs if not isinstance(ours, nnx.Variable)]
    values = [value for ours, theirs in both for name, value in vars(theirs).items() if name not in vars(ours)]
    values += [value for node in made if not isinstance(node, nnx.Variable) for value in vars(node).values()]
    others = [value for value in values if not isinstance(value, nnx.Variable | nnx.Pytree)]
    is_sized = any(export.is_symbolic_dim(leaf) for leaf in jax.tree.leaves(others))  # has no size that code may use
    is_foreign = any(isinstance(node, nnx.Variable) and not isinstance(node, Lendable) for node in made)
    return None if is_foreign or (is_sized and not made) or any(map(is_traced, jax.tree.leaves(others))) else made


def _adopt(layer: Layer, copy: Any, made: list[Any]) -> None:
    for node in made:
        move_to_current_trace(node)
        if isinstance(node, Lendable):
            array = raw_value.__get__(node)
            raw_value.__set__(node, jax.ShapeDtypeStruct(array.shape, array.dtype))
    pairs = [pair for pair in pairs_of(layer, copy) if isinstance(pair[0], HasRuntime)]
    before = adopt(layer, copy)
    for ours, theirs in pairs:
        take_static(ours, theirs._runtime.built_with)
    DeferredWeights(layer, before, made)


def deferred_in(module: nnx.Module) -> list[DeferredWeights]:
    """Return the weights without arrays of the layers in a module."""
    nodes = [node for node in nodes_in(module) if isinstance(node, HasRuntime)]
    return [*{id(one): one for node in nodes if (one := node._runtime.deferred) is not None}.values()]


def create_parts(module: nnx.Module) -> None:
    """Create the weights of layers that a module contains in part, or that were assigned to other layers.

    A model creates all weights of a layer, or none.
    """
    nodes = {id(node): node for node in nodes_in(module)}
    for one in deferred_in(module):
        if id(one.layer) not in nodes:
            one.create_part()
    for node in nodes.values():
        for value in vars(node).values() if isinstance(node, HasRuntime) else ():
            one = value.borrower if isinstance(value, Lendable) else None
            if not isinstance(one, DeferredWeights) or node._runtime.deferred is one:
                continue
            if all(node is not other for other in nodes_in(one.layer)):
                one.create_part()


@contextlib.contextmanager
def as_before_building(module: nnx.Module) -> Iterator[None]:
    """Context manager in which layers without arrays are as before their first call."""
    changes = [change for one in deferred_in(module) for change in one.changes]
    now = [(node, dict(vars(node))) for node, _ in changes]
    try:
        for node, changed in changes:
            for name, (before, after) in changed.items():
                if vars(node).get(name, MISSING) is after:  # else set since then
                    vars(node)[name] = before
                    if before is MISSING:
                        del vars(node)[name]
        yield
    finally:
        for node, attributes in now:
            vars(node).clear()
            vars(node).update(attributes)


def copy_of(module: nnx.Module, replace: Any) -> nnx.Module:
    """Return a copy of a module with other arrays. Attributes keep their order; layers remember their first call."""
    graphdef, state = nnx.split(module)
    with without_eager_sharding():
        copy = nnx.merge(graphdef, jax.tree.map(replace, state), copy=True)
    restore_order(copy, attribute_order(module))
    nodes = {path: node for path, node in nnx.iter_graph(module) if isinstance(node, HasRuntime)}
    called = {path: node._runtime.nodes[0] for path, node in nodes.items() if node._runtime.nodes}
    copies = dict(nnx.iter_graph(copy)) if called else {}
    for path in called.keys() & copies.keys():
        copies[path]._runtime.first_call = called[path]
    return copy


def copy_to_build(module: nnx.Module) -> tuple[nnx.Module, set[tree_paths.Parts]]:
    """Return a copy of a module, to be changed in the current trace, and the paths of the arrays that exist already.

    These arrays are zeros in the copy. Layers whose weights have no arrays are not built in the copy.
    """
    with as_before_building(module):
        return copy_of(module, _placeholder), set(leaf_parts(nnx.state(module)))


def copy_with_zeros(module: nnx.Module) -> nnx.Module:
    """Return a copy of a module with zeros, in which layers whose weights have no arrays are built."""
    variables = [variable for one in deferred_in(module) for variable in one.variables]
    borrowers = [variable.borrower for variable in variables]
    try:
        for variable in variables:
            variable.lend_to(None)
        return copy_of(module, _placeholder)
    finally:
        for variable, borrower in zip(variables, borrowers, strict=True):
            variable.lend_to(borrower)


def _placeholder(array: Any) -> Any:
    return array if is_key_dtype(array.dtype) else jnp.zeros(array.shape, array.dtype)


def build_as_called(layer: Layer) -> bool:
    """Build a layer for its first call on symbolic tensors, if there was one; return whether it was built."""
    runtime = layer._runtime
    node = runtime.first_call or next(iter(runtime.nodes), None)
    if node is None or not node.parents or runtime.made is not None or layer._is_built or runtime.deferred is not None:
        return False
    runtime.first_call = None

    def zeros(leaf: Any) -> Any:
        if not isinstance(leaf, KerasTensor):
            return leaf
        return jnp.zeros([shape_tracing.SIZES[0] if size is None else size for size in leaf.shape], leaf.dtype)

    tensors, treedef = jax.tree.flatten((node.args, node.kwargs))
    values = [zeros(tensor) for tensor in tensors]
    args, kwargs = treedef.unflatten(values)
    with call_context.entered(False, anew=True) as context:
        for tensor, value in zip(tensors, values, strict=True):
            context.set_mask(value, zeros(mask_of(tensor)))
        layer(*args, **kwargs)
    return True
