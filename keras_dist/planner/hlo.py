"""What XLA's compiled programs exchange, multiply and touch, read from their text.

The text is what `as_text()` of a compiled program gives: computations of one instruction a line, of one device.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from keras_dist.planner.propagation import Collective, Kind
from keras_dist.planner.replica_groups import groups_of
from keras_dist.training.activations import path_of_scope

KINDS: Mapping[str, Kind] = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "collective_permute",
    "collective-broadcast": "collective_permute",
}
"""What we call the exchanges of XLA; those that begin and end apart have `-start` after their name."""

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"\s([a-z][\w\-]*)\(")
_NAME = re.compile(r"%([\w.\-]+)")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\]")
_CALLED = re.compile(r"\b(calls|body|condition|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_FREE = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "while", "conditional", "call")
)
"""Instructions that touch no memory themselves."""


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


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program.

    Attributes:
        computations: all of them, by name.
        entry: the one that the program runs.
    """

    computations: Mapping[str, Computation]
    entry: str

    def collectives(self, mesh: Mapping[str, int]) -> tuple[Collective, ...]:
        """The exchanges of a run, in program order; both branches of a condition count, as in `propagate`.

        Those that devices have with themselves alone do not. Bytes are those of the larger of what a device gives and
        what it has afterwards, of all arrays that one exchange combines.

        Args:
            mesh: the sizes of the axes of the mesh whose devices run the program, in the order of the mesh.
        """
        found: list[Collective] = []
        for computation, instruction, turns in self._run(self.entry, 1):
            kind = KINDS.get(instruction.opcode.removesuffix("-start"))
            if kind is not None:
                groups = groups_of(instruction.opcode, instruction.attributes, math.prod(mesh.values()))
                if groups.shape[1] > 1:
                    given = sum(self._nbytes(computation, name) for name in instruction.operands)
                    nbytes = given * groups.shape[1] if kind == "all_gather" else given
                    found.append(_collective(kind, _axes(groups, mesh), nbytes, turns, instruction))
        return tuple(found)

    def flops(self) -> int:
        """Of multiplications of matrices and convolutions in a run, two for each product."""
        return sum(
            max(turns, 1) * self._flops(computation, instruction)
            for computation, instruction, turns in self._run(self.entry, 1)
        )

    def nbytes_accessed(self) -> int:
        """Bytes that a run reads and writes in memory, an estimate: each fusion reads its operands and writes its results.

        Of what a fusion takes a slice of, or puts one into, the slice counts.
        """
        return sum(
            max(turns, 1) * self._touched(computation, instruction)
            for computation, instruction, turns in self._run(self.entry, 1, into_fusions=False)
        )

    def _run(self, name: str, turns: int, into_fusions: bool = True) -> Iterator[tuple[Computation, Instruction, int]]:
        """The instructions that a computation runs, each with how often; 0 where that is not known."""
        computation = self.computations[name]
        for instruction in computation.instructions.values():
            yield computation, instruction, turns
            if instruction.opcode == "fusion" and not into_fusions:
                continue
            inside = turns * self._turns(computation, instruction) if instruction.opcode == "while" else turns
            for called in (each for names in instruction.called.values() for each in names):
                if called in self.computations:
                    yield from self._run(called, inside, into_fusions)

    def _nbytes(self, computation: Computation, name: str) -> int:
        return nbytes_of(computation.instructions[name].result) if name in computation.instructions else 0

    def _dims(self, computation: Computation, name: str) -> tuple[int, ...]:
        return _dims_of(computation.instructions[name].result)

    def _turns(self, computation: Computation, loop: Instruction) -> int:
        """How often a loop runs: XLA says it, or it counts from a constant to another one; 0 where neither."""
        if known := loop.attribute(r'"known_trip_count":\{"n":"(\d+)"\}'):
            return int(known)
        (condition,), (body,) = loop.called["condition"], loop.called["body"]
        inside, compared = self._through(*self._root(condition))
        if compared is None or compared.opcode != "compare" or "direction=LT" not in compared.attributes:
            return 0
        counter, limit = (self._value(inside, name, computation, loop) for name in compared.operands)
        if not isinstance(counter, tuple) or not isinstance(limit, int):
            return 0
        index, first = counter
        step = self._step(body, index)
        return max(0, -(-(limit - first) // step)) if step else 0

    def _root(self, name: str) -> tuple[Computation, Instruction]:
        computation = self.computations[name]
        return computation, computation.instructions[computation.root]

    def _through(self, computation: Computation, instruction: Instruction) -> tuple[_Frame, Instruction | None]:
        """What an instruction is, through the copies and fusions that wrap it, and where its operands are."""
        frame = _Frame(computation, None)
        while instruction.opcode in ("copy", "bitcast", "convert", "fusion"):
            if instruction.opcode == "fusion":
                inner, root = self._root(instruction.called["calls"][0])
                frame, instruction = _Frame(inner, (frame, instruction)), root
            elif (found := frame.find(instruction.operands[0])) is not None:
                frame, instruction = found
            else:
                return frame, None
        return frame, instruction

    def _value(self, frame: _Frame, name: str, outer: Computation, loop: Instruction) -> int | tuple[int, int] | None:
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
        first = self._initial(outer, loop, index)
        if first is None:
            return None
        stays = self._step(loop.called["body"][0], index) == 0
        return first if stays else (index, first)

    def _initial(self, outer: Computation, loop: Instruction, index: int) -> int | None:
        state = outer.instructions.get(loop.operands[0])
        if state is None or state.opcode != "tuple":
            return None
        instruction = outer.instructions.get(state.operands[index])
        while instruction is not None and instruction.opcode in ("copy", "bitcast", "convert"):
            instruction = outer.instructions.get(instruction.operands[0])
        return _integer(instruction.literal) if instruction is not None and instruction.opcode == "constant" else None

    def _step(self, body: str, index: int) -> int | None:
        """By how much each turn changes an element of a loop's state; None where that is not known."""
        computation, root = self._root(body)
        if root.opcode != "tuple" or index >= len(root.operands):
            return None
        frame, instruction = self._through(computation, computation.instructions[root.operands[index]])
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

    def _flops(self, computation: Computation, instruction: Instruction) -> int:
        if instruction.opcode == "dot":
            contracted = instruction.attribute(r"lhs_contracting_dims=\{([\d,]*)\}")
        elif instruction.opcode == "custom-call" and "lhs_contracting_dimensions" in instruction.attributes:
            contracted = instruction.attribute(r'"lhs_contracting_dimensions":\[([\d",]*)\]').replace('"', "")
        elif instruction.opcode == "convolution":
            return self._convolution(computation, instruction)
        else:
            return 0
        lhs = self._dims(computation, instruction.operands[0])
        inner = math.prod(lhs[int(dim)] for dim in contracted.split(",") if dim)
        return 2 * math.prod(_dims_of(instruction.result)) * inner

    def _convolution(self, computation: Computation, instruction: Instruction) -> int:
        """Products of a kernel with what lies outside of the image do not count: TPUs multiply batches that way."""
        image, kernel, result = instruction.attribute(r"dim_labels=(\S*_\S*->\w*)").replace("->", "_").split("_")
        lhs, rhs = (self._dims(computation, name) for name in instruction.operands[:2])
        out = _dims_of(instruction.result)
        window = dict(re.findall(r"(\w+)=(\S+)", instruction.attribute(r"window=\{([^}]*)\}")))
        products = 1
        spatial = sorted(label for label in image if label.isdigit())
        for place, label in enumerate(spatial):
            size, ends = rhs[kernel.index(label)], out[result.index(label)]
            stride, dilation, gap = (
                int(window[name].split("x")[place]) if name in window else 1
                for name in ("stride", "rhs_dilate", "lhs_dilate")
            )
            before = int(window["pad"].split("x")[place].split("_")[0]) if "pad" in window else 0
            at = np.arange(ends)[:, None] * stride + np.arange(size) * dilation - before
            products *= int(np.sum((at >= 0) & (at % gap == 0) & (at // gap < lhs[image.index(label)])))
        features = out[result.index("f")] * rhs[kernel.index("i")]
        return 2 * out[result.index("b")] * features * products

    def _touched(self, computation: Computation, instruction: Instruction) -> int:
        opcode = instruction.opcode
        if opcode in _FREE or opcode.endswith("-done"):
            return 0
        whole = [self._nbytes(computation, name) for name in instruction.operands]
        result = nbytes_of(instruction.result)
        if opcode == "fusion":
            return self._touched_by_fusion(instruction, whole, result)
        if opcode in ("dynamic-slice", "slice", "gather"):
            return 2 * result
        if opcode == "dynamic-update-slice":
            return 2 * whole[1]
        if opcode.endswith("-start"):
            return 2 * sum(whole)
        return sum(whole) + result

    def _touched_by_fusion(self, fusion: Instruction, whole: Sequence[int], result: int) -> int:
        inner, root = self._root(fusion.called["calls"][0])
        uses: dict[str, list[Instruction]] = {}
        for instruction in inner.instructions.values():
            for name in instruction.operands:
                uses.setdefault(name, []).append(instruction)
        total = 0
        for parameter in (each for each in inner.instructions.values() if each.opcode == "parameter"):
            used = uses.get(parameter.name, [])
            if used and all(
                each.opcode in ("dynamic-slice", "gather") and each.operands[0] == parameter.name for each in used
            ):
                total += sum(nbytes_of(each.result) for each in used)
            elif not (used and all(_puts_into(each, parameter.name) for each in used)):
                total += whole[int(parameter.literal)]
        puts = [inner.instructions[name] for name in (root.operands if root.opcode == "tuple" else [root.name])]
        for put in puts:
            is_put = put.opcode == "dynamic-update-slice"
            total += self._nbytes(inner, put.operands[1]) if is_put else nbytes_of(put.result)
        return total


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


def parse_program(text: str) -> Program:
    """Read a compiled program's text.

    Args:
        text: that of one module.

    Example:
        >>> from keras_dist.planner.hlo import parse_program
        >>> text = '''ENTRY %main (x: f32[8]) -> f32[8] {
        ...   %x = f32[8]{0} parameter(0)
        ...   ROOT %sum = f32[8]{0} all-reduce(%x), replica_groups=[2,4]<=[8], to_apply=%add
        ... }'''
        >>> [(each.kind, each.axes, each.nbytes) for each in parse_program(text).collectives({"data": 2, "model": 4})]
        [('all_reduce', ('model',), 32)]
    """
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
    return Program(computations, entry)


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


def _dims_of(type_text: str) -> tuple[int, ...]:
    return arrays_of(type_text)[0][1]


def _instruction(name: str, text: str) -> Instruction:
    opcode = _OPCODE.search(f" {text}" if text.startswith("%") else text)
    if opcode is None:
        return Instruction(name, "", text, (), "", "")
    start = end = opcode.end()
    depth = 1
    while depth and (found := re.compile(r"[()]").search(text, end)):
        depth += 1 if found[0] == "(" else -1
        end = found.end()
    literal = text[start : end - 1]
    return Instruction(name, opcode[1], text[: opcode.start()], tuple(_NAME.findall(literal)), literal, text[end:])


def _axes(groups: np.ndarray, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes of the mesh along which the devices of a group differ."""
    places = np.unravel_index(groups, tuple(mesh.values())) if mesh else ()
    return tuple(name for name, place in zip(mesh, places, strict=True) if (place != place[:, :1]).any())


def _collective(kind: Kind, axes: tuple[str, ...], nbytes: int, turns: int, instruction: Instruction) -> Collective:
    """One exchange; of several layers or operations that it combines none is named, if XLA tells them."""
    names = re.split(r"[:;]", instruction.attribute(r'op_name="([^"]*)"'))
    paths = [[path_of_scope(part) for part in re.split(r"[/()]", name)] for name in names]
    layers = {next((path for path in reversed(of) if path), "") for of in paths}
    operations = {name.rpartition("/")[2].rstrip(")") for name in names}
    layer, operation = ("" if len(found) > 1 else found.pop() for found in (layers, operations))
    return Collective(kind, axes, nbytes, turns, layer, operation)


def _puts_into(instruction: Instruction, name: str) -> bool:
    return instruction.opcode == "dynamic-update-slice" and instruction.operands[0] == name


def _integer(literal: str) -> int | None:
    return int(literal) if re.fullmatch(r"-?\d+", literal) else None
