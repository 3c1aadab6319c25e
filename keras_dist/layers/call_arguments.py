"""The arguments of a layer's call: which hold arrays, what was given, what is filled in."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist.layers import call_context


@functools.cache
def call_parameters(cls: type) -> dict[str, inspect.Parameter]:
    """The parameters of `cls.call`, without `self`."""
    parameters = dict(inspect.signature(cls.call).parameters)  # type: ignore[attr-defined]
    parameters.pop("self", None)
    return parameters


def takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Whether there is a `**kwargs` among the parameters."""
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def value_given(
    parameters: Mapping[str, inspect.Parameter], args: tuple[Any, ...], kwargs: dict[str, Any], name: str, default: Any
) -> Any:
    """The value that a call gives to a parameter; `default` when it gives none, or None."""
    position = list(parameters).index(name)
    value = args[position] if position < len(args) else kwargs.get(name)
    return default if value is None else value


def training_of(parameters: Mapping[str, inspect.Parameter], context: call_context.CallContext) -> bool:
    """Whether a call that does not say so trains: as the call around it, else by the default of the layer's own."""
    return bool(parameters["training"].default is True if context.training is None else context.training)


def tensor_arguments(
    parameters: Mapping[str, inspect.Parameter], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of a call that hold arrays, by the names of the parameters."""
    names = [name for name, p in parameters.items() if p.kind is not inspect.Parameter.VAR_POSITIONAL]
    named = {names[index] if index < len(names) else f"arg{index}": value for index, value in enumerate(args)}
    named |= {name: value for name, value in kwargs.items() if not name.endswith("mask")}
    return {name: value for name, value in named.items() if any(map(_is_array, jax.tree.leaves(value)))}


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def shapes_of(tensors: Any) -> Any:
    """The shape of an array; of a structure of arrays the structure of their shapes."""
    return jax.tree.map(jnp.shape, tensors)
