"""One operation of ours and that of Keras, called with the same arguments."""

import functools
import operator
import os
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np

import keras_dist as kd
from tests.parity.compare import TOLERANCE, assert_close, compare, values_and_gradients

properties = hypothesis.settings(
    max_examples=5 if os.environ.get("CI") else 3, deadline=None, phases=[hypothesis.Phase.generate]
)
"""Both libraries are traced for each example, of each operation: fewer than the profile's, and none again."""

FLOATS = ("float32", "float16", "bfloat16")
INTEGERS = ("int32", "uint8", "int8")


class Draws:
    """What a case is made of: arrays of drawn shapes and element types.

    Args:
        data: of hypothesis.
    """

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self._random = np.random.default_rng(data.draw(st.integers(0, 3)))

    def one_of(self, *choices: Any) -> Any:
        """Return one of these."""
        return self._data.draw(st.sampled_from(choices))

    def shape(self, *ranks: int) -> tuple[int, ...]:
        """Return a shape of one of these ranks, with the same first dims, so that programs are few."""
        return (2, 3, 4, 2)[: self.one_of(*ranks)]

    def array(self, shape: tuple[int, ...] = (2, 3), dtype: str = "float32", low: float = -2, high: float = 2) -> Any:
        """Return numbers between two; integers include the upper one."""
        if dtype == "bool":
            return self._random.random(shape) < 0.5
        if "int" in dtype:
            return self._random.integers(int(low), int(high) + 1, shape).astype(dtype)
        return self._random.uniform(low, high, shape).astype(jax.numpy.dtype(dtype))

    def floats(self, *ranks: int, low: float = -2, high: float = 2) -> Any:
        """Return an array of one of the floating-point types."""
        return self.array(self.shape(*(ranks or (1, 2, 3))), self.one_of(*FLOATS), low, high)

    def numbers(self, *ranks: int, low: float = 0, high: float = 3) -> Any:
        """Return an array of any type of numbers."""
        return self.array(self.shape(*(ranks or (1, 2, 3))), self.one_of(*FLOATS, *INTEGERS), low, high)


def agree(
    keras: Any,
    name: str,
    *args: Any,
    gradients: bool = False,
    symbolic: bool = True,
    batch: bool = True,
    tolerance: float = TOLERANCE,
    **kwargs: Any,
) -> None:
    """Check that an operation gives what that of Keras gives: values, gradients, and shapes of symbolic results.

    Args:
        keras: the package.
        name: of the operation, such as "image.resize".
        *args: arrays of NumPy, which are traced; others are static.
        gradients: whether those for floats are compared.
        symbolic: whether it is called on symbolic tensors, too.
        batch: whether their first dims are of unknown size.
        tolerance: of values; that of half precision is larger in any case.
        **kwargs: as `args`.
    """
    ours, theirs = (operator.attrgetter(name)(package) for package in (kd.ops, keras.ops))
    leaves, treedef = jax.tree.flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray)]

    def called(function: Any, *arrays: Any) -> Any:
        given = dict(enumerate(leaves)) | dict(zip(places, arrays, strict=True))
        positional, named = treedef.unflatten([given[place] for place in range(len(leaves))])
        return function(*positional, **named)

    def both(*arrays: Any) -> Any:
        find = values_and_gradients if gradients else lambda function, *given: function(*given)
        return [find(functools.partial(called, function), *arrays) for function in (ours, theirs)]

    arrays = [leaves[place] for place in places]
    is_short = any(array.dtype.itemsize < 4 and array.dtype.kind not in "iub" for array in arrays)
    allowed = max(tolerance, 2e-2 if is_short else 0)
    note = f"{name} of {[(array.shape, array.dtype.name) for array in arrays]} in {args}, {kwargs}"
    compare(both, *arrays, check=functools.partial(assert_close, tolerance=allowed), note=note)
    for unknown in (batch,) * symbolic:

        def spec(cls: Any, array: Any, unknown: bool = unknown) -> Any:
            shape = (None, *array.shape[1:]) if unknown and array.ndim else array.shape
            return cls(shape, array.dtype.name)

        found, expected = (
            [
                (tuple(leaf.shape), leaf.dtype)
                for leaf in jax.tree.leaves(called(function, *(spec(cls, a) for a in arrays)))
            ]
            for function, cls in ((ours, kd.KerasTensor), (theirs, keras.KerasTensor))
        )
        assert found == expected, f"symbolic results {found}, of Keras {expected}: {note}"
