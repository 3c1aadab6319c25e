"""`Piece`: a part of a weight, and the part of an array of a file that it is.

Loading reads pieces from memory-mapped arrays, only where a device needs them. Saving takes the pieces of one array
from the weights, and joins them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from keras_dist.data.conversion import noting
from keras_dist.errors import ModelError
from keras_dist.files.tensor_format import in_memory_order
from keras_dist.formats.weight_transforms import Shape, Transform


@dataclasses.dataclass(frozen=True)
class Cut:
    """Where a piece is in an array of a file: from `start` to `stop` along an axis of the whole shape, in steps."""

    axis: int
    start: int
    stop: int
    whole: Shape
    step: int = 1

    def of(self, array: np.ndarray) -> np.ndarray:
        """Return the part of an array; all of it if it has another shape, which is reported then."""
        if array.shape != self.whole:
            return array
        return array[(slice(None),) * self.axis + (slice(self.start, self.stop, self.step),)]


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of a weight in an array of a file."""

    name: str  # of the array
    begin: Shape  # index in the weight at which the part begins
    shape: Shape  # of the part. Stacked dims, which the file's array does not have, are left out.
    transform: Transform  # between the array and the part
    cut: Cut | None = None  # where it is in the array; None for all of it

    @property
    def extent(self) -> Shape:
        """Its shape as a part of the weight, with 1 for stacked dims."""
        return (1,) * (len(self.begin) - len(self.shape)) + self.shape

    @property
    def region(self) -> tuple[slice, ...]:
        """Its place in the weight."""
        return tuple(slice(begin, begin + size) for begin, size in zip(self.begin, self.extent, strict=True))

    def loaded(self, array: np.ndarray) -> np.ndarray:
        """Return the part of an array of a file in the form of the weight."""
        return self.transform.load(array if self.cut is None else self.cut.of(array), self.shape)

    def saved(self, part: np.ndarray) -> np.ndarray:
        """Return a part of the weight in the form of the file."""
        return self.transform.save(part.reshape(self.shape))


class Parts:
    """The pieces of a weight in a file. Only what is asked for is read, unless a transform computes.

    `shape` is the shape of the weight, or of a piece that does not have the shape `wanted`.
    """

    def __init__(self, pieces: Sequence[Piece], arrays: Sequence[np.ndarray], shape: Shape) -> None:
        self._pieces = pieces
        both = list(zip(pieces, arrays, strict=True))
        misfits = [(array.shape, piece.shape) for piece, array in both if array.shape != piece.shape]
        self.shape, self.wanted = misfits[0] if misfits else (shape, shape)
        self._arrays = [] if misfits else [array.reshape(piece.extent) for piece, array in both]
        self.is_complex = any(map(np.iscomplexobj, arrays))

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
        if len(self._arrays) == 1:
            return self._arrays[0][index]
        box = [each.indices(size)[:2] for each, size in zip(index, self.shape, strict=True)]
        order = in_memory_order(self._arrays[0])  # as in the file, or copies are slow
        shape = [box[dim][1] - box[dim][0] for dim in order]
        found = np.empty(shape, np.result_type(*{each.dtype for each in self._arrays})).transpose(np.argsort(order))
        for piece, array in zip(self._pieces, self._arrays, strict=True):
            bounds = [
                (max(start, begin), min(stop, begin + size))
                for (start, stop), begin, size in zip(box, piece.begin, piece.extent, strict=True)
            ]
            if all(start < stop for start, stop in bounds):
                there = tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(bounds, box, strict=True))
                here = tuple(slice(a - begin, b - begin) for (a, b), begin in zip(bounds, piece.begin, strict=True))
                found[there] = array[here]
        return found


def load_piece(array: np.ndarray, piece: Piece, path: str) -> np.ndarray:
    """Return the part of a weight in an array of a file; errors name both."""
    with noting(f"load_weights: the transform of {piece.name!r} for the weight {path!r}"):
        found = piece.loaded(array)
    if found.dtype != np.bool_ and not jnp.issubdtype(found.dtype, jnp.number):
        summary = f"load_weights: the transform of {piece.name!r} for the weight {path!r} gives no numbers"
        fix = "for example transform={'.*/kernel': (np.transpose, np.transpose)}"
        raise ModelError(summary, given=f"an array of {found.dtype}", fix=fix)
    return found
