"""Arrays as XLA for each backend stores them: tiles, element types, and what `remat` keeps.

`python -m tests.planner.memory_experiments v5e:2x4` compiles the programs that made this table, and compares the bytes
with those that are recorded there.

Source: https://openxla.org/xla/tiled_layout
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

_VECTOR = 1024
"""Most elements of a tile of an array with one dim."""


@dataclasses.dataclass(frozen=True)
class Storage:
    """Habits of XLA for a backend when it stores arrays.

    Attributes:
        lanes: elements to which the innermost dim is padded; 1 without tiles.
        sublanes: elements to which the dim before it is padded, or 1, 2 or 4 for dims of at most as many elements.
        widest: bytes of an element for those element types that intermediate results may be converted to.
        rounds: whether float32 arrays that only products of default precision read are stored as bfloat16.
        fuses_into_products: whether products compute operands and results, rather than read and write memory.
        keeps_remat: whether the backward pass repeats what `remat` does not keep, outside of loops.
        fills_early: whether the arrays that loops fill may be allocated before the first loop.
        combines_sums: whether all-reduces that are only added, as gradients of unrolled loops, become one of them all.
    """

    lanes: int = 1
    sublanes: int = 1
    widest: Mapping[str, int] = dataclasses.field(default_factory=dict)
    rounds: bool = False
    fuses_into_products: bool = False
    keeps_remat: bool = True
    fills_early: bool = False
    combines_sums: bool = False

    def least_nbytes(self, shape: Sequence[int], element_nbytes: int) -> int:
        """Return the bytes of an array in the order of dims with least padding, as arguments and results have."""
        if self.lanes == 1 or len(shape) < 2 or not math.prod(shape):
            return self._vector_nbytes(shape, element_nbytes)
        pairs = itertools.permutations(range(len(shape)), 2)
        return min(self._tiled_nbytes(shape, *pair, element_nbytes) for pair in pairs)

    def most_nbytes(self, shape: Sequence[int], element_nbytes: int) -> int:
        """Return the bytes of an array in the order of its dims: some loops, lookups and convolutions store it so."""
        if self.lanes == 1 or len(shape) < 2 or not math.prod(shape):
            return self._vector_nbytes(shape, element_nbytes)
        return self._tiled_nbytes(shape, len(shape) - 1, len(shape) - 2, element_nbytes)

    def _vector_nbytes(self, shape: Sequence[int], element_nbytes: int) -> int:
        size = math.prod(shape)
        if self.lanes == 1 or not size:
            return size * element_nbytes
        packed = self.lanes * max(1, 4 // element_nbytes)  # elements of a row of 512 bytes
        tile = packed
        while tile < min(size, _VECTOR):
            tile *= 2
        return _padded(size, min(tile, max(_VECTOR, packed))) * element_nbytes

    def _tiled_nbytes(self, shape: Sequence[int], lane: int, sublane: int, element_nbytes: int) -> int:
        outer = math.prod(size for dim, size in enumerate(shape) if dim not in (lane, sublane))
        tile = max(1, 4 // element_nbytes)
        while tile < min(shape[sublane], self.sublanes):
            tile *= 2
        return outer * _padded(shape[lane], self.lanes) * _padded(shape[sublane], tile) * element_nbytes


STORAGE = {
    "cpu": Storage(widest={"bf16": 4, "f16": 4}, keeps_remat=False, fills_early=True, combines_sums=True),
    "tpu": Storage(lanes=128, sublanes=8, rounds=True, fuses_into_products=True, fills_early=True),
    "cuda": Storage(),
}
"""XLA of jax 0.10 for CPUs, libtpu 0.0.42 for TPUs; for GPUs not measured."""


def _padded(size: int, tile: int) -> int:
    return -(-size // tile) * tile
