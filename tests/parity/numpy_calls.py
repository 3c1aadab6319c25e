"""Calls of each name of NumPy in `keras.ops`, with arrays to be drawn, to compare ours with Keras's."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

FLOATS = ("float32", "bfloat16", "float16")
INTEGERS = ("int32", "int8", "uint8")
NUMBERS = FLOATS + INTEGERS
ALL = (*NUMBERS, "bool")


@dataclasses.dataclass(frozen=True)
class A:
    """An array of this shape, of any of these element types; integers lie in `[0, below)` where that is given."""

    shape: tuple[int, ...] = (2, 3)
    dtypes: tuple[str, ...] = ALL
    below: int = 0

    @property
    def symbolic_shape(self) -> tuple[int | None, ...]:
        """The shape, with a batch of unknown size in place of 2."""
        return (None, *self.shape[1:]) if len(self.shape) > 1 and self.shape[0] == 2 else self.shape

    def value(self, dtype: str, seed: int = 0) -> Any:
        random = np.random.default_rng(seed)
        if self.below:
            return random.integers(0, self.below, self.shape).astype(jnp.dtype(dtype))
        low = 0 if dtype in ("uint8", "bool") else -3
        high = 1 if dtype == "bool" else 3
        values = random.integers(low, high, self.shape, endpoint=True)
        return (values / 2 if dtype in FLOATS else values).astype(jnp.dtype(dtype))


class Call:
    """Arguments of a call, arrays among them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs

    @property
    def arrays(self) -> list[A]:
        return [leaf for leaf in jax.tree.leaves((self.args, self.kwargs)) if isinstance(leaf, A)]

    def filled(self, values: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with values in place of arrays."""
        remaining = iter(values)
        leaves, treedef = jax.tree.flatten((self.args, self.kwargs))
        return treedef.unflatten([next(remaining) if isinstance(leaf, A) else leaf for leaf in leaves])

    def run(self, function: Callable[..., Any], values: Any) -> Any:
        args, kwargs = self.filled(values)
        return function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"{self.args}, {self.kwargs}"


def _words(text: str) -> list[str]:
    return text.split()


X = A()
ROW = A((3,))
MATRIX = A((3, 3))
INDICES = A((2, 2), ("int32", "uint8"), 2)

UNARY = _words("""
    absolute abs fabs angle arccos arccosh arcsin arcsinh arctan arctanh bitwise_invert bitwise_not cbrt ceil
    conjugate conj copy cos cosh deg2rad rad2deg exp exp2 expm1 fliplr flipud floor imag i0 isfinite isinf
    isnan isneginf isposinf isreal log log10 log1p log2 logical_not ndim ravel real reciprocal sign signbit
    sin sinc sinh size tan tanh trunc negative square sqrt corrcoef
""")
BINARY = _words("""
    add arctan2 heaviside equal gcd greater greater_equal hypot kron lcm less less_equal logaddexp logaddexp2
    logical_and logical_or maximum fmax minimum fmin mod fmod not_equal outer inner subtract multiply divide
    divide_no_nan true_divide power nextafter floor_divide logical_xor bitwise_and bitwise_or bitwise_xor
    bitwise_left_shift left_shift bitwise_right_shift right_shift isclose allclose
""")
REDUCTIONS = _words("""
    all any amax amin argmax argmin median nanargmax nanargmin nanmax nanmean nanmedian nanmin nanprod nanstd
    nansum nanvar ptp std mean var sum max min prod
""")
RUNNING = _words("cumprod cumsum nancumsum nancumprod")
QUANTILES = _words("quantile percentile nanquantile nanpercentile")

CALLS: dict[str, list[Call]] = {
    **{name: [Call(X)] for name in UNARY},
    **{name: [Call(X, X), Call(X, ROW), Call(X, 2), Call(2.5, X), Call(True, X)] for name in BINARY},
    **{
        name: [Call(X), Call(X, axis=1), Call(X, axis=0 if "arg" in name else (0, 1), keepdims=True)]
        for name in REDUCTIONS
    },
    **{name: [Call(X), Call(X, axis=1), Call(X, axis=0, dtype="float32")] for name in RUNNING},
    **{
        name: [Call(X, 0.5), Call(X, [0.25, 0.5], axis=1, keepdims=True), Call(X, 1.0, axis=(0, 1), method="nearest")]
        for name in QUANTILES
    },
    "append": [Call(X, X), Call(X, X, axis=1)],
    "argpartition": [Call(X, 1), Call(X, 1, axis=0), Call(X, 2, axis=None)],
    "argsort": [Call(X), Call(X, axis=0), Call(X, axis=None)],
    "array": [Call(X), Call(X, dtype="float16"), Call([1, 2]), Call(2.5)],
    "array_split": [Call(X, 2, axis=1), Call(X, 1)],
    "average": [Call(X), Call(X, axis=1, weights=ROW), Call(X, axis=(0, 1), weights=X)],
    "broadcast_to": [Call(ROW, (2, 3)), Call(1, (2,))],
    "clip": [Call(X, -1, 1), Call(X, 0.5, 1.0), Call(X, ROW, X)],
    "concatenate": [Call([X, X]), Call([X, X], axis=-1), Call((X, X, X), axis=1)],
    "correlate": [Call(ROW, ROW), Call(ROW, A((2,)), mode="same"), Call(ROW, ROW, mode="full")],
    "count_nonzero": [Call(X), Call(X, axis=1)],
    "cross": [Call(ROW, ROW), Call(X, X), Call(MATRIX, MATRIX, axis=0), Call(MATRIX, MATRIX, 0, 0, 0)],
    "diag": [Call(ROW), Call(ROW, k=1), Call(MATRIX, k=-1)],
    "diagflat": [Call(X), Call(ROW, k=-1)],
    "diagonal": [Call(X), Call(A((2, 3, 3)), offset=1, axis1=1, axis2=2)],
    "diff": [Call(X), Call(X, n=2), Call(X, axis=0)],
    "digitize": [Call(X, A((3,), ("float32",)))],
    "dot": [Call(X, ROW), Call(MATRIX, MATRIX), Call(X, 2)],
    "dsplit": [Call(A((2, 2, 4)), 2), Call(A((2, 2, 4)), [1, 3])],
    "dstack": [Call([X, X]), Call([ROW, ROW])],
    "einsum": [Call("ij,j->i", X, ROW), Call("ij->ji", X), Call("ij,kj", X, X)],
    "empty_like": [Call(X), Call(X, dtype="int8")],
    "expand_dims": [Call(X, 1), Call(X, (0, -1))],
    "flip": [Call(X), Call(X, axis=1), Call(X, axis=(0, 1))],
    "full_like": [Call(X, 3), Call(X, 2.5, dtype="float16"), Call(X, ROW)],
    "geomspace": [Call(1, 8, 4), Call(A((2,), NUMBERS, 3), 8.0, num=3, endpoint=False, axis=-1)],
    "get_item": [Call(X, 0), Call(X, (slice(None), 1)), Call(X, (..., None, slice(0, 2))), Call(X, INDICES)],
    "histogram": [Call(A((6,)), bins=4), Call(A((6,), NUMBERS), bins=4, range=(0, 2))],
    "hsplit": [Call(A((2, 4)), 2), Call(A((4,)), [1, 2])],
    "hstack": [Call([X, X]), Call([ROW, ROW])],
    "isin": [Call(X, ROW), Call(X, [1, 2], invert=True)],
    "ldexp": [Call(X, A((2, 3), ("int32", "int8"))), Call(X, 2)],
    "linspace": [
        Call(0, 1, 5),
        Call(A((2,), NUMBERS), A((2,), NUMBERS), num=3, endpoint=False, axis=-1),
        Call(0, ROW, 3, retstep=True),
        Call(0, 9, 4, dtype="int32"),
    ],
    "logspace": [Call(0, 1, 5), Call(A((2,), NUMBERS), 2.0, num=3, endpoint=False, base=2, axis=-1)],
    "matmul": [Call(MATRIX, MATRIX), Call(X, ROW), Call(A((2, 2, 3)), MATRIX)],
    "max": [Call(X), Call(X, axis=1, initial=2)],
    "meshgrid": [Call(ROW, A((2,))), Call(ROW, A((2,)), indexing="ij")],
    "min": [Call(X), Call(X, axis=[0], initial=2)],
    "moveaxis": [Call(X, 0, 1), Call(A((2, 3, 4)), (0, 1), (2, 0))],
    "nan_to_num": [Call(X), Call(X, nan=1.0, posinf=2.0, neginf=-2.0)],
    "ones_like": [Call(X), Call(X, dtype="int8")],
    "pad": [Call(X, 1), Call(X, ((0, 0), (1, 2)), constant_values=2), Call(X, ((0, 0), (1, 1)), mode="reflect")],
    "prod": [Call(X), Call(X, axis=1, dtype="float32")],
    "repeat": [Call(X, 2), Call(X, 2, axis=1), Call(X, np.array([1, 0, 2]), axis=1)],
    "reshape": [Call(X, (3, 2)), Call(X, -1), Call(A((2, 4)), [-1, 2, 2])],
    "roll": [Call(X, 1), Call(X, 1, axis=1), Call(X, (1, 2), axis=(0, 1))],
    "rot90": [Call(X), Call(A((2, 3, 4)), k=3, axes=(1, 2))],
    "round": [Call(X), Call(X, decimals=1), Call(X, decimals=-1)],
    "searchsorted": [Call(ROW, X), Call(ROW, X, side="right")],
    "select": [Call([A((2, 3), ("bool",))], [X]), Call([A((2, 3), ("bool",))] * 2, [X, X], default=2)],
    "slogdet": [Call(A((3, 3), ("float32",))), Call(A((2, 3, 3), ("float32",)))],
    "sort": [Call(X), Call(X, axis=0), Call(X, axis=None)],
    "split": [Call(A((2, 4)), 2, axis=1), Call(A((2, 4)), [1, 3], axis=1)],
    "squeeze": [Call(A((2, 1, 3))), Call(A((2, 1, 1)), axis=1), Call(A((2, 1, 1)), axis=(1, 2))],
    "stack": [Call([X, X]), Call([X, X, X], axis=-1)],
    "swapaxes": [Call(X, 0, 1), Call(A((2, 3, 4)), -1, 1)],
    "take": [Call(X, INDICES), Call(X, INDICES, axis=1), Call(X, 1, axis=-1), Call(X, [0, 5], axis=1)],
    "take_along_axis": [Call(X, INDICES, axis=1), Call(X, A((4,), ("int32",), 5), axis=None)],
    "tensordot": [Call(MATRIX, MATRIX), Call(X, ROW, axes=1), Call(X, X, axes=[[1], [1]])],
    "tile": [Call(X, 2), Call(X, (2, 1)), Call(ROW, [2, 2])],
    "trace": [Call(X), Call(A((2, 3, 3)), offset=1, axis1=1, axis2=2)],
    "transpose": [Call(X), Call(A((2, 3, 4)), axes=(1, 0, 2))],
    "trapezoid": [Call(X), Call(X, x=ROW), Call(X, dx=0.5, axis=0)],
    "tril": [Call(X), Call(A((2, 3, 3)), k=1)],
    "triu": [Call(X), Call(A((2, 3, 3)), k=-1)],
    "unravel_index": [Call(INDICES, (2, 3)), Call(3, (2, 3))],
    "unique": [Call(X, size=3), Call(X, axis=0, size=3, return_inverse=True, return_counts=True, fill_value=0)],
    "vander": [Call(ROW), Call(ROW, N=2, increasing=True)],
    "vdot": [Call(ROW, ROW), Call(X, X)],
    "view": [Call(A((2, 4), ("float32", "int32")), dtype="int32"), Call(A((2, 4), ("uint8",)), dtype="int16"), Call(X)],
    "vsplit": [Call(A((4, 2)), 2), Call(A((4, 2)), [1, 3])],
    "vstack": [Call([X, X]), Call([ROW, ROW])],
    "where": [Call(X, X, ROW), Call(X, 1, X), Call(A((2, 3), ("bool",)), X, 0.0)],
    "zeros_like": [Call(X), Call(X, dtype="int8")],
}  # fmt: skip
"""Calls that can be traced, by name."""

MADE: dict[str, list[Call]] = {
    "arange": [Call(3), Call(1, 4), Call(0, 1, 0.25), Call(2.5), Call(3, dtype="float32"), Call(5, stop=1, step=-2)],
    "empty": [Call((2, 3)), Call(2, dtype="int32")],
    "eye": [Call(3), Call(2, 3, k=1, dtype="int32")],
    "full": [Call((2, 3), 2), Call(2, 2.5, dtype="int32"), Call((2, 3), ROW)],
    "identity": [Call(3), Call(2, dtype="int8")],
    "ones": [Call((2, 3)), Call(2, dtype="bool")],
    "tri": [Call(3), Call(2, 3, k=1, dtype="int32")],
    "zeros": [Call((2, 3)), Call(2, dtype="uint8")],
}
"""The same, of names that make arrays of numbers."""

KNOWN: dict[str, list[Call]] = {
    "bartlett": [Call(5)],
    "bincount": [
        Call(A((6,), ("int32", "uint8"), 4)),
        Call(A((6,), ("int32",), 4), weights=A((6,), FLOATS), minlength=6),
        Call(A((2, 6), ("int32",), 4), minlength=4),
        Call(A((2, 6), ("int32",), 4), weights=A((2, 6), FLOATS), minlength=4),
    ],
    "blackman": [Call(5)],
    "hamming": [Call(5)],
    "hanning": [Call(5)],
    "kaiser": [Call(5, 2.0)],
    "nonzero": [Call(X)],
    "unique": [Call(X), Call(X, return_index=True, return_inverse=True, return_counts=True)],
    "where": [Call(X)],
}
"""Calls that need values, by name."""


class Traced(NamedTuple):
    """The operations of a call as text, its constants, and the shapes and element types of its results."""

    program: str
    constants: list[Any]
    shapes: Any


def traced(function: Callable[..., Any], call: Call, values: list[Any]) -> Traced:
    """Trace a call of a function with values in place of its arrays."""
    program, shapes = jax.make_jaxpr(lambda *arrays: call.run(function, arrays), return_shape=True)(*values)
    return Traced(re.sub(r" at 0x[0-9a-f]+", "", str(program)), program.consts, shapes)


def each_element_type(call: Call) -> Iterator[list[str]]:
    """Element types for the arrays of a call: each of the first one's, beside the first of the others."""
    first, others = call.arrays[:1], [array.dtypes[0] for array in call.arrays[1:]]
    yield from ([dtype, *others] for dtype in first[0].dtypes) if first else [[]]
