"""Bytes that a compiled program reads from and writes to the main memory of a device, read from its text.

XLA for TPUs keeps arrays that are small enough in the vector memory, `S(1)` in a layout, and pads arrays to tiles,
`T(8,128)`. A fusion, which may be inside of another one, reads slices of a stack, and returns parameters as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from keras_dist.planner.hlo_text import ArrayType, Computation, Instruction

_FREE = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "while", "conditional", "call")
)
"""Instructions without memory traffic."""

_SLICES = ("dynamic-slice", "slice", "gather")
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""Instructions that change the memory of their first operand, and which operand is written there."""

_TILE = re.compile(r"T\(([\d,]+)\)")


def traffic_nbytes(instruction: Instruction) -> int:
    """Return the bytes in main memory that an instruction reads and writes."""
    opcode, operands, is_start = instruction.opcode, instruction.operands, instruction.opcode.endswith("-start")
    if opcode in _FREE or opcode.endswith("-done"):
        return 0
    if opcode == "fusion":
        (fused,) = instruction.called["calls"]
        inputs = (each for each in _parameters(fused) if _is_in_memory(operands[int(each.literal)].arrays[0]))
        return sum(map(_read, inputs)) + sum(map(_written, fused.results))
    if opcode.startswith(_SLICES):
        taken = instruction.arrays[is_start]
        return (_is_in_memory(operands[0].arrays[0]) + _is_in_memory(taken)) * padded_nbytes(taken)
    if opcode in _UPDATES:
        (put, *_) = operands[_UPDATES[opcode]].arrays
        return (_is_in_memory(put) + _is_in_memory(instruction.arrays[0])) * padded_nbytes(put)
    arrays = [] if is_start and len(instruction.arrays) > 1 else [each for one in operands for each in one.arrays]
    return sum(map(_stored, (*arrays, *instruction.arrays)))  # the result of a start has the operands, too


def padded_nbytes(array: ArrayType) -> int:
    """Return the bytes of an array in its layout, with the padding of tiles."""
    order = array.layout.partition(":")[0]
    sizes = [array.shape[int(dim)] for dim in order.split(",")[::-1]] if order else list(array.shape)
    tile = [int(size) for size in found[1].split(",")] if (found := _TILE.search(array.layout)) else []
    for place in range(-min(len(tile), len(sizes)), 0):
        sizes[place] = math.ceil(sizes[place] / tile[place]) * tile[place]
    return -(-array.bits * math.prod(sizes) // 8)


def _is_in_memory(array: ArrayType) -> bool:
    return "S(" not in array.layout


def _stored(array: ArrayType) -> int:
    return _is_in_memory(array) * padded_nbytes(array)


def _parameters(fused: Computation) -> Iterator[Instruction]:
    return (each for each in fused.instructions.values() if each.opcode == "parameter")


def _read(array: Instruction) -> int:
    """Return the bytes that a fused computation reads of an array: the slices that it uses, or all."""
    whole = sum(map(padded_nbytes, array.arrays))
    total = 0
    for use in array.users:
        if use.opcode in _SLICES and use.operands[0] is array:
            total += padded_nbytes(use.arrays[0])
        elif use.opcode == "bitcast":
            total += _read(use)
        elif use.opcode == "fusion":
            (inner,) = use.called["calls"]
            total += sum(_read(each) for each in _parameters(inner) if use.operands[int(each.literal)] is array)
        elif use.opcode != "tuple" and not (use.opcode in _UPDATES and array not in use.operands[1:]):
            return whole
    return min(total, whole)


def _written(result: Instruction) -> int:
    """Return the bytes that a fused computation writes for a result: the slices that it changes, or all."""
    source, index = result, 0
    while source.opcode in ("bitcast", "fusion", "get-tuple-element"):
        if source.opcode == "fusion":
            source, index = source.called["calls"][0].results[index], 0
        else:
            index = int(source.attribute(r"\bindex=(\d+)")) if source.opcode == "get-tuple-element" else index
            source = source.operands[0]
    if source.opcode in _UPDATES:
        return _is_in_memory(result.arrays[0]) * padded_nbytes(source.operands[_UPDATES[source.opcode]].arrays[0])
    return 0 if source.opcode == "parameter" else sum(map(_stored, result.arrays))
