"""Activations by name and from configs, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from keras_dist._signatures import takes
from keras_dist.activations.along_axis import glu, log_softmax, softmax, sparsemax
from keras_dist.activations.rectifiers import (
    hard_sigmoid,
    hard_silu,
    hard_tanh,
    leaky_relu,
    linear,
    relu,
    relu6,
    sparse_plus,
    sparse_sigmoid,
    threshold,
)
from keras_dist.activations.shrinking import hard_shrink, soft_shrink, tanh_shrink
from keras_dist.activations.smooth import (
    celu,
    elu,
    exponential,
    gelu,
    log_sigmoid,
    mish,
    selu,
    sigmoid,
    silu,
    softplus,
    softsign,
    squareplus,
    tanh,
)
from keras_dist.errors import ModelError, shorten
from keras_dist.saving import custom_object_scope, resolve, serialize_keras_object

_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    celu,
    elu,
    exponential,
    gelu,
    glu,
    hard_shrink,
    hard_sigmoid,
    hard_silu,
    hard_tanh,
    leaky_relu,
    linear,
    log_sigmoid,
    log_softmax,
    mish,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    soft_shrink,
    softmax,
    softplus,
    softsign,
    sparse_plus,
    sparse_sigmoid,
    sparsemax,
    squareplus,
    tanh,
    tanh_shrink,
    threshold,
)
_NAMES: dict[str, Any] = {function.__name__: function for function in _FUNCTIONS} | {
    "hard_swish": hard_silu,
    "swish": silu,
}


def get(identifier: Any) -> Callable[[Any], Any]:
    """The activation that `identifier` means: a callable of one array.

    Args:
        identifier: a name, a config, a callable of one array, or None for `linear`.

    Raises:
        UnknownNameError: no activation has this name.
        ModelError: it cannot be called with one array.
        ConfigError: a config cannot be read.

    Example:
        >>> from keras_dist import activations
        >>> activations.get("relu") is activations.relu
        True

    Source: `keras.activations.get`.
    """
    if identifier is None:
        return linear
    found = resolve(identifier, _NAMES, "activation", "a function of one array")
    if not callable(found) or not takes(found, None):
        raise ModelError(
            "`activation` cannot be called as activation(x)",
            given=f"{shorten(identifier)} of type {type(identifier).__name__}",
            expected="a name, a config, or a function of one array",
            fix='for example "relu", or with arguments: lambda x: activations.threshold(x, 0.5, 0.0)',
        )
    return found


def serialize(activation: Any) -> Any:
    """The name of an activation of this package; the config of any other.

    Example:
        >>> from keras_dist import activations
        >>> activations.serialize(activations.silu)
        'silu'

    Source: `keras.activations.serialize`.
    """
    own = next((function for function in _FUNCTIONS if function is activation), None)
    return serialize_keras_object(activation) if own is None else own.__name__


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """The activation of a config or name; `custom_objects` are known by name besides.

    Source: `keras.activations.deserialize`.
    """
    with custom_object_scope(custom_objects):
        return get(config)
