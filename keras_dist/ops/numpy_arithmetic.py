"""Functions of the elements of two arrays, which broadcast: arithmetic, extremes, bits."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.types import ArrayLike
from keras_dist.ops.operation import as_array, binary, like, names_in


def _bitwise(name: str, function: Callable[[Any, Any], Any], doc: str) -> Callable[[ArrayLike, ArrayLike], jax.Array]:
    """Return the operation `name(x, y)`."""

    def applied(x: ArrayLike, y: ArrayLike) -> jax.Array:
        return function(x, as_array(y))

    return like(name, applied, doc)


def _in_floats(function: Callable[[Any, Any], Any]) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return the function in the float type of both arrays; numbers of Python count as float32 here."""

    def applied(x1: jax.Array, x2: jax.Array) -> jax.Array:
        dtype = jnp.result_type(x1.dtype, x2.dtype, 0.0)
        return function(x1.astype(dtype), x2.astype(dtype))

    return applied


def _divide_no_nan(x1: jax.Array, x2: jax.Array) -> jax.Array:
    return jnp.where(x2 == 0, 0, jnp.divide(x1, jnp.where(x2 == 0, 1, x2)))


add = binary("add", jnp.add, "`x1 + x2`.")
arctan2 = binary("arctan2", _in_floats(jnp.arctan2), "The angle of the point `(x2, x1)`, in radians.")
divide = binary("divide", jnp.divide, "`x1 / x2`, as floats.")
divide_no_nan = binary("divide_no_nan", _divide_no_nan, "`x1 / x2`; 0 where `x2` is 0.")
floor_divide = binary("floor_divide", jnp.floor_divide, "`x1 // x2`.")
fmax = binary("fmax", jnp.fmax, "The larger of two elements; the other one where one is NaN.")
fmin = binary("fmin", jnp.fmin, "The smaller of two elements; the other one where one is NaN.")
fmod = binary("fmod", jnp.fmod, "The remainder of `x1 / x2`, with the sign of `x1`.")
gcd = binary("gcd", jnp.gcd, "The greatest common divisor of integers.")
heaviside = binary("heaviside", jnp.heaviside, "0 where `x1` is below 0, 1 where it is above, `x2` where it is 0.")
hypot = binary("hypot", jnp.hypot, "`sqrt(x1**2 + x2**2)`.")
lcm = binary("lcm", jnp.lcm, "The least common multiple of integers.")
ldexp = binary("ldexp", jnp.ldexp, "`x1 * 2**x2` for integers `x2`.")
logaddexp = binary("logaddexp", _in_floats(jnp.logaddexp), "`log(exp(x1) + exp(x2))`.")
logaddexp2 = binary("logaddexp2", _in_floats(jnp.logaddexp2), "`log2(2**x1 + 2**x2)`.")
maximum = binary("maximum", jnp.maximum, "The larger of two elements; NaN where one is NaN.")
minimum = binary("minimum", jnp.minimum, "The smaller of two elements; NaN where one is NaN.")
mod = binary("mod", jnp.mod, "The remainder of `x1 / x2`, with the sign of `x2`.")
multiply = binary("multiply", jnp.multiply, "`x1 * x2`.")
nextafter = binary("nextafter", jnp.nextafter, "The next number of the element type from `x1` towards `x2`.")
power = binary("power", jnp.power, "`x1 ** x2`.")
subtract = binary("subtract", jnp.subtract, "`x1 - x2`.")

bitwise_and = _bitwise("bitwise_and", jnp.bitwise_and, "The bits that are set in both integers.")
bitwise_left_shift = _bitwise("bitwise_left_shift", jnp.left_shift, "The bits of `x`, moved to the left by `y`.")
bitwise_or = _bitwise("bitwise_or", jnp.bitwise_or, "The bits that are set in one of the integers.")
bitwise_right_shift = _bitwise("bitwise_right_shift", jnp.right_shift, "The bits of `x`, moved to the right by `y`.")
bitwise_xor = _bitwise("bitwise_xor", jnp.bitwise_xor, "The bits that are set in exactly one of the integers.")

# Keras knows the functions under these names, too
left_shift = bitwise_left_shift
right_shift = bitwise_right_shift
true_divide = divide

__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
