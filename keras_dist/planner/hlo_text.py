"""Parser of the text of XLA's compiled programs, and the number of turns of their loops."""

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
_KERNEL_METADATA = re.compile(r"kernel_metadata=\{\n(.*)\n\}\}")  # of Pallas, on separate lines
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")


Computations = Mapping[str, "Computation"]


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    result: str  # type of the result, as `(f32[8]{0}, s32[])`
    operands: tuple[str, ...]
    literal: str  # text between the parentheses
    attributes: str  # text after them

    def attribute(self, pattern: str) -> str:
        """Return the first group of a pattern in the attributes, or an empty string."""
        found = re.search(pattern, self.attributes)
        return found[1] if found else ""

    @functools.cached_property
    def called(self) -> dict[str, list[str]]:
        """The computations that the instruction calls, by role, except functions of reductions."""
        found: dict[str, list[str]] = {}
        for role, name in _CALLED.findall(self.attributes):
            if role != "to_apply" or self.opcode in ("call", "call-start"):
                found.setdefault(role, []).append(name)
        if branches := self.attribute(_BRANCHES.pattern):
            found["branches"] = [name.strip().lstrip("%") for name in branches.split(",")]
        return found


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions by name, in program order, and the name of the root."""

    instructions: Mapping[str, Instruction]
    root: str

    @property
    def result(self) -> Instruction:
        """The root instruction."""
        return self.instructions[self.root]


def parse_computations(text: str) -> tuple[dict[str, Computation], str]:
    """Return the computations of a module's text by name, and the name of the entry computation."""
    computations: dict[str, Computation] = {}
    entry = name = root = ""
    instructions: dict[str, Instruction] = {}
    text = _KERNEL_METADATA.sub(r"kernel_metadata={\1}}", text)
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
    """Return the bytes of a type such as `(f32[8]{0}, s32[])`."""
    return -(-sum(_bits(name) * math.prod(shape) for name, shape in arrays_of(type_text)) // 8)


def arrays_of(type_text: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return the element types and shapes of the arrays of a type."""
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
    """Return the shape of the first array of a type."""
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


def turns_of(computations: Computations, computation: Computation, loop: Instruction) -> int:
    """Return the trip count of a `while` in `computation`, as XLA recorded it or by constant bounds; 0 if unknown."""
    if known := loop.attribute(r'"known_trip_count":\{"n":"(\d+)"\}'):
        return int(known)
    (condition,), (body,) = loop.called["condition"], loop.called["body"]
    inside, compared = _through(computations, computations[condition], computations[condition].result)
    if compared is None or compared.opcode != "compare" or "direction=LT" not in compared.attributes:
        return 0
    counter, limit = (_value(computations, inside, name, computation, loop) for name in compared.operands)
    if not isinstance(counter, tuple) or not isinstance(limit, int):
        return 0
    index, first = counter
    step = _step(computations, body, index)
    return max(0, -(-(limit - first) // step)) if step else 0


def _through(
    computations: Computations, computation: Computation, instruction: Instruction
) -> tuple[_Frame, Instruction | None]:
    """Return the instruction behind copies and fusions, and the frame of its operands."""
    frame = _Frame(computation, None)
    while instruction.opcode in ("copy", "bitcast", "convert", "fusion"):
        if instruction.opcode == "fusion":
            inner = computations[instruction.called["calls"][0]]
            frame, instruction = _Frame(inner, (frame, instruction)), inner.result
        elif (found := frame.find(instruction.operands[0])) is not None:
            frame, instruction = found
        else:
            return frame, None
    return frame, instruction


def _value(
    computations: Computations, frame: _Frame, name: str, outer: Computation, loop: Instruction
) -> int | tuple[int, int] | None:
    """Return a constant, or the index of an element of the loop's state and its initial value, or None."""
    found = frame.find(name)
    while found is not None and found[1].opcode in ("copy", "bitcast", "convert"):
        found = found[0].find(found[1].operands[0])
    if found is None:
        return None
    instruction = found[1]
    if instruction.opcode == "constant":
        return _integer(instruction.literal)
    if instruction.opcode != "get-tuple-element":
        return None
    index = int(instruction.attribute(r"\bindex=(\d+)"))
    first = _initial(outer, loop, index)
    if first is None:
        return None
    stays = _step(computations, loop.called["body"][0], index) == 0
    return first if stays else (index, first)


def _initial(outer: Computation, loop: Instruction, index: int) -> int | None:
    """Return the constant initial value of an element of a loop's state, or None."""
    state = outer.instructions.get(loop.operands[0])
    if state is None or state.opcode != "tuple":
        return None
    instruction = outer.instructions.get(state.operands[index])
    while instruction is not None and instruction.opcode in ("copy", "bitcast", "convert"):
        instruction = outer.instructions.get(instruction.operands[0])
    return _integer(instruction.literal) if instruction is not None and instruction.opcode == "constant" else None


def _step(computations: Computations, body: str, index: int) -> int | None:
    """Return the constant that each turn adds to an element of a loop's state, or None."""
    computation = computations[body]
    root = computation.result
    if root.opcode != "tuple" or index >= len(root.operands):
        return None
    frame, instruction = _through(computations, computation, computation.instructions[root.operands[index]])
    if instruction is None:
        return None
    if instruction.opcode == "get-tuple-element":
        return 0 if instruction.attribute(r"\bindex=(\d+)") == str(index) else None
    if instruction.opcode != "add":
        return None
    for name in instruction.operands:
        found = frame.find(name)
        if found is not None and found[1].opcode == "constant":
            return _integer(found[1].literal)
    return None


@dataclasses.dataclass(frozen=True)
class _Frame:
    """A computation, and the fusion that runs it, if any, whose operands are its parameters."""

    computation: Computation
    fusion: tuple[_Frame, Instruction] | None

    def find(self, name: str) -> tuple[_Frame, Instruction] | None:
        instruction = self.computation.instructions.get(name)
        if instruction is None:
            return None
        if instruction.opcode == "parameter" and self.fusion is not None:
            outer, fusion = self.fusion
            return outer.find(fusion.operands[int(instruction.literal)])
        return self, instruction


def _integer(literal: str) -> int | None:
    return int(literal) if re.fullmatch(r"-?\d+", literal) else None
