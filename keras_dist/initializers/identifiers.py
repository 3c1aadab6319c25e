"""Initializers by name, from configs, functions and arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from keras_dist.errors import ModelError, shorten
from keras_dist.initializers.adapters import FromArray, FromFunction, has_contract
from keras_dist.initializers.constants import Constant, Identity, Ones, Zeros
from keras_dist.initializers.initializer import Initializer
from keras_dist.initializers.orthogonal_random import Orthogonal
from keras_dist.initializers.plain_random import RandomNormal, RandomUniform, TruncatedNormal
from keras_dist.initializers.scaled_random import (
    GlorotNormal,
    GlorotUniform,
    HeNormal,
    HeUniform,
    LecunNormal,
    LecunUniform,
    VarianceScaling,
)
from keras_dist.saving import custom_object_scope, names_of, resolve, serialize_keras_object

_NAMES: dict[str, Any] = {
    **names_of(
        Constant,
        GlorotNormal,
        GlorotUniform,
        HeNormal,
        HeUniform,
        Identity,
        LecunNormal,
        LecunUniform,
        Ones,
        Orthogonal,
        RandomNormal,
        RandomUniform,
        TruncatedNormal,
        VarianceScaling,
        Zeros,
    ),
    "IdentityInitializer": Identity,
    "OrthogonalInitializer": Orthogonal,
    "normal": RandomNormal,
    "one": Ones,
    "uniform": RandomUniform,
    "zero": Zeros,
}
_ACCEPTED = "a function (shape, dtype) or (key, shape, dtype), or an array"


def get(identifier: Any) -> Any:
    """The initializer that `identifier` means, to be called as `initializer(shape, dtype, key=key)`.

    Args:
        identifier: a name, a config, an `Initializer` or its class, a function `f(shape, dtype)` as in Keras or
            `f(key, shape, dtype)` as in `jax.nn.initializers`, an array of the weight's shape, or None.

    Returns:
        None for None.

    Raises:
        UnknownNameError: no initializer has this name.
        ModelError: it is none of these, or a function with other parameters.
        ConfigError: a config cannot be read.

    Example:
        >>> from keras_dist import initializers
        >>> initializers.get("he_normal").get_config()
        {'seed': None, 'input_axes': None, 'output_axes': None}

    Source: `keras.initializers.get`.
    """
    if identifier is None:
        return None
    if isinstance(identifier, jax.Array | np.ndarray | np.generic):
        return FromArray(identifier)
    found = resolve(identifier, _NAMES, "initializer", _ACCEPTED)
    if not callable(found):
        raise ModelError(
            "`initializer` is not an initializer",
            given=f"{shorten(identifier)} of type {type(identifier).__name__}",
            expected=f"a name, a config, an Initializer, {_ACCEPTED}",
            fix='for example "zeros"; a number is initializers.Constant(number)',
        )
    return found if has_contract(found) else FromFunction(found)


def serialize(initializer: Initializer) -> Any:
    """The config of an initializer.

    Source: `keras.initializers.serialize`.
    """
    return serialize_keras_object(initializer)


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """The initializer of a config or name; `custom_objects` are known by name besides.

    Source: `keras.initializers.deserialize`.
    """
    with custom_object_scope(custom_objects):
        return get(config)
