"""Transforms between an array of a file and a part of a weight, in both directions.

Loading applies them to memory-mapped arrays: a transform that returns a view lets each device read its part alone.
A transform gets the shape of the weight, and so splits heads without being given their number.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from keras_dist.errors import ModelError, shorten

Shape = tuple[int, ...]
Function = Callable[[np.ndarray], np.ndarray]


class Transform(abc.ABC):
    """A change of form. Where an array does not fit, it is returned in a form that shows it, for the list of errors."""

    @abc.abstractmethod
    def load(self, array: np.ndarray, shape: Shape) -> np.ndarray:
        """Return an array of a file in the form of a weight of this shape."""

    @abc.abstractmethod
    def save(self, array: np.ndarray) -> np.ndarray:
        """Return a weight in the form of the file."""

    def file_shape(self, shape: Shape) -> Shape:
        """Return the shape that a weight of this shape has in the file."""
        return self.save(np.broadcast_to(np.float32(0), shape)).shape


@dataclasses.dataclass(frozen=True)
class Linear(Transform):
    """The matrix of a `torch.nn.Linear`: `(outputs, inputs)`, with the dims of heads merged.

    `Linear()` turns `(64, 32)` into a kernel `(32, 64)`, or `(32, 4, 16)` where the weight has heads.
    `Linear(inputs=2)` turns `(32, 64)` into `(4, 16, 32)`, and `Linear(inputs=0)` a bias `(64,)` into `(4, 16)`.

    Args:
        inputs: number of dims of the weight that are inputs; the others are outputs.
        transpose: False for files that have `(inputs, outputs)`, such as the `Conv1D` of GPT-2.
    """

    inputs: int = 1
    transpose: bool = True

    def load(self, array: np.ndarray, shape: Shape) -> np.ndarray:
        """Transpose, and split the dims."""
        array = array.T if self.transpose else array
        return array.reshape(shape) if array.shape == self._matrix(shape) else array

    def save(self, array: np.ndarray) -> np.ndarray:
        """Merge the dims, and transpose."""
        array = array.reshape(self._matrix(array.shape))
        return array.T if self.transpose else array

    def _matrix(self, shape: Shape) -> Shape:
        """The shape with inputs and outputs merged."""
        sides = (shape[: self.inputs], shape[self.inputs :])
        return tuple(math.prod(side) for side in sides if side)


class Permute(Transform):
    """The weight is the file's array with its dims in this order: `Permute(2, 3, 1, 0)` for `torch.nn.Conv2d`."""

    def __init__(self, *dims: int) -> None:
        if sorted(dims) != list(range(len(dims))):
            summary = "Permute: `dims` must be the dims of the file's array in the order of the weight"
            raise ModelError(summary, given=shorten(dims), fix="for example Permute(2, 3, 1, 0)")
        self.dims = dims

    def __repr__(self) -> str:
        return f"Permute{self.dims}"

    def load(self, array: np.ndarray, shape: Shape) -> np.ndarray:
        """Reorder the dims."""
        return array.transpose(self.dims) if array.ndim == len(self.dims) else array

    def save(self, array: np.ndarray) -> np.ndarray:
        """Put the dims back."""
        return array.transpose(np.argsort(self.dims))


class Reshape(Transform):
    """The file's array has this shape, of which one dim may be -1: `Reshape(1, -1)`."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def __repr__(self) -> str:
        return f"Reshape{self.shape}"

    def load(self, array: np.ndarray, shape: Shape) -> np.ndarray:
        """Reshape to the shape of the weight."""
        fits = array.size == math.prod(shape) and array.shape == self.file_shape(shape)
        return array.reshape(shape) if fits else array

    def save(self, array: np.ndarray) -> np.ndarray:
        """Reshape to the shape in the file."""
        return array.reshape(self.shape)


@dataclasses.dataclass(frozen=True)
class Offset(Transform):
    """The weight is the file's array plus a number: `Offset(1.0)` where a file has scales of norms minus one.

    It computes in float32, and rounds to the element type of the file's array, and of the weight.
    """

    value: float

    def load(self, array: np.ndarray, shape: Shape) -> np.ndarray:
        """Add the number."""
        return (array.astype(np.float32) + np.float32(self.value)).astype(array.dtype)

    def save(self, array: np.ndarray) -> np.ndarray:
        """Subtract the number."""
        return (array.astype(np.float32) - np.float32(self.value)).astype(array.dtype)

    def file_shape(self, shape: Shape) -> Shape:
        """Return the same shape."""
        return shape


@dataclasses.dataclass(frozen=True)
class Functions(Transform):
    """A function for loading, and its inverse for saving, which may be missing."""

    loaded: Function
    saved: Function | None

    def load(self, array: np.ndarray, shape: Shape) -> np.ndarray:
        """Call the function for loading."""
        return np.asarray(self.loaded(array))

    def save(self, array: np.ndarray) -> np.ndarray:
        """Call the function for saving."""
        if self.saved is None:
            raise ModelError(
                "a transform of one function cannot be inverted",
                given=shorten(self.loaded),
                fix="give a pair, (load, save): for example transform={'.*/kernel': (np.transpose, np.transpose)}",
            )
        return np.asarray(self.saved(array))


@dataclasses.dataclass(frozen=True)
class Chain(Transform):
    """Transforms one after the other, in the order of loading; without any, the array as it is."""

    transforms: Sequence[Transform] = ()

    def load(self, array: np.ndarray, shape: Shape) -> np.ndarray:
        """Apply the transforms, each with the shape that the next one takes."""
        for number, transform in enumerate(self.transforms, 1):
            rest = self.transforms[number:]
            array = transform.load(array, Chain(rest).file_shape(shape) if rest else shape)
        return array

    def save(self, array: np.ndarray) -> np.ndarray:
        """Apply the inverse transforms, the last one first."""
        return functools.reduce(lambda value, transform: transform.save(value), reversed(self.transforms), array)

    def file_shape(self, shape: Shape) -> Shape:
        """Return the shape before the first transform."""
        return functools.reduce(lambda each, transform: transform.file_shape(each), reversed(self.transforms), shape)


def transform_of(value: Any, /) -> Transform | None:
    """Return the transform that a user wrote, or None for something else."""
    if isinstance(value, Transform):
        return value
    if callable(value):
        return Functions(cast("Function", value), None)
    if not isinstance(value, list | tuple):
        return None
    if isinstance(value, tuple) and len(value) == 2 and all(map(_is_function, value)):
        return Functions(value[0], value[1])
    found = [transform_of(each) for each in value]
    return None if None in found else Chain([each for each in found if each is not None])


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, Transform)
