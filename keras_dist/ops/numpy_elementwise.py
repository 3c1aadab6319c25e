"""Element-wise functions of `jax.numpy`: arithmetic, rounding, bits, comparisons, and choices between arrays."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import argument_error
from keras_dist._support.types import ArrayLike
from keras_dist.ops import numpy_arguments as arguments
from keras_dist.ops.operation import as_array, binary, floating, like, names_in, operation, unary


def _bitwise(name: str, function: Callable[[Any, Any], Any], doc: str) -> Callable[[ArrayLike, ArrayLike], jax.Array]:

    def applied(x: ArrayLike, y: ArrayLike) -> jax.Array:
        return function(x, as_array(y))

    return like(name, applied, doc)


def _in_floats(function: Callable[[Any, Any], Any]) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return the function computed in the float type of both arrays; Python numbers are float32 here."""

    def applied(x1: jax.Array, x2: jax.Array) -> jax.Array:
        dtype = jnp.result_type(x1.dtype, x2.dtype, 0.0)
        return function(x1.astype(dtype), x2.astype(dtype))

    return applied


def _divide_no_nan(x1: jax.Array, x2: jax.Array) -> jax.Array:
    return jnp.where(x2 == 0, 0, jnp.divide(x1, jnp.where(x2 == 0, 1, x2)))


abs = absolute = unary("absolute", jnp.absolute, "Return the absolute values.")
angle = unary("angle", jnp.angle, "Return the angles of complex numbers, in radians.")
arccos = unary("arccos", jnp.arccos, "Return the inverse cosines, in radians.")
arccosh = unary("arccosh", jnp.arccosh, "Return the inverse hyperbolic cosines.")
arcsin = unary("arcsin", jnp.arcsin, "Return the inverse sines, in radians.")
arcsinh = unary("arcsinh", jnp.arcsinh, "Return the inverse hyperbolic sines.")
arctan = unary("arctan", jnp.arctan, "Return the inverse tangents, in radians.")
arctanh = unary("arctanh", jnp.arctanh, "Return the inverse hyperbolic tangents.")
bitwise_invert = bitwise_not = unary("bitwise_invert", jnp.invert, "Invert all bits; `not x` for bools.")
cbrt = unary("cbrt", jnp.cbrt, "Return the cube roots.")
ceil = unary("ceil", lambda x: jnp.ceil(floating(x)), "Round up to integers, returned as floats.")
conj = conjugate = unary("conjugate", jnp.conjugate, "Return the complex conjugates.")
copy = unary("copy", jnp.copy, "Return a copy of the array.")
cos = unary("cos", jnp.cos, "Return the cosines of angles in radians.")
cosh = unary("cosh", jnp.cosh, "Return the hyperbolic cosines.")
deg2rad = unary("deg2rad", jnp.deg2rad, "Convert angles from degrees to radians.")
exp = unary("exp", jnp.exp, "Return the exponentials `e ** x`.")
exp2 = unary("exp2", jnp.exp2, "Return `2 ** x`.")
expm1 = unary("expm1", jnp.expm1, "Return `exp(x) - 1`, precise near 0.")
fabs = unary("fabs", jnp.fabs, "Return the absolute values of real numbers, as floats.")
floor = unary("floor", lambda x: jnp.floor(floating(x)), "Round down to integers, returned as floats.")
i0 = unary("i0", jnp.i0, "Return the modified Bessel function of the first kind, of order 0.")
imag = unary("imag", jnp.imag, "Return the imaginary parts.")
isfinite = unary("isfinite", jnp.isfinite, "Return whether each element is neither infinite nor NaN.")
isinf = unary("isinf", jnp.isinf, "Return whether each element is infinite.")
isnan = unary("isnan", jnp.isnan, "Return whether each element is NaN.")
isneginf = unary("isneginf", jnp.isneginf, "Return whether each element is `-inf`.")
isposinf = unary("isposinf", jnp.isposinf, "Return whether each element is `inf`.")
isreal = unary("isreal", jnp.isreal, "Return whether the imaginary part of each element is 0.")
log = unary("log", jnp.log, "Return the natural logarithms.")
log10 = unary("log10", jnp.log10, "Return the logarithms to base 10.")
log1p = unary("log1p", jnp.log1p, "Return `log(1 + x)`, precise near 0.")
log2 = unary("log2", jnp.log2, "Return the logarithms to base 2.")
logical_not = unary("logical_not", jnp.logical_not, "Return whether each element is false, or 0.")
negative = unary("negative", jnp.negative, "Return `-x`.")
rad2deg = unary("rad2deg", jnp.rad2deg, "Convert angles from radians to degrees.")
real = unary("real", jnp.real, "Return the real parts.")
reciprocal = unary("reciprocal", jnp.reciprocal, "Return `1 / x`.")
sign = unary("sign", jnp.sign, "Return the signs: -1, 0 or 1.")
signbit = unary("signbit", jnp.signbit, "Return whether the sign bit of each element is set, as it is for -0.0.")
sin = unary("sin", jnp.sin, "Return the sines of angles in radians.")
sinc = unary("sinc", jnp.sinc, "Return `sin(pi * x) / (pi * x)`, and 1 at 0.")
sinh = unary("sinh", jnp.sinh, "Return the hyperbolic sines.")
sqrt = unary("sqrt", jnp.sqrt, "Return the square roots.")
square = unary("square", jnp.square, "Return `x * x`.")
tan = unary("tan", jnp.tan, "Return the tangents of angles in radians.")
tanh = unary("tanh", jnp.tanh, "Return the hyperbolic tangents.")
trunc = unary("trunc", jnp.trunc, "Round towards 0; integers stay as they are.")

