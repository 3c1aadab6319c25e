"""The text of XLA's compiled programs: computations of one instruction a line."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"\s([a-z][\w\-]*)\(")
_PARENTHESIS = re.compile(r"[()]")
_NAME = re.compile(r"%([\w.\-]+)")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\]")
_CALLED = re.compile(r"\b(calls|body|condition|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
        name: what others call its result.
        opcode: as `all-reduce-start`.
        result: the type of its result, as `(f32[8]{0}, s32[])`.
        operands: the names of its operands; of a constant, of a parameter, nothing.
        literal: what stands between its parentheses.
        attributes: what follows.
    """

    name: str
    opcode: str
    result: str
    operands: tuple[str, ...]
    literal: str
    attributes: str

    def attribute(self, pattern: str) -> str:
        """The first group of a pattern that its attributes match; empty where they do not."""
        found = re.search(pattern, self.attributes)
        return found[1] if found else ""

    @functools.cached_property
    def called(self) -> dict[str, list[str]]:
        """The computations that it runs, by what they are to it; what a reduction does to two numbers is none."""
        found: dict[str, list[str]] = {}
        for role, name in _CALLED.findall(self.attributes):
            if role != "to_apply" or self.opcode in ("call", "call-start"):
                found.setdefault(role, []).append(name)
        if branches := self.attribute(_BRANCHES.pattern):
            found["branches"] = [name.strip().lstrip("%") for name in branches.split(",")]
        return found


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions by name, in program order; the last one that says so is the root."""

    instructions: Mapping[str, Instruction]
    root: str

    @property
    def result(self) -> Instruction:
        """The instruction whose result is the computation's."""
        return self.instructions[self.root]


def parse_computations(text: str) -> tuple[dict[str, Computation], str]:
    """Return the computations of a module's text by name, and the name of the one that the program runs."""
    computations: dict[str, Computation] = {}
    entry = name = root = ""
    instructions: dict[str, Instruction] = {}
    for line in text.splitlines():
        if line.startswith("}") and name:
            computations[name] = Computation(instructions, root)
            name = ""
        elif header := _HEADER.match(line):
            name, instructions, root = header[2], {}, ""
            entry = name if header[1] else entry
        elif name and (found := _INSTRUCTION.match(line)):
            instructions[found[2]] = _instruction(found[2], found[3])
            root = found[2] if found[1] or not root else root
    return computations, entry


def nbytes_of(type_text: str) -> int:
    """Bytes of a type, as of `(f32[8]{0}, s32[])`; those of tuples are the sum."""
    return -(-sum(_bits(name) * math.prod(shape) for name, shape in arrays_of(type_text)) // 8)


def arrays_of(type_text: str) -> list[tuple[str, tuple[int, ...]]]:
    """The element types and shapes of the arrays of a type."""
    return [
        (name, tuple(int(dim.lstrip("<=")) for dim in dims.split(",") if dim))
        for name, dims in _ARRAY.findall(type_text)
    ]


def _bits(name: str) -> int:
    if name == "pred":
        return 8
    found = re.search(r"\d+", name)
    return int(found[0]) if found else 0


def dims_of(type_text: str) -> tuple[int, ...]:
    """The shape of the first array of a type."""
    return arrays_of(type_text)[0][1]


def _instruction(name: str, text: str) -> Instruction:
    opcode = _OPCODE.search(text)
    if opcode is None:
        return Instruction(name, "", text, (), "", "")
    start = end = opcode.end()
    depth = 1
    while depth and (found := _PARENTHESIS.search(text, end)):
        depth += 1 if found[0] == "(" else -1
        end = found.end()
    literal = text[start : end - 1]
    return Instruction(name, opcode[1], text[: opcode.start()], tuple(_NAME.findall(literal)), literal, text[end:])
