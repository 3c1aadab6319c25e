"""Constructor arguments that describe weights: initializer, regularizer, constraint and layout of each.

A layer names its weights and their default initializers once, in `weight_initializers`. Its constructor takes their
arguments as `**kwargs: Unpack[...]` of a typed dict below. `Layer` checks and stores them and completes
`inspect.signature`, which `get_config` follows; written out, each layer would repeat them three times.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from keras_dist._support.types import DTypeLike, Shape
from keras_dist.mixed_precision import DTypePolicy
from keras_dist.variables.variable import Identifier as Identifier
from keras_dist.variables.variable import Layout as Layout

_PARTS = ("initializer", "regularizer", "constraint", "layout")


class LayerArguments(TypedDict, total=False):
    """Keyword arguments of every layer; see `Layer`."""

    activity_regularizer: Identifier
    trainable: bool
    dtype: DTypeLike | DTypePolicy | None
    autocast: bool
    name: str | None
    input_shape: Shape


class BiasArguments(LayerArguments, total=False):
    """Arguments of the weight `bias`."""

    bias_initializer: Identifier
    bias_regularizer: Identifier
    bias_constraint: Identifier
    bias_layout: Layout


class KernelAndBiasArguments(BiasArguments, total=False):
    """Arguments of the weights `kernel` and `bias`."""

    kernel_initializer: Identifier
    kernel_regularizer: Identifier
    kernel_constraint: Identifier
    kernel_layout: Layout


class DepthwiseArguments(BiasArguments, total=False):
    """Arguments of a depthwise kernel and of `bias`."""

    depthwise_initializer: Identifier
    depthwise_regularizer: Identifier
    depthwise_constraint: Identifier
    depthwise_layout: Layout


class SeparableArguments(DepthwiseArguments, total=False):
    """Arguments of a depthwise and a pointwise kernel and of `bias`."""

    pointwise_initializer: Identifier
    pointwise_regularizer: Identifier
    pointwise_constraint: Identifier
    pointwise_layout: Layout


class GammaAndBetaArguments(LayerArguments, total=False):
    """Arguments of the weights `gamma` and `beta`."""

    beta_initializer: Identifier
    gamma_initializer: Identifier
    beta_regularizer: Identifier
    gamma_regularizer: Identifier
    beta_constraint: Identifier
    gamma_constraint: Identifier
    beta_layout: Layout
    gamma_layout: Layout


class AlphaArguments(LayerArguments, total=False):
    """Arguments of the weight `alpha`."""

    alpha_initializer: Identifier
    alpha_regularizer: Identifier
    alpha_constraint: Identifier
    alpha_layout: Layout


class EmbeddingsArguments(LayerArguments, total=False):
    """Arguments of the weight `embeddings`."""

    embeddings_initializer: Identifier
    embeddings_regularizer: Identifier
    embeddings_constraint: Identifier
    embeddings_layout: Layout


def defaults_of(weight: str, initializer: Identifier) -> dict[str, Identifier]:
    """Return the arguments that describe a weight, with their defaults."""
    return {f"{weight}_{part}": initializer if part == "initializer" else None for part in _PARTS}


def hands_on_keywords(constructor: Callable[..., None]) -> bool:
    """Return whether `**kwargs` of a constructor are typed by `Unpack`: it takes all defaults of its base."""
    return any("Unpack[" in str(annotation) for annotation in constructor.__annotations__.values())


def keyword_defaults(constructor: Callable[..., None]) -> dict[str, Any]:
    """Return the parameters of a constructor that have a default."""
    parameters = inspect.signature(constructor).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}


def show_keywords(constructor: Callable[..., None], defaults: Mapping[str, Any]) -> None:
    """Add keyword arguments that `**kwargs` accepts to the signature of a constructor."""
    signature = inspect.signature(constructor)
    *named, kwargs = signature.parameters.values()
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for name, default in defaults.items()
        if name not in signature.parameters
    ]
    constructor.__signature__ = signature.replace(parameters=[*named, *added, kwargs])