add = binary("add", jnp.add, "Return `x1 + x2`.")
arctan2 = binary("arctan2", _in_floats(jnp.arctan2), "Return the angle of the point `(x2, x1)`, in radians.")
divide = true_divide = binary("divide", jnp.divide, "Return `x1 / x2`, as floats.")
divide_no_nan = binary("divide_no_nan", _divide_no_nan, "Return `x1 / x2`, and 0 where `x2` is 0.")
equal = binary("equal", jnp.equal, "Return `x1 == x2`.")
floor_divide = binary("floor_divide", jnp.floor_divide, "Return `x1 // x2`.")
fmax = binary("fmax", jnp.fmax, "Return the larger of two elements, ignoring NaN.")
fmin = binary("fmin", jnp.fmin, "Return the smaller of two elements, ignoring NaN.")
fmod = binary("fmod", jnp.fmod, "Return the remainder of `x1 / x2`, with the sign of `x1`.")
gcd = binary("gcd", jnp.gcd, "Return the greatest common divisor of integers.")
greater = binary("greater", jnp.greater, "Return `x1 > x2`.")
greater_equal = binary("greater_equal", jnp.greater_equal, "Return `x1 >= x2`.")
heaviside = binary("heaviside", jnp.heaviside, "Return 0 where `x1 < 0`, 1 where `x1 > 0`, and `x2` where `x1` is 0.")
hypot = binary("hypot", jnp.hypot, "Return `sqrt(x1**2 + x2**2)`.")
lcm = binary("lcm", jnp.lcm, "Return the least common multiple of integers.")
ldexp = binary("ldexp", jnp.ldexp, "Return `x1 * 2**x2` for integers `x2`.")
less = binary("less", jnp.less, "Return `x1 < x2`.")
less_equal = binary("less_equal", jnp.less_equal, "Return `x1 <= x2`.")
logaddexp = binary("logaddexp", _in_floats(jnp.logaddexp), "Return `log(exp(x1) + exp(x2))`.")
logaddexp2 = binary("logaddexp2", _in_floats(jnp.logaddexp2), "Return `log2(2**x1 + 2**x2)`.")
logical_and = binary("logical_and", jnp.logical_and, "Return whether both elements are true, or not 0.")
logical_or = binary("logical_or", jnp.logical_or, "Return whether one of two elements is true, or not 0.")
logical_xor = binary("logical_xor", jnp.logical_xor, "Return whether exactly one of two elements is true, or not 0.")
maximum = binary("maximum", jnp.maximum, "Return the larger of two elements, NaN where one is NaN.")
minimum = binary("minimum", jnp.minimum, "Return the smaller of two elements, NaN where one is NaN.")
mod = binary("mod", jnp.mod, "Return the remainder of `x1 / x2`, with the sign of `x2`.")
multiply = binary("multiply", jnp.multiply, "Return `x1 * x2`.")
nextafter = binary("nextafter", jnp.nextafter, "Return the next number of the element type from `x1` towards `x2`.")
not_equal = binary("not_equal", jnp.not_equal, "Return `x1 != x2`.")
power = binary("power", jnp.power, "Return `x1 ** x2`.")
subtract = binary("subtract", jnp.subtract, "Return `x1 - x2`.")

