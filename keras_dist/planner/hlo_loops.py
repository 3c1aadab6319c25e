"""How often the loops of XLA's compiled programs run. Those of TPUs do not say it: their conditions do."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from keras_dist.planner.hlo_text import Computation, Instruction

Computations = Mapping[str, Computation]


def turns_of(computations: Computations, computation: Computation, loop: Instruction) -> int:
    """Return how often a loop runs: XLA says it, or it counts from a constant to another one; 0 where neither.

    Args:
        computations: of the program.
        computation: the one that the loop is in.
        loop: a `while`.
    """
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
    """What an instruction is, through the copies and fusions that wrap it, and where its operands are."""
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
    """A constant; or which element of the loop's state it is, and with which number that begins; else None."""
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
    """The number with which an element of a loop's state begins; None where it is no constant."""
    state = outer.instructions.get(loop.operands[0])
    if state is None or state.opcode != "tuple":
        return None
    instruction = outer.instructions.get(state.operands[index])
    while instruction is not None and instruction.opcode in ("copy", "bitcast", "convert"):
        instruction = outer.instructions.get(instruction.operands[0])
    return _integer(instruction.literal) if instruction is not None and instruction.opcode == "constant" else None


def _step(computations: Computations, body: str, index: int) -> int | None:
    """By how much each turn changes an element of a loop's state; None where that is not known."""
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
    """A computation, and the fusion that runs it, where it is one's: its parameters are that fusion's operands."""

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
