"""Parser of the text of XLA's compiled programs, and the number of turns of their loops."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"\s([a-z][\w\-]*)\(")
_PARENTHESIS = re.compile(r"[()]")
_NAME = re.compile(r"%([\w.\-]+)")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_CALLED = re.compile(r"\b(calls|body|condition|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_KERNEL_METADATA = re.compile(r"kernel_metadata=\{\n(.*)\n\}\}")  # of Pallas, on separate lines
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_PASSING = ("copy", "bitcast", "convert")


class ArrayType(NamedTuple):
    """The type of an array."""

    element: str  # `f32`
    shape: tuple[int, ...]
    layout: str  # order of dims, tiles and memory space, as `1,0:T(8,128)S(1)`; empty if unknown

    @property
    def bits(self) -> int:
        """Bits of an element."""
        digits = re.search(r"\d+", self.element)
        return 8 if self.element == "pred" else int(digits[0]) if digits else 0


@dataclasses.dataclass(eq=False)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    result: str  # type of the result, as `(f32[8]{0}, s32[])`
    literal: str  # text between the parentheses
    attributes: str  # text after them
    computation: Computation = dataclasses.field(repr=False)
    operands: list[Instruction] = dataclasses.field(default_factory=list, repr=False)
    called: dict[str, list[Computation]] = dataclasses.field(default_factory=dict, repr=False)
    """The computations that it calls, by role, except functions of reductions."""
    users: list[Instruction] = dataclasses.field(default_factory=list, repr=False)

    def attribute(self, pattern: str) -> str:
        """Return the first group of a pattern in the attributes, or an empty string."""
        found = re.search(pattern, self.attributes)
        return found[1] if found else ""

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        return nbytes_of(self.result)

    @property
    def arrays(self) -> list[ArrayType]:
        """The arrays of the result."""
        return arrays_of(self.result)

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape of the first array of the result."""
        return self.arrays[0].shape


@dataclasses.dataclass(eq=False)
class Computation:
    """Instructions by name, in program order."""

    instructions: dict[str, Instruction] = dataclasses.field(default_factory=dict)
    root_name: str = ""
    fusion: Instruction | None = None
    """The fusion that computes it, whose operands are its parameters."""

    @property
    def root(self) -> Instruction:
        """The instruction whose result the computation returns."""
        return self.instructions[self.root_name]

    @property
    def results(self) -> list[Instruction]:
        """The root, or the elements of the tuple that it makes."""
        return self.root.operands if self.root.opcode == "tuple" else [self.root]


def parse_computations(text: str) -> Computation:
    """Return the entry computation of a module's text."""
    computations: dict[str, Computation] = {}
    entry = name = ""
    computation = Computation()
    text = _KERNEL_METADATA.sub(r"kernel_metadata={\1}}", text)
    for line in text.splitlines():
        if line.startswith("}") and name:
            computations[name], name = computation, ""
        elif header := _HEADER.match(line):
            name, computation = header[2], Computation()
            entry = name if header[1] else entry
        elif name and (found := _INSTRUCTION.match(line)):
            computation.instructions[found[2]] = _instruction(found[2], found[3], computation)
            computation.root_name = found[2] if found[1] else computation.root_name or found[2]
    for computation in computations.values():
        for instruction in computation.instructions.values():
            _connect(instruction, computations)
    return computations[entry]


def _connect(instruction: Instruction, computations: Mapping[str, Computation]) -> None:
    """Note the computations that an instruction calls, and the fusion that computes one of them."""
    named = [(role, name) for role, name in _CALLED.findall(instruction.attributes)]
    branches = instruction.attribute(_BRANCHES.pattern)
    named += [("branches", name.strip().lstrip("%")) for name in branches.split(",")]
    for role, name in named:
        is_function = role == "to_apply" and instruction.opcode not in ("call", "call-start")
        if name in computations and not is_function:
            instruction.called.setdefault(role, []).append(computations[name])
    if instruction.opcode == "fusion":
        for computation in instruction.called["calls"]:
            computation.fusion = instruction


