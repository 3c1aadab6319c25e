"""Activations on `jax.nn`, as functions of one array.

Source: names, arguments and defaults as in `keras.activations`.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from optax import projections

from keras_dist._support.raw_errors import explain_functions
from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError
from keras_dist.serialization.object_configs import serialize_keras_object
from keras_dist.serialization.object_registry import ObjectRegistry, callable_with_one_array


def relu(
    x: ArrayLike, negative_slope: float = 0.0, max_value: float | None = None, threshold: float = 0.0
) -> jax.Array:
    """`x` above `threshold`, limited to `max_value` unless that is None; `negative_slope * (x - threshold)` below."""
    x = jnp.asarray(x)
    if max_value is None and threshold == 0:
        return jax.nn.leaky_relu(x, negative_slope) if negative_slope else jax.nn.relu(x)
    above = jnp.where(x > threshold, x, 0)
    if max_value is not None:
        above = jnp.clip(above, 0, max_value)
    return above - negative_slope * jax.nn.relu(threshold - x) if negative_slope else above


def leaky_relu(x: ArrayLike, negative_slope: float = 0.2) -> jax.Array:
    """`x` above 0, `negative_slope * x` below."""
    return jax.nn.leaky_relu(jnp.asarray(x), negative_slope)


def relu6(x: ArrayLike) -> jax.Array:
    """`min(max(x, 0), 6)`."""
    return jax.nn.relu6(jnp.asarray(x))


def threshold(x: ArrayLike, threshold: float, default_value: float) -> jax.Array:
    """`x` above `threshold`, else `default_value`."""
    x = jnp.asarray(x)
    return jnp.where(x > threshold, x, default_value)


def linear(x: Any) -> Any:
    """`x`."""
    return x


def hard_tanh(x: ArrayLike) -> jax.Array:
    """`min(max(x, -1), 1)`."""
    return jax.nn.hard_tanh(jnp.asarray(x))


def hard_sigmoid(x: ArrayLike) -> jax.Array:
    """`min(max(x / 6 + 1 / 2, 0), 1)`."""
    return jax.nn.hard_sigmoid(jnp.asarray(x))


def sparse_sigmoid(x: ArrayLike) -> jax.Array:
    """`min(max((x + 1) / 2, 0), 1)`: https://arxiv.org/abs/1901.02324."""
    return jax.nn.sparse_sigmoid(jnp.asarray(x))


def hard_silu(x: ArrayLike) -> jax.Array:
    """`x * hard_sigmoid(x)`: https://arxiv.org/abs/1905.02244."""
    return jax.nn.hard_silu(jnp.asarray(x))


def sparse_plus(x: ArrayLike) -> jax.Array:
    """0 below -1, `(x + 1)**2 / 4` up to 1, `x` above."""
    return jax.nn.sparse_plus(jnp.asarray(x))


def soft_shrink(x: ArrayLike, threshold: float = 0.5) -> jax.Array:
    """`x - threshold` above `threshold`, `x + threshold` below `-threshold`, else 0."""
    x = jnp.asarray(x)
    return jnp.where(x > threshold, x - threshold, jnp.where(x < -threshold, x + threshold, 0))


def hard_shrink(x: ArrayLike, threshold: float = 0.5) -> jax.Array:
    """`x` where `abs(x) > threshold`, else 0."""
    x = jnp.asarray(x)
    return jnp.where(jnp.abs(x) > threshold, x, 0.0)


def tanh_shrink(x: ArrayLike) -> jax.Array:
    """`x - tanh(x)`."""
    x = jnp.asarray(x)
    return x - jnp.tanh(x)


def sigmoid(x: ArrayLike) -> jax.Array:
    """`1 / (1 + exp(-x))`."""
    return jax.nn.sigmoid(jnp.asarray(x))


def log_sigmoid(x: ArrayLike) -> jax.Array:
    """`log(sigmoid(x))`."""
    return jax.nn.log_sigmoid(jnp.asarray(x))


def tanh(x: ArrayLike) -> jax.Array:
    """The hyperbolic tangent."""
    return jax.nn.tanh(jnp.asarray(x))


def exponential(x: ArrayLike) -> jax.Array:
    """`exp(x)`."""
    return jnp.exp(jnp.asarray(x))


def softplus(x: ArrayLike) -> jax.Array:
    """`log(exp(x) + 1)`."""
    return jax.nn.softplus(jnp.asarray(x))


def softsign(x: ArrayLike) -> jax.Array:
    """`x / (abs(x) + 1)`."""
    return jax.nn.soft_sign(jnp.asarray(x))


def squareplus(x: ArrayLike, b: float = 4) -> jax.Array:
    """`(x + sqrt(x**2 + b)) / 2`: https://arxiv.org/abs/2112.11687."""
    return jax.nn.squareplus(jnp.asarray(x), b)


