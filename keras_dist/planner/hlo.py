"""Collectives, FLOPs and memory traffic of XLA's compiled programs, read from their text."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from keras_dist.planner.halos import products_in_window
from keras_dist.planner.hlo_text import Computation, Instruction, dims_of, nbytes_of, parse_computations, turns_of
from keras_dist.planner.propagation import Collective, Kind
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
"""Names of XLA's collectives; asynchronous ones end with `-start`."""

_OVER_SLICES: Mapping[str, Kind] = {
    "ALL_REDUCE": "all_reduce",
    "ALL_GATHER": "all_gather",
    "REDUCE_SCATTER": "reduce_scatter",
    "ALL_TO_ALL": "all_to_all",
}
"""Names of transfers between slices of TPUs, by the runtime; any other transfer goes to one other slice."""

_FREE = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "while", "conditional", "call")
)
"""Instructions without memory traffic."""

_PAIRS = re.compile(r"source_target_pairs=\{([{}\d, ]*)\}")
_LISTS = re.compile(r"replica_groups=\{([{}\d, ]*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[(?P<sizes>[^\]]*)\](?:, device_ids=\((?P<ids>[^{]*)\))? \{(?P<axes>[^}]*)\}")


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program: its computations by name, and the name of the entry computation."""

    computations: Mapping[str, Computation]
    entry: str

    def collectives(self, mesh: Mapping[str, int], slices: Sequence[int] = ()) -> tuple[Collective, ...]:
        """Return the collectives of a run, in program order, with both branches of conditions.

        On TPUs a reduce_scatter is an all_reduce that is fused with a slice of its result.

        Args:
            mesh: sizes of the axes of the mesh, in order.
            slices: index of the slice of each device, in the order of the mesh.
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
        """Return the FLOPs of matrix multiplications and convolutions in a run, two for each product."""
        return sum(
            max(turns, 1) * self._flops(computation, instruction)
            for computation, instruction, turns, _ in self._run(self.entry, 1)
        )

    def kernels(self) -> dict[str, int]:
        """Return by name how often a run calls each kernel of Pallas on TPUs, and of attention by cuDNN."""
        found: collections.Counter[str] = collections.Counter()
        for _, instruction, turns, _ in self._run(self.entry, 1):
            target = instruction.attribute(r'custom_call_target="([^"]*)"')
            if target == "tpu_custom_call":
                found[re.sub(r"\.\d+$", "", instruction.name)] += max(turns, 1)
            elif target.startswith("__cudnn$fmha"):
                found[target.removeprefix("__cudnn$")] += max(turns, 1)
        return dict(found)

    def nbytes_accessed(self) -> int:
        """Estimate the bytes that a run reads and writes: operands and results of fusions, or the slices they use."""
        return sum(
            max(turns, 1) * self._touched(computation, instruction)
            for computation, instruction, turns, _ in self._run(self.entry, 1, into_fusions=False)
        )

    def _run(
        self, computation_name: str, turns: int, caller: str = "", into_fusions: bool = True
    ) -> Iterator[tuple[Computation, Instruction, int, str]]:
        """Yield the instructions of a run, each with its turns (0 if unknown) and JAX's name of it or of its caller."""
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
        elif "__cudnn$fmha" in instruction.attributes:  # it computes masked scores or does not
            return 0
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
        """Return the FLOPs of a convolution without products with padding, by which TPUs multiply batches."""
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
            products *= products_in_window(lhs[image.index(label)], size, ends, stride, dilation, gap, before)
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
    """Parse the text of a compiled module."""
    return Program(*parse_computations(text))


def _exchange(
    computation: Computation, instruction: Instruction, mesh: Mapping[str, int], slices: Sequence[int]
) -> tuple[Kind | None, np.ndarray]:
    """Return the kind of a collective instruction, else None, and its groups of devices, one per row."""
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
    """Return the axes of the mesh along which the devices of a group differ."""
    places = np.unravel_index(groups, tuple(mesh.values())) if mesh else ()
    return tuple(name for name, place in zip(mesh, places, strict=True) if (place != place[:, :1]).any())


def _keeps_slices(computation: Computation, reduced: Instruction) -> bool:
    """Whether a fusion returns only slices of a reduction."""
    root = computation.result
    found = [computation.instructions[name] for name in root.operands] if root.opcode == "tuple" else [root]
    return all(_sliced(computation, each) is reduced for each in found)


def _sliced(computation: Computation, instruction: Instruction) -> Instruction | None:
    """Return the operand of a slice, through copies and reshapes, else None."""
    is_slice = False
    while instruction.opcode in ("dynamic-slice", "bitcast", "copy", "reshape", "get-tuple-element"):
        is_slice |= instruction.opcode == "dynamic-slice"
        instruction = computation.instructions[instruction.operands[0]]
    return instruction if is_slice else None


def _layer_and_operation(name: str) -> tuple[str, str]:
    """Return layer and operation in a name of JAX, or empty strings where a combined name has several."""
    names = re.split(r"[:;]", name)
    paths = [[path_of_scope(part) for part in re.split(r"[/()]", each)] for each in names]
    layers = {next((path for path in reversed(of) if path), "") for of in paths}
    operations = {each.rpartition("/")[2].rstrip(")") for each in names}
    layer, operation = ("" if len(found) > 1 else found.pop() for found in (layers, operations))
    return layer, operation


def _puts_into(instruction: Instruction, name: str) -> bool:
    return instruction.opcode == "dynamic-update-slice" and instruction.operands[0] == name


def groups_of(opcode: str, attributes: str, devices: int) -> np.ndarray:
    """Return the groups of devices that exchange, one per row; pairs of source and target are groups of two.

    XLA writes groups as lists, `{{0,1},{2,3}}`; as a reshaped and transposed iota, `[2,2]<=[2,2]T(1,0)`; or as axes of
    a mesh, and parts of axes, `mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a','b':(1)2}`.
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
    """Return groups along axes of a mesh; `'b':(2)4` is the part of size 4 of an axis, after a part of size 2."""
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
