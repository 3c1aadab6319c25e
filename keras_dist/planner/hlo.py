"""What XLA's compiled programs exchange, multiply and touch on each device, read from their text."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from keras_dist.planner.hlo_loops import turns_of
from keras_dist.planner.hlo_text import Computation, Instruction, dims_of, nbytes_of, parse_computations
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

_OVER_SLICES: Mapping[str, Kind] = {
    "ALL_REDUCE": "all_reduce",
    "ALL_GATHER": "all_gather",
    "REDUCE_SCATTER": "reduce_scatter",
    "ALL_TO_ALL": "all_to_all",
}
"""What slices of TPUs exchange is sent by the run-time, under these names; under others, it goes to one other slice."""

_FREE = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "while", "conditional", "call")
)
"""Instructions that touch no memory themselves."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program.

    Attributes:
        computations: all of them, by name.
        entry: the one that the program runs.
    """

    computations: Mapping[str, Computation]
    entry: str

    def collectives(self, mesh: Mapping[str, int], slices: Sequence[int] = ()) -> tuple[Collective, ...]:
        """The exchanges of a run, in program order; both branches of a condition count, as in `propagate`.

        Those that devices have with themselves alone do not. Bytes are those of the larger of what a device gives and
        what it has afterwards, of all arrays that one exchange combines. TPUs write a reduce_scatter as an all_reduce
        that is fused with the slice which a device keeps of it.

        Args:
            mesh: the sizes of the axes of the mesh whose devices run the program, in the order of the mesh.
            slices: which slice of a target each device is in, in the order of the mesh.
        """
        found: list[Collective] = []
        for computation, instruction, turns, name in self._run(self.entry, 1):
            kind, groups = _exchange(computation, instruction, mesh, slices)
            if kind is not None and groups.shape[1] > 1:
                given = sum(self._nbytes(computation, operand) for operand in instruction.operands)
                nbytes = given * groups.shape[1] if kind == "all_gather" else given
                axes = _axes(groups, mesh)
                is_all = kind == "collective_permute" or groups.shape[1] == math.prod(mesh[axis] for axis in axes)
                places = () if is_all else tuple(groups[0].tolist())
                layer, operation = _layer_and_operation(name)
                found.append(Collective(kind, axes, nbytes, turns, layer, operation, places=places))
        return tuple(found)

    def flops(self) -> int:
        """Of multiplications of matrices and convolutions in a run, two for each product."""
        return sum(
            max(turns, 1) * self._flops(computation, instruction)
            for computation, instruction, turns, _ in self._run(self.entry, 1)
        )

    def nbytes_accessed(self) -> int:
        """Bytes that a run reads and writes in memory: an estimate.

        Each fusion reads its operands and writes its results; of what it takes a slice of, or puts one into, the slice
        counts.
        """
        return sum(
            max(turns, 1) * self._touched(computation, instruction)
            for computation, instruction, turns, _ in self._run(self.entry, 1, into_fusions=False)
        )

    def _run(
        self, computation_name: str, turns: int, caller: str = "", into_fusions: bool = True
    ) -> Iterator[tuple[Computation, Instruction, int, str]]:
        """The instructions that a computation runs, each with how often, 0 where that is not known, and JAX's name.

        What has no such name has that of what runs it.
        """
        computation = self.computations[computation_name]
        for instruction in computation.instructions.values():
            name = instruction.attribute(r'op_name="([^"]*)"') or caller
            yield computation, instruction, turns, name
            if instruction.opcode == "fusion" and not into_fusions:
                continue
            inside = (
                turns * turns_of(self.computations, computation, instruction)
                if instruction.opcode == "while"
                else turns
            )
            for called in (each for names in instruction.called.values() for each in names):
                if called in self.computations:
                    yield from self._run(called, inside, name, into_fusions)

    def _nbytes(self, computation: Computation, name: str) -> int:
        return nbytes_of(computation.instructions[name].result) if name in computation.instructions else 0

    def _dims(self, computation: Computation, name: str) -> tuple[int, ...]:
        return dims_of(computation.instructions[name].result)

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
        return 2 * math.prod(dims_of(instruction.result)) * inner

    def _convolution(self, computation: Computation, instruction: Instruction) -> int:
        """Products of a kernel with what lies outside of the image do not count: TPUs multiply batches that way."""
        image, kernel, result = instruction.attribute(r"dim_labels=(\S*_\S*->\w*)").replace("->", "_").split("_")
        lhs, rhs = (self._dims(computation, name) for name in instruction.operands[:2])
        out = dims_of(instruction.result)
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
            return self._touched_by_fusion(instruction, whole)
        if opcode in ("dynamic-slice", "slice", "gather"):
            return 2 * result
        if opcode == "dynamic-update-slice":
            return 2 * whole[1]
        if opcode.endswith("-start"):
            return 2 * sum(whole)
        return sum(whole) + result

    def _touched_by_fusion(self, fusion: Instruction, whole: Sequence[int]) -> int:
        inner = self.computations[fusion.called["calls"][0]]
        root = inner.result
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
    return Program(*parse_computations(text))


def _exchange(
    computation: Computation, instruction: Instruction, mesh: Mapping[str, int], slices: Sequence[int]
) -> tuple[Kind | None, np.ndarray]:
    """Which exchange an instruction is, if it is one, and of which groups of devices, a row each."""
    kind = KINDS.get(instruction.opcode.removesuffix("-start"))
    if kind == "all_reduce" and _keeps_slices(computation, instruction):
        kind = "reduce_scatter"
    if kind is not None:
        return kind, groups_of(instruction.opcode, instruction.attributes, math.prod(mesh.values()))
    sent = instruction.attribute(r'_xla_megascale_transfer_type="(\w+)"') if instruction.opcode == "send" else ""
    if not sent:
        return None, np.zeros((1, 1), int)
    first_of_each = np.unique(np.asarray(slices, int), return_index=True)[1]
    return _OVER_SLICES.get(sent, "collective_permute"), first_of_each[None]


def _axes(groups: np.ndarray, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes of the mesh along which the devices of a group differ."""
    places = np.unravel_index(groups, tuple(mesh.values())) if mesh else ()
    return tuple(name for name, place in zip(mesh, places, strict=True) if (place != place[:, :1]).any())


def _keeps_slices(computation: Computation, reduced: Instruction) -> bool:
    """Whether a fusion gives only slices of what is reduced in it."""
    root = computation.result
    found = [computation.instructions[name] for name in root.operands] if root.opcode == "tuple" else [root]
    return all(_sliced(computation, each) is reduced for each in found)


def _sliced(computation: Computation, instruction: Instruction) -> Instruction | None:
    """What an instruction is a slice of, if it is one."""
    is_slice = False
    while instruction.opcode in ("dynamic-slice", "bitcast", "copy", "reshape", "get-tuple-element"):
        is_slice |= instruction.opcode == "dynamic-slice"
        instruction = computation.instructions[instruction.operands[0]]
    return instruction if is_slice else None


def _layer_and_operation(name: str) -> tuple[str, str]:
    """Those in a name of JAX; if it names several, since they are combined, none."""
    names = re.split(r"[:;]", name)
    paths = [[path_of_scope(part) for part in re.split(r"[/()]", each)] for each in names]
    layers = {next((path for path in reversed(of) if path), "") for of in paths}
    operations = {each.rpartition("/")[2].rstrip(")") for each in names}
    layer, operation = ("" if len(found) > 1 else found.pop() for found in (layers, operations))
    return layer, operation


def _puts_into(instruction: Instruction, name: str) -> bool:
    return instruction.opcode == "dynamic-update-slice" and instruction.operands[0] == name