def elu(x: ArrayLike, alpha: float = 1.0) -> jax.Array:
    """`x` above 0, `alpha * (exp(x) - 1)` below: https://arxiv.org/abs/1511.07289."""
    return jax.nn.elu(jnp.asarray(x), alpha)


def selu(x: ArrayLike) -> jax.Array:
    """`elu`, scaled to keep mean 0 and variance 1 after `LecunNormal` kernels: https://arxiv.org/abs/1706.02515."""
    return jax.nn.selu(jnp.asarray(x))


def celu(x: ArrayLike, alpha: float = 1.0) -> jax.Array:
    """`x` above 0, `alpha * (exp(x / alpha) - 1)` below: https://arxiv.org/abs/1704.07483."""
    return jax.nn.celu(jnp.asarray(x), alpha)


def silu(x: ArrayLike) -> jax.Array:
    """`x * sigmoid(x)`, also called swish: https://arxiv.org/abs/1710.05941."""
    return jax.nn.silu(jnp.asarray(x))


def gelu(x: ArrayLike, approximate: bool = False) -> jax.Array:
    """`x * P(X <= x)` for a standard normal X, with tanh if `approximate`, else with erf: https://arxiv.org/abs/1606.08415."""
    return jax.nn.gelu(jnp.asarray(x), approximate)


def mish(x: ArrayLike) -> jax.Array:
    """`x * tanh(softplus(x))`: https://arxiv.org/abs/1908.08681."""
    return jax.nn.mish(jnp.asarray(x))


def softmax(x: ArrayLike, axis: int | tuple[int, ...] = -1) -> jax.Array:
    """`exp(x) / sum(exp(x), axis)`, probabilities of classes along `axis`."""
    return jax.nn.softmax(jnp.asarray(x), axis)


def log_softmax(x: ArrayLike, axis: int | tuple[int, ...] = -1) -> jax.Array:
    """`log(softmax(x, axis))`."""
    return jax.nn.log_softmax(jnp.asarray(x), axis)


def sparsemax(x: ArrayLike, axis: int = -1) -> jax.Array:
    """Probabilities along `axis` nearest to `x`, many of which are 0: https://arxiv.org/abs/1602.02068.

    Differs from Keras: values sum to 1, as in the paper; in Keras 3.15 only if a single class remains.
    """
    x = jnp.asarray(x)
    dtype = jnp.result_type(x, 0.0)  # the projection returns float32 for shorter floats, and floors integers
    return jnp.apply_along_axis(projections.projection_simplex, axis, x.astype(dtype)).astype(dtype)


def glu(x: ArrayLike, axis: int = -1) -> jax.Array:
    """`a * sigmoid(b)` for the halves `a` and `b` of `x` along `axis`: https://arxiv.org/abs/1612.08083.

    Raises:
        ModelError: the dim is odd.
    """
    x = jnp.asarray(x)
    if x.shape[axis] % 2:
        fix = "double the units of the layer before, or choose another axis"
        raise ModelError("glu needs an even dim to halve", given=f"shape {x.shape}, axis {axis}", fix=fix)
    return jax.nn.glu(x, axis)


# further names of Keras
hard_swish = hard_silu
swish = silu

_ACTIVATIONS = ObjectRegistry(
    "activation",
    __name__,
    accepted="a function of one array",
    example='"relu", or with arguments: lambda x: activations.threshold(x, 0.5, 0.0)',
    convert=callable_with_one_array,
    functions=True,
)


def get(identifier: Any) -> Callable[[Any], Any]:
    """Return the activation of a name, config or callable of one array; `linear` for None.

    Raises:
        UnknownNameError: no activation has this name.
        ModelError: `identifier` cannot be called with one array.
        ConfigError: a config is invalid.

    Example:
        >>> from keras_dist import activations
        >>> activations.get("relu") is activations.relu
        True
    """
    return linear if identifier is None else _ACTIVATIONS.get(identifier)


def serialize(activation: Any) -> Any:
    """Return the name of an activation of this module, or the config of another one.

    Example:
        >>> from keras_dist import activations
        >>> activations.serialize(activations.silu)
        'silu'
    """
    is_ours = any(function is activation for function in _ACTIVATIONS.names.values())
    return activation.__name__ if is_ours else serialize_keras_object(activation)


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return the activation of a config or name; `custom_objects` maps further names to objects."""
    return linear if config is None else _ACTIVATIONS.deserialize(config, custom_objects)


__all__ = [name for name, value in vars().items() if getattr(value, "__module__", "") == __name__ and name[0] != "_"]  # pyright: ignore[reportUnsupportedDunderAll]


explain_functions(vars())
