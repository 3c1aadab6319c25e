"""Padding in the memory of TPUs: the two innermost dims of an array are padded to tiles of 8 x 128 elements.

XLA chooses the innermost dims for least padding, but neither batch dims of a product nor spatial dims of images.

Source: https://openxla.org/xla/tiled_layout
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from keras_dist.planner.exchanges import labels_of
from keras_dist.planner.sharded_module import ShardedModule, operations_in, product_dims

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the operations of MLIR have no types

_LANES, _SUBLANES = 128, 8
_LARGEST_COPY = 200 * 2**20
"""Bytes of the largest padded table that XLA copies to look up rows: of 195 MiB it does, of 244 MiB not."""


def padded_images(module: ShardedModule) -> dict[tuple[int, ...], float]:
    """Return, for shapes of shards in convolutions, how many times its bytes an array takes."""
    found: dict[tuple[int, ...], float] = {}
    for operation in (each for function in module.functions.values() for each in operations_in(function)):
        if operation.name == "stablehlo.convolution":
            values = *operation.operands, operation.results[0]
            for value, labels, ends in zip(values, labels_of(operation), ("bf", "io", "bf"), strict=True):
                shape = module.local_shape(value)
                sizes = [shape[labels.index(end)] for end in ends]
                found[tuple(shape)] = min((_padded(size, _LANES) for size in sizes if size), default=1.0)
    return found


def padded_in_product(operation: Any, module: ShardedModule) -> Iterable[float]:
    """Yield how many times their bytes both operands of a product and its result take."""
    batch = [batching for batching, _ in product_dims(operation)]
    for value, dims in zip((*operation.operands, operation.results[0]), (*batch, range(len(batch[0]))), strict=True):
        shape = module.local_shape(value)
        yield _least([size for dim, size in enumerate(shape) if dim not in dims])


def padded_rows(lookup: Any, module: ShardedModule) -> float:
    """Return how many times their bytes the rows take that are looked up, and the copy of a small table."""
    table, numbers = lookup.operands[0], str(lookup.attributes["dimension_numbers"])
    if table.type.rank != 2 or not re.search(r"offset_dims = \[\d+\]", numbers):
        return 1
    padding = _padded(module.local_shape(table)[1] or 1, _LANES)
    return padding if padding * module.nbytes(table) <= _LARGEST_COPY else 1


def without_product(operation: Any, is_tpu: bool) -> str:
    """Return what XLA computes instead of a product without two matrices, `multiply` or `reduce`; empty for others."""
    free, contracted = list[int](), list[int]()
    for operand, (batching, contracted) in zip(operation.operands, product_dims(operation), strict=True):
        sizes = enumerate(operand.type.shape)
        free.append(math.prod(size for dim, size in sizes if dim not in (*batching, *contracted)))
    if min(free) > 1:
        return ""
    return ("reduce" if is_tpu else "") if contracted else "multiply"


def _least(sizes: Sequence[int]) -> float:
    """Return the least padding with two of these dims innermost."""
    large = [size for size in sizes if size > 1] or [1]
    pairs = itertools.permutations(large, 2) if len(large) > 1 else [(large[0], _SUBLANES)]
    return min(_padded(inner, _LANES) * _padded(outer, _SUBLANES) for inner, outer in pairs)


def _padded(size: int, tile: int) -> float:
    return math.ceil(size / tile) * tile / size
