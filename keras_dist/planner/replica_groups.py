"""Which devices exchange with each other, as compiled programs of XLA say it."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np

_PAIRS = re.compile(r"source_target_pairs=\{([{}\d, ]*)\}")
_LISTS = re.compile(r"replica_groups=\{([{}\d, ]*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[(?P<sizes>[^\]]*)\](?:, device_ids=\((?P<ids>[^{]*)\))? \{(?P<axes>[^}]*)\}")


def groups_of(opcode: str, attributes: str, devices: int) -> np.ndarray:
    """Return the groups of devices that exchange, a row each; pairs of source and target are groups of two.

    Groups are listed, `{{0,1},{2,3}}`; numbers in order that are reshaped and transposed, `[2,2]<=[2,2]T(1,0)`; or go
    along axes of a mesh of XLA's, or parts of them, `mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a','b':(1)2}`.

    Args:
        opcode: that of the instruction.
        attributes: its text from the operands on.
        devices: number of devices that run the program.

    Raises:
        ValueError: the groups are spelled in another way.
    """
    if pairs := _PAIRS.search(attributes):
        found = [pair for pair in _listed(pairs[1]) if pair[0] != pair[1]]
        return np.array(found) if found else np.zeros((1, 1), int)
    if iota := _IOTA.search(attributes):
        return _numbered(iota[2], iota[3]).reshape(_numbers(iota[1]))
    if mesh := _MESH.search(attributes):
        return _along_axes(mesh["sizes"], mesh["ids"] or "", mesh["axes"])
    if listed := _LISTS.search(attributes):
        return np.array(_listed(listed[1])) if listed[1] else np.arange(devices)[None]
    raise ValueError(f"the groups of {opcode} are not understood: {attributes[:200]}")


def _along_axes(sizes: str, ids: str, axes: str) -> np.ndarray:
    """Groups along axes of a mesh: `'b':(2)4` is the part of an axis that has 2 places before it, and 4 itself."""
    shape = {name.strip(" '\""): int(size) for name, size in re.findall(r"([^,=]+)=(\d+)", sizes)}
    if reordered := re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", ids):
        devices = _numbered(reordered[1], reordered[2]).reshape(-1)
    else:
        devices = np.array(_numbers(ids)) if ids else np.arange(math.prod(shape.values()))
    parts = [
        (name.strip(" '\""), int(before or 1), int(before or 1) * int(size or shape[name.strip(" '\"")]))
        for name, before, size in re.findall(r"([^,:]+)(?::\((\d+)\)(\d+))?", axes)
    ]
    dims: list[int] = []
    grouped: list[int] = []
    for name, size in shape.items():
        own = [(first, end) for part, first, end in parts if part == name]
        borders = sorted({1, size, *(border for part in own for border in part)})
        for first, end in itertools.pairwise(borders):
            if any(begin <= first and end <= until for begin, until in own):
                grouped.append(len(dims))
            dims.append(end // first)
    others = [dim for dim in range(len(dims)) if dim not in grouped]
    each = math.prod(dims[dim] for dim in grouped)
    return devices.reshape(dims).transpose(others + grouped).reshape(-1, each)


def _numbered(sizes: str, order: str | None) -> np.ndarray:
    shape = _numbers(sizes)
    return np.arange(math.prod(shape)).reshape(shape).transpose(_numbers(order) if order else None)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _listed(text: str) -> list[list[int]]:
    return [_numbers(group) for group in re.findall(r"\{([\d, ]+)\}", text)]
