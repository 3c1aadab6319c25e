"""Functions of each element: exponentials, trigonometry, rounding, signs, complex numbers."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import jax
import jax.numpy as jnp

from keras_dist._support.types import ArrayLike
from keras_dist.ops.operation import as_array, floating, names_in, operation, unary

absolute = unary("absolute", jnp.absolute, "The distance of each element from 0.")
angle = unary("angle", jnp.angle, "The angle of each complex number, in radians.")
arccos = unary("arccos", jnp.arccos, "The inverse of the cosine, in radians.")
arccosh = unary("arccosh", jnp.arccosh, "The inverse of the hyperbolic cosine.")
arcsin = unary("arcsin", jnp.arcsin, "The inverse of the sine, in radians.")
arcsinh = unary("arcsinh", jnp.arcsinh, "The inverse of the hyperbolic sine.")
arctan = unary("arctan", jnp.arctan, "The inverse of the tangent, in radians.")
arctanh = unary("arctanh", jnp.arctanh, "The inverse of the hyperbolic tangent.")
cbrt = unary("cbrt", jnp.cbrt, "The cube roots.")
ceil = unary("ceil", lambda x: jnp.ceil(floating(x)), "The next integers above, as floats.")
conjugate = unary("conjugate", jnp.conjugate, "The complex conjugates.")
copy = unary("copy", jnp.copy, "A copy of the array.")
cos = unary("cos", jnp.cos, "The cosine of angles in radians.")
cosh = unary("cosh", jnp.cosh, "The hyperbolic cosine.")
deg2rad = unary("deg2rad", jnp.deg2rad, "Angles in degrees, in radians.")
exp = unary("exp", jnp.exp, "The exponentials.")
exp2 = unary("exp2", jnp.exp2, "`2 ** x`.")
expm1 = unary("expm1", jnp.expm1, "`exp(x) - 1`, precise near 0.")
fabs = unary("fabs", jnp.fabs, "The distance of each real number from 0, as floats.")
floor = unary("floor", lambda x: jnp.floor(floating(x)), "The next integers below, as floats.")
i0 = unary("i0", jnp.i0, "The modified Bessel function of the first kind, of order 0.")
imag = unary("imag", jnp.imag, "The imaginary parts.")
isfinite = unary("isfinite", jnp.isfinite, "Whether each element is neither infinite nor NaN.")
isinf = unary("isinf", jnp.isinf, "Whether each element is infinite.")
isnan = unary("isnan", jnp.isnan, "Whether each element is NaN.")
isneginf = unary("isneginf", jnp.isneginf, "Whether each element is `-inf`.")
isposinf = unary("isposinf", jnp.isposinf, "Whether each element is `inf`.")
isreal = unary("isreal", jnp.isreal, "Whether each element has no imaginary part.")
log = unary("log", jnp.log, "The natural logarithms.")
log10 = unary("log10", jnp.log10, "The logarithms to base 10.")
log1p = unary("log1p", jnp.log1p, "`log(1 + x)`, precise near 0.")
log2 = unary("log2", jnp.log2, "The logarithms to base 2.")
negative = unary("negative", jnp.negative, "`-x`.")
rad2deg = unary("rad2deg", jnp.rad2deg, "Angles in radians, in degrees.")
real = unary("real", jnp.real, "The real parts.")
reciprocal = unary("reciprocal", jnp.reciprocal, "`1 / x`.")
sign = unary("sign", jnp.sign, "-1, 0 or 1, as each element is below, at or above 0.")
signbit = unary("signbit", jnp.signbit, "Whether the sign of each element is negative, that of -0.0 included.")
sin = unary("sin", jnp.sin, "The sine of angles in radians.")
sinc = unary("sinc", jnp.sinc, "`sin(pi * x) / (pi * x)`, 1 at 0.")
sinh = unary("sinh", jnp.sinh, "The hyperbolic sine.")
sqrt = unary("sqrt", jnp.sqrt, "The square roots.")
square = unary("square", jnp.square, "`x * x`.")
tan = unary("tan", jnp.tan, "The tangent of angles in radians.")
tanh = unary("tanh", jnp.tanh, "The hyperbolic tangent.")
trunc = unary("trunc", jnp.trunc, "The next integers towards 0; integers as they are.")

# Keras knows the functions under these names, too
abs = absolute
conj = conjugate


@operation
def clip(x: ArrayLike, x_min: ArrayLike, x_max: ArrayLike) -> jax.Array:
    """Return the elements, at least `x_min` and at most `x_max`; those of bools as integers.

    Args:
        x: an array.
        x_min: a number, or an array that broadcasts with `x`.
        x_max: the same.
    """
    x = as_array(x)
    return jnp.clip(x.astype("int32") if x.dtype == bool else x, as_array(x_min), as_array(x_max))


@operation
def nan_to_num(
    x: ArrayLike, nan: ArrayLike = 0.0, posinf: ArrayLike | None = None, neginf: ArrayLike | None = None
) -> jax.Array:
    """Return the array with numbers in place of NaN and infinities.

    Args:
        x: an array.
        nan: in place of NaN.
        posinf: in place of `inf`; None for the largest number of the element type.
        neginf: in place of `-inf`; None for the smallest number.
    """
    return jnp.nan_to_num(as_array(x), nan=nan, posinf=posinf, neginf=neginf)


@operation
def round(x: ArrayLike, decimals: int = 0) -> jax.Array:
    """Return the nearest numbers with so many decimals; halves become even.

    Args:
        x: an array.
        decimals: how many; below 0 for tens, hundreds and so on.
    """
    x = as_array(x)
    if decimals < 0 and jnp.issubdtype(x.dtype, jnp.integer):
        factor = 10.0**decimals
        return (jnp.round(x.astype("float32") * factor) / factor).astype(x.dtype)
    return jnp.round(x, decimals)


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