bitwise_and = _bitwise("bitwise_and", jnp.bitwise_and, "Return the bits that are set in both integers.")
bitwise_left_shift = _bitwise("bitwise_left_shift", jnp.left_shift, "Shift the bits of `x` to the left by `y`.")
bitwise_or = _bitwise("bitwise_or", jnp.bitwise_or, "Return the bits that are set in one of the integers.")
bitwise_right_shift = _bitwise("bitwise_right_shift", jnp.right_shift, "Shift the bits of `x` to the right by `y`.")
bitwise_xor = _bitwise("bitwise_xor", jnp.bitwise_xor, "Return the bits that are set in exactly one of the integers.")
left_shift, right_shift = bitwise_left_shift, bitwise_right_shift


@operation
def clip(x: ArrayLike, x_min: ArrayLike, x_max: ArrayLike) -> jax.Array:
    """Limit the elements of `x` to the range from `x_min` to `x_max`, which broadcast; bools become int32."""
    x = as_array(x)
    return jnp.clip(x.astype("int32") if x.dtype == bool else x, as_array(x_min), as_array(x_max))


@operation
def nan_to_num(
    x: ArrayLike, nan: ArrayLike = 0.0, posinf: ArrayLike | None = None, neginf: ArrayLike | None = None
) -> jax.Array:
    """Replace NaN and infinities by numbers; None stands for the largest, or smallest, number of the element type."""
    return jnp.nan_to_num(as_array(x), nan=nan, posinf=posinf, neginf=neginf)


@operation
def round(x: ArrayLike, decimals: int = 0) -> jax.Array:
    """Round to `decimals` decimals, halves to even; negative `decimals` round to tens, hundreds and so on."""
    x = as_array(x)
    if decimals < 0 and jnp.issubdtype(x.dtype, jnp.integer):
        factor = 10.0**decimals
        return (jnp.round(x.astype("float32") * factor) / factor).astype(x.dtype)
    return jnp.round(x, decimals)


@operation
def isclose(x1: ArrayLike, x2: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> jax.Array:
    """Return whether `abs(x1 - x2) <= atol + rtol * abs(x2)` for each element; two NaNs only with `equal_nan`."""
    return jnp.isclose(as_array(x1), as_array(x2), rtol, atol, equal_nan)


@operation
def allclose(
    x1: ArrayLike, x2: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> jax.Array:
    """Return whether `isclose` holds for all elements."""
    return jnp.allclose(as_array(x1), as_array(x2), rtol, atol, equal_nan)


@operation
def isin(x1: ArrayLike, x2: ArrayLike, assume_unique: bool = False, invert: bool = False) -> jax.Array:
    """Return whether `x2` contains each element of `x1`; with `invert`, the opposite. `assume_unique` is a hint."""
    return jnp.isin(as_array(x1), as_array(x2), assume_unique=assume_unique, invert=invert)


@operation
def nonzero(x: ArrayLike) -> tuple[jax.Array, ...]:
    """Return the indices of the elements that are not 0: an array for each dim.

    Raises:
        ModelError: `x` is symbolic or traced; the number of indices would be the shape of the result.
    """
    return jnp.nonzero(arguments.known(x, "nonzero", "ops.where(condition, x1, x2) keeps the shape"))


@operation
def where(condition: ArrayLike, x1: ArrayLike | None = None, x2: ArrayLike | None = None) -> Any:
    """Return `x1` where `condition` holds, else `x2`; without both, the indices where it holds.

    Raises:
        ModelError: only one of `x1` and `x2` is given; or neither, and `condition` is symbolic or traced.
    """
    if x1 is None and x2 is None:
        return jnp.nonzero(arguments.known(condition, "where", "ops.where(condition, x1, x2) keeps the shape"))
    if x1 is None or x2 is None:
        missing = "x1" if x1 is None else "x2"
        raise argument_error(missing, None, "an array, where the other one is given", example=0)
    return jnp.where(as_array(condition), as_array(x1), as_array(x2))


@operation
def select(condlist: Sequence[ArrayLike], choicelist: Sequence[ArrayLike], default: ArrayLike = 0) -> jax.Array:
    """Return, per element, the first of `choicelist` whose condition in `condlist` holds, else `default`.

    Raises:
        ModelError: `condlist` or `choicelist` is not a list, or is empty.
    """
    for argument, value in (("condlist", condlist), ("choicelist", choicelist)):
        if not isinstance(value, list | tuple) or not value:
            raise argument_error(argument, value, "a list of arrays, at least one")
    return jnp.select([*map(as_array, condlist)], [*map(as_array, choicelist)], as_array(default))


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