def nbytes_of(type_text: str) -> int:
    """Return the bytes of a type such as `(f32[8]{0}, s32[])`."""
    return -(-sum(array.bits * math.prod(array.shape) for array in arrays_of(type_text)) // 8)


def arrays_of(type_text: str) -> list[ArrayType]:
    """Return the arrays of a type."""
    return [
        ArrayType(element, tuple(int(dim.lstrip("<=")) for dim in dims.split(",") if dim), layout)
        for element, dims, layout in _ARRAY.findall(type_text)
    ]


def _instruction(name: str, text: str, computation: Computation) -> Instruction:
    opcode = _OPCODE.search(text)
    if opcode is None:
        return Instruction(name, "", text, "", "", computation)
    start = end = opcode.end()
    depth = 1
    while depth and (found := _PARENTHESIS.search(text, end)):
        depth += 1 if found[0] == "(" else -1
        end = found.end()
    literal = text[start : end - 1]
    known = computation.instructions
    operands = [known[each] for each in _NAME.findall(literal) if each in known]
    found = Instruction(name, opcode[1], text[: opcode.start()], literal, text[end:], computation, operands)
    for operand in dict.fromkeys(operands):
        operand.users.append(found)
    return found


def turns_of(loop: Instruction) -> int:
    """Return the trip count of a `while`, as XLA recorded it or by constant bounds; 0 if unknown."""
    if known := loop.attribute(r'"known_trip_count":\{"n":"(\d+)"\}'):
        return int(known)
    (condition,), (body,) = loop.called["condition"], loop.called["body"]
    compared = _source(condition.root, into_fusions=True)
    if compared is None or compared.opcode != "compare" or "direction=LT" not in compared.attributes:
        return 0
    counter, limit = (_value(each, loop, body) for each in compared.operands)
    if not isinstance(counter, tuple) or not isinstance(limit, int):
        return 0
    index, first = counter
    step = _step(body, index)
    return max(0, -(-(limit - first) // step)) if step else 0


def _source(instruction: Instruction | None, *, into_fusions: bool = False) -> Instruction | None:
    """Return the instruction whose result copies and conversions, and fusions, pass on."""
    while instruction is not None:
        fusion = instruction.computation.fusion
        if instruction.opcode == "parameter" and fusion is not None:
            instruction = fusion.operands[int(instruction.literal)]
        elif instruction.opcode == "fusion" and into_fusions:
            instruction = instruction.called["calls"][0].root
        elif instruction.opcode in _PASSING:
            instruction = next(iter(instruction.operands), None)
        else:
            return instruction
    return None


def _value(instruction: Instruction, loop: Instruction, body: Computation) -> int | tuple[int, int] | None:
    """Return a constant, or the index of an element of the loop's state and its initial value, or None."""
    index = _index(source := _source(instruction))
    if index is None:
        return _constant(source)
    state = loop.operands[0]
    first = _constant(_source(state.operands[index])) if state.opcode == "tuple" else None
    if first is None:
        return None
    return first if _step(body, index) == 0 else (index, first)


def _step(body: Computation, index: int) -> int | None:
    """Return the constant that each turn adds to an element of a loop's state, or None."""
    if body.root.opcode != "tuple" or index >= len(body.root.operands):
        return None
    source = _source(body.root.operands[index], into_fusions=True)
    if (kept := _index(source)) is not None:
        return 0 if kept == index else None
    added = source.operands if source is not None and source.opcode == "add" else ()
    return next((step for each in added if (step := _constant(_source(each))) is not None), None)


def _index(instruction: Instruction | None) -> int | None:
    """Return the index of the element that an instruction takes from a tuple, or None."""
    if instruction is None or instruction.opcode != "get-tuple-element":
        return None
    return int(instruction.attribute(r"\bindex=(\d+)"))


def _constant(instruction: Instruction | None) -> int | None:
    """Return an integer constant, or None."""
    if instruction is None or instruction.opcode != "constant" or not re.fullmatch(r"-?\d+", instruction.literal):
        return None
    return int(instruction.literal)
