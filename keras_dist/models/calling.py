"""The call of a model: on arrays, on symbolic tensors, and as a layer of another model."""

from __future__ import annotations

from typing import Any

import jax

from keras_dist._support.array_operators import values_in
from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError
from keras_dist.layers.base.call_arguments import call_parameters, check_numbers
from keras_dist.models.functional import is_shape
from keras_dist.models.model_base import ModelBase
from keras_dist.models.module_source import module_is_apart
from keras_dist.models.weight_creation import create_weights
from keras_dist.symbolic.tensors import KerasTensor, is_any_symbolic
from keras_dist.variables import call_context


def build(model: ModelBase, input_shape: PyTree = None) -> None:
    """Create the weights for inputs of this shape, including the batch dim.

    Args:
        input_shape: one shape, or a list or dict of shapes; None for a model that knows its inputs.

    Raises:
        ModelError: the model does not accept such inputs.
    """
    if call_context.current() is not None or model._built is not None:
        return  # in a call each layer builds itself
    if input_shape is None:
        model._with_weights()
        return
    tensors = jax.tree.map(lambda shape: KerasTensor(shape, model.dtype), input_shape, is_leaf=is_shape)
    create_weights(model, (tensors,), {})


build.creates_weights = True  # type: ignore[attr-defined]  # of its layers; the model itself has none


def call(model: ModelBase, inputs: PyTree, training: bool | None = None, mask: PyTree = None) -> PyTree:
    """Return the outputs of a functional model. Subclasses define their own."""
    if model._has_module:
        raise module_is_apart(model.name)
    if model._graph is None:
        raise NotImplementedError(f"{type(model).__name__} does not define call(self, inputs)")
    return model._graph.on_devices.run(vars(model._members), inputs)


def __call__(model: ModelBase, *args: Any, **kwargs: Any) -> PyTree:
    """Return the outputs for arrays, on the model's mesh; for symbolic inputs symbolic outputs.

    Arrays and NumPy floats are arguments of a compiled program. All other arguments are static: each value compiles
    a program. They must be hashable, and must not change: an object whose class defines no `__eq__` is equal after
    its attributes have changed, and gives the old outputs. Pass values that change as arrays.

    Raises:
        ModelError: the inputs do not fit, or an argument is neither an array nor hashable.
    """
    args, kwargs = values_in((args, kwargs))
    is_symbolic = is_any_symbolic((args, kwargs))
    if is_symbolic and model._graph is not None:
        _check_one_side(model)
        return model._graph.structured(super(ModelBase, model).__call__(*args, **kwargs))
    is_part = model._built is None and model._is_built
    if is_symbolic or call_context.current() is not None or "_is_built" not in vars(model) or is_part:
        return super(ModelBase, model).__call__(*args, **kwargs)
    if args and model._has_host_part:
        args = (model._prepared(args[0]), *args[1:])
    check_numbers(call_parameters(type(model)), args, kwargs, model.name)
    return model._with_weights(*args, **kwargs).call(args, kwargs)


def compute_output_shape(model: ModelBase, *args: PyTree, **kwargs: PyTree) -> PyTree:
    """Return the shapes of the outputs for inputs of this shape, including the batch dim."""
    shapes = super(ModelBase, model).compute_output_shape(*args, **kwargs)
    return shapes if model._graph is None else model._graph.structured(shapes)


compute_output_shape.is_default = True  # type: ignore[attr-defined]


def _check_one_side(model: ModelBase) -> None:
    if model._graph is not None and model._graph.host_nodes and not model.is_host_side:
        names = ", ".join(repr(node.operation.name) for node in model._graph.host_nodes)
        summary = f"model {model.name!r} cannot be a layer: it begins with layers that run on the host"
        fix = "make a model of each part, and call the second on what the first gives"
        raise ModelError(summary, given=f"{names}, then layers that run on devices", fix=fix)
