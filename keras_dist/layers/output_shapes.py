"""The shapes of what layers return: as tracing tells them, or as a subclass says them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax

from keras_dist._support.types import DTypeLike, PyTree
from keras_dist.layers import symbolic
from keras_dist.layers.call_arguments import call_parameters, called_with_shapes, tensor_arguments
from keras_dist.symbolic.tensors import KerasTensor

if TYPE_CHECKING:
    from keras_dist.layers.layer import Layer


def output_spec(
    layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], is_told: bool, makes_masks: bool
) -> PyTree:
    """Return the symbolic outputs of a call.

    Args:
        layer: the layer.
        args: the arguments of the call.
        kwargs: those by name.
        is_told: whether `compute_output_shape` of the layer says the shapes. Where there are masks the call is traced,
            if that is possible: it tells those of the outputs, too.
        makes_masks: whether the outputs may have masks where inputs have none.
    """
    leaves = jax.tree.leaves((args, kwargs))
    if not is_told or makes_masks or any(getattr(leaf, "mask", None) is not None for leaf in leaves):
        try:
            return symbolic.traced_outputs(layer, args, kwargs)
        except jax.errors.JAXTypeError:
            if not is_told:
                raise
    tensors = tensor_arguments(call_parameters(type(layer)), args, kwargs, KerasTensor)
    return tensors_of(called_with_shapes(layer.compute_output_shape, tensors), layer.compute_dtype)


def output_shape(layer: Layer, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> PyTree:
    """Return the shape, or structure of shapes, of the output of a layer.

    Args:
        layer: the layer.
        args: shapes of its first inputs.
        kwargs: shapes of other inputs, such as `value_shape`; `input_shape` is that of the first.
    """
    named = {name.removesuffix("_shape"): shape for name, shape in kwargs.items()}
    if not args and kwargs.keys() == {"input_shape"}:
        args, named = (named["input"],), {}
    first = tuple(tensors_of(shape, layer.compute_dtype) for shape in args)
    others = {name: tensors_of(shape, layer.compute_dtype) for name, shape in named.items()}
    # not by `compute_output_spec` of the base, which asks a `compute_output_shape` that may have come here by `super()`
    is_traced = hasattr(layer.compute_output_spec, "is_default")
    outputs = (symbolic.traced_outputs if is_traced else symbolic.infer)(layer, first, others)
    return jax.tree.map(lambda tensor: tensor.shape, outputs)


def tensors_of(shapes: PyTree, dtype: DTypeLike) -> PyTree:
    """Return symbolic tensors of these shapes: tuples or lists of sizes and None."""
    return jax.tree.map(
        lambda shape: None if shape is None else KerasTensor(shape, dtype),
        shapes,
        is_leaf=lambda value: value is None or is_shape(value),
    )


def is_shape(value: Any) -> bool:
    """Return whether a value is one shape: a tuple, or a list that is not empty, of sizes and None."""
    if isinstance(value, list) and not value:
        return False
    return isinstance(value, list | tuple) and all(size is None or isinstance(size, int) for size in value)
