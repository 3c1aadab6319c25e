"""Calls of a layer for shapes alone, on a copy whose weights are zeros of the trace.

The call changes nothing but the copy: what it assigns, draws and sets is lost with the trace. A layer builds itself,
once, whoever calls it: a copy that has to build lets its original do so, in the trace in which that was made, and gets
copies of what was built.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import export

from keras_dist._support import dim_names
from keras_dist._support.stateless_scope import shapes_only
from keras_dist._support.types import DTypeLike, PyTree, Shape
from keras_dist._unstable.flax_internals import (
    attribute_order,
    in_trace_of,
    raw_value,
    restore_order,
    without_eager_sharding,
)
from keras_dist._unstable.jax_internals import is_key_dtype
from keras_dist.layers.base.layer_record import is_layer, layers_inside
from keras_dist.symbolic.shape_tracing import SIZES
from keras_dist.variables import call_context, new_variables
from keras_dist.variables.variable import Variable


@dataclasses.dataclass(frozen=True, eq=False)
class _Stacking:
    """The leading dims of weights that are created now, and the new weights with their whole values, or shapes."""

    dims: tuple[int, ...]
    made: list[tuple[Variable, Any]] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def stacked_weights(*dims: int) -> Iterator[None]:
    """Create weights with these leading dims: one slice for each layer, with its own initial values.

    Inside, `build` and calls for shapes see one slice.
    """
    stacking = _Stacking(dims)
    with new_variables.stacking(stacking):
        yield
    for variable, whole in stacking.made:
        raw_value.__set__(variable, whole)


def stacked_dims() -> tuple[int, ...]:
    """Return the leading dims of weights that are created now; none for weights of one layer."""
    stacking: _Stacking | None = new_variables.current().stacking
    return () if stacking is None else stacking.dims


def note_stacked(variable: Variable, whole: jax.Array | jax.ShapeDtypeStruct) -> None:
    """Give a new weight all of its slices when the stack is built."""
    new_variables.current().stacking.made.append((variable, whole))


def copy_for_shapes(module: nnx.Module) -> Any:
    """Return a copy of a module, with zeros, to be called in the current trace."""
    with shapes_only():
        graphdef, state = nnx.split(module)
        zeros = jax.tree.map(_zeros, state)
    with without_eager_sharding():
        copy = nnx.merge(graphdef, zeros, copy=True)
    restore_order(copy, attribute_order(module))
    originals = dict(nnx.iter_graph(module))
    for path, node in nnx.iter_graph(copy):
        if is_layer(node):
            original = originals[path]
            node._record.original = original._record.original or original
        elif isinstance(node, Variable) and stacked_dims():
            _take_first_slice(node)
    return copy


def _zeros(array: Any) -> Any:
    if is_key_dtype(array.dtype):
        return jax.random.key(0) if isinstance(array, jax.ShapeDtypeStruct) else array
    return jnp.zeros(array.shape, array.dtype)


def _take_first_slice(variable: Variable) -> None:
    dims, names, value = stacked_dims(), variable.dim_names, raw_value.__get__(variable)
    if names[: len(dims)] == (dim_names.LAYERS,) * len(dims) and value.ndim == len(names):
        raw_value.__set__(variable, value[(0,) * len(dims)])


def build_original(copy: Any, *args: Any, **kwargs: Any) -> None:
    """Let the original of a copy build itself, unless it has, and give the copy what that has built."""
    original = copy._record.original
    if not original._is_built and original._record.made is None:
        args, kwargs = jax.tree.map(_known, (args, kwargs))
        with building_for_shapes(original):
            original.build(*args, **kwargs)
    _update_copy(copy, original)


@contextlib.contextmanager
def building_for_shapes(layer: Any) -> Iterator[None]:
    """Context manager in which a layer builds itself, with its sublayers, because a call for shapes needs it."""
    before = [one for one in layers_inside(layer) if one._is_built]
    with in_trace_of(layer):
        yield
    for one in layers_inside(layer):
        one._record.built_for_shapes |= one._is_built and not any(one is other for other in before)


def _known(size: Any) -> Any:
    """Return the size of a dim as `build` sees it; None for an unknown size."""
    context: Any = call_context.current()
    is_stand_in = isinstance(size, int) and size in context.sizes_of_unknown
    return None if is_stand_in or export.is_symbolic_dim(size) else size


def build_stacked(layer: Any, dims: tuple[int, ...], *shapes: PyTree) -> None:
    """Build a layer with weights of these leading dims, also in a call for shapes."""
    with stacked_weights(*dims):
        layer.build(*shapes)
    if layer._record.original is not None:
        _update_copy(layer, layer._record.original)  # all slices


def _update_copy(copy: Any, original: Any) -> None:
    """Give a copy what its original has built."""
    with in_trace_of(copy):
        attributes = vars(copy_for_shapes(original))
        vars(copy).clear()
        vars(copy).update(attributes)


def example(shape: Shape, dtype: DTypeLike) -> jax.ShapeDtypeStruct:
    """Return a shape for a call, given the shape of inputs with None for any size."""
    return jax.ShapeDtypeStruct(tuple(SIZES[0] if size is None else size for size in shape), jnp.dtype(dtype))


def shapes_of_call(layer: Any, *inputs: PyTree) -> PyTree:
    """Return the shapes of the outputs for inputs, arrays or shapes; the layer and its sublayers build themselves."""

    def run(*inputs: PyTree) -> PyTree:
        with call_context.entered(False, anew=True) as context:
            context.sizes_of_unknown = frozenset(SIZES[:1])
            return copy_for_shapes(layer)(*inputs)

    return jax.eval_shape(run, *inputs)
