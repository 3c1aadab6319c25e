"""Conversion of the inputs for which weights were created to plain values and back."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax

from keras_dist._support.types import PyTree
from keras_dist.symbolic.tensors import KerasTensor

if TYPE_CHECKING:
    from keras_dist.models.saving_methods import SavingMethods
    from keras_dist.models.step_methods import StepMethods

_END = "_shape"


def tensors_by_name(model: StepMethods, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, PyTree]:
    """Return the symbolic tensors in the arguments of a call, by parameter name."""
    signature = inspect.signature(model.call)
    named = {
        name for name, one in signature.parameters.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }
    arguments = signature.bind(*args, **kwargs).arguments
    return {name: value for name, value in arguments.items() if name in named and _are_tensors(value)}


def written_build(model: SavingMethods) -> dict[str, Any] | None:
    """Return the argument of `build_as`; None without weights, or if none is needed. See `Model.get_build_config`."""
    runtime = model._runtime
    if model._graph is not None or (runtime.built_for is None and not runtime.built_by_name):
        return None
    if runtime.built_for is not None:
        return {"input_shape": _shapes(runtime.built_for), "input_dtype": _dtypes(runtime.built_for)}
    return {
        "shapes_dict": {f"{name}{_END}": _shapes(tensors) for name, tensors in runtime.built_by_name.items()},
        "input_dtype": {name: _dtypes(tensors) for name, tensors in runtime.built_by_name.items()},
    }


def build_as(model: SavingMethods, config: Mapping[str, Any]) -> None:
    """Create the weights of a model for the inputs that `written_build` or Keras described."""
    dtypes = config.get("input_dtype")
    if "shapes_dict" in config:
        shapes = {name.removesuffix(_END): shape for name, shape in config["shapes_dict"].items()}
        tensors = {
            name: KerasTensor(shape, model.dtype) if dtypes is None else _tensors(shape, dtypes[name])
            for name, shape in shapes.items()
        }
        if model._session is None:
            model._create_weights((), tensors)
    elif dtypes is None:
        model.build(config["input_shape"])
    else:
        model._build_for(_tensors(config["input_shape"], dtypes))


def _are_tensors(value: PyTree) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(leaf, KerasTensor) for leaf in leaves)


def _shapes(tensors: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: list(leaf.shape), tensors)


def _dtypes(tensors: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.dtype, tensors)


def _tensors(shapes: PyTree, dtypes: PyTree) -> PyTree:
    flat, structure = jax.tree.flatten(dtypes)
    pairs = zip(structure.flatten_up_to(shapes), flat, strict=True)
    return structure.unflatten([KerasTensor(shape, dtype) for shape, dtype in pairs])
