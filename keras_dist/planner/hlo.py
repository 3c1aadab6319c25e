"""Collectives, FLOPs and memory traffic of XLA's compiled programs, read from their text."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from keras_dist.planner.backends import Kind
from keras_dist.planner.exchanges import jax_operation, products_in_window
from keras_dist.planner.hlo_text import Computation, Instruction, parse_computations, turns_of
from keras_dist.planner.memory_traffic import traffic_nbytes
from keras_dist.planner.propagated import Collective
from keras_dist.planner.sharded_module import layer_in

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

_PAIRS = re.compile(r"source_target_pairs=\{([{}\d, ]*)\}")
_LISTS = re.compile(r"replica_groups=\{([{}\d, ]*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[(?P<sizes>[^\]]*)\](?:, device_ids=\((?P<ids>[^{]*)\))? \{(?P<axes>[^}]*)\}")


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program."""

    entry: Computation

    def collectives(self, mesh: Mapping[str, int], slices: Sequence[int] = ()) -> tuple[Collective, ...]:
        """Return the collectives of a run, in program order, with both branches of conditions.

        On TPUs a reduce_scatter is an all_reduce that is fused with a slice of its result, and an asynchronous
        collective is written into several fusions with its channel: of its start, what overlaps with it, and its end.
        `slices` has the index of the slice of each device, in the order of the mesh.
        """
        found: list[Collective] = []
        run = list(_run(self.entry))
        started = {_origin(each) for each, _, _ in run if _is_start(each)}
        for instruction, turns, name in run:
            kind, groups = _exchange(instruction, mesh, slices)
            is_again = _origin(instruction) in started and not any(map(_is_start, instruction.users))
            if kind is not None and groups.shape[1] > 1 and not is_again:
                given = sum(operand.nbytes for operand in instruction.operands)
                nbytes = given * groups.shape[1] if kind == "all_gather" else given
                axes = _axes(groups, mesh)
                is_all = kind == "collective_permute" or groups.shape[1] == math.prod(mesh[axis] for axis in axes)
                places = () if is_all else tuple(groups[0].tolist())
                layer, operation = _layer_and_operation(name)
                found.append(Collective(kind, axes, nbytes, turns, layer, operation, places=places))
        return tuple(found)

    def flops(self) -> int:
        """Return the FLOPs of matrix multiplications and convolutions in a run, two for each product."""
        return sum(max(turns, 1) * _flops(instruction) for instruction, turns, _ in _run(self.entry))

    def kernels(self) -> dict[str, int]:
        """Return by name how often a run calls each kernel of Pallas on TPUs, and of attention by cuDNN."""
        found: collections.Counter[str] = collections.Counter()
        for instruction, turns, _ in _run(self.entry):
            target = instruction.attribute(r'custom_call_target="([^"]*)"')
            if target == "tpu_custom_call":
                found[re.sub(r"\.\d+$", "", instruction.name)] += max(turns, 1)
            elif target.startswith("__cudnn$fmha"):
                found[target.removeprefix("__cudnn$")] += max(turns, 1)
        return dict(found)

    def nbytes_accessed(self) -> int:
        """Estimate the bytes in main memory that a run reads and writes."""
        run = _run(self.entry, into_fusions=False)
        return sum(max(turns, 1) * traffic_nbytes(instruction) for instruction, turns, _ in run)


def parse_program(text: str) -> Program:
    """Parse the text of a compiled module."""
    return Program(parse_computations(text))


def _run(
    computation: Computation, turns: int = 1, caller: str = "", *, into_fusions: bool = True
) -> Iterator[tuple[Instruction, int, str]]:
    """Yield the instructions of a run, each with its turns (0 if unknown) and JAX's name of it or of its caller."""
    for instruction in computation.instructions.values():
        name = instruction.attribute(r'op_name="([^"]*)"') or caller
        yield instruction, turns, name
        if instruction.opcode == "fusion" and not into_fusions:
            continue
        inside = turns * turns_of(instruction) if instruction.opcode == "while" else turns
        for called in (each for role in instruction.called.values() for each in role):
            yield from _run(called, inside, name, into_fusions=into_fusions)


def _flops(instruction: Instruction) -> int:
    if instruction.opcode == "dot":
        contracted = instruction.attribute(r"lhs_contracting_dims=\{([\d,]*)\}")
    elif "__cudnn$fmha" in instruction.attributes:  # it computes masked scores or does not
        return 0
    elif instruction.opcode == "custom-call" and "lhs_contracting_dimensions" in instruction.attributes:
        contracted = instruction.attribute(r'"lhs_contracting_dimensions":\[([\d",]*)\]').replace('"', "")
    elif instruction.opcode == "convolution":
        return _flops_of_convolution(instruction)
    else:
        return 0
    lhs = instruction.operands[0].dims
    inner = math.prod(lhs[int(dim)] for dim in contracted.split(",") if dim)
    return 2 * math.prod(instruction.dims) * inner


def _flops_of_convolution(instruction: Instruction) -> int:
    """Return the FLOPs of a convolution without products with padding, by which TPUs multiply batches."""
    image, kernel, result = instruction.attribute(r"dim_labels=(\S*_\S*->\w*)").replace("->", "_").split("_")
    lhs, rhs, out = (each.dims for each in (*instruction.operands[:2], instruction))
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


def _exchange(
    instruction: Instruction, mesh: Mapping[str, int], slices: Sequence[int]
) -> tuple[Kind | None, np.ndarray]:
    """Return the kind of a collective instruction, else None, and its groups of devices, one per row."""
    kind = KINDS.get(instruction.opcode.removesuffix("-start"))
    if kind == "all_reduce" and _keeps_slices(instruction):
        kind = "reduce_scatter"
    if kind is not None:
        return kind, groups_of(instruction.opcode, instruction.attributes, math.prod(mesh.values()))
    sent = instruction.attribute(r'_xla_megascale_transfer_type="(\w+)"') if instruction.opcode == "send" else ""
    if not sent:
        return None, np.zeros((1, 1), int)
    first_of_each = np.unique(np.asarray(slices, int), return_index=True)[1]
    return _OVER_SLICES.get(sent, "collective_permute"), first_of_each[None]


def _is_start(instruction: Instruction) -> bool:
    return instruction.attribute(r'custom_call_target="(\w+)"') == "AsyncCollectiveStart"


def _origin(instruction: Instruction) -> tuple[str, str, int]:
    """Return what the parts of an asynchronous collective have in common, of a collective or of the one it starts.

    The collectives of all `shard_map`s have one channel.
    """
    collective = instruction.operands[0] if _is_start(instruction) else instruction
    channel, chain = (collective.attribute(rf"{name}=\"?(\d+)") for name in ("channel_id", "chain_id"))
    return channel, chain, collective.nbytes


def _axes(groups: np.ndarray, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Return the axes of the mesh along which the devices of a group differ."""
    places = np.unravel_index(groups, tuple(mesh.values())) if mesh else ()
    return tuple(name for name, place in zip(mesh, places, strict=True) if (place != place[:, :1]).any())


def _keeps_slices(reduced: Instruction) -> bool:
    """Whether a fusion returns only slices of a reduction."""
    return all(_sliced(each) is reduced for each in reduced.computation.results)


def _sliced(instruction: Instruction) -> Instruction | None:
    """Return the operand of a slice, through copies and reshapes, else None."""
    is_slice = False
    while instruction.opcode in ("dynamic-slice", "bitcast", "copy", "reshape", "get-tuple-element"):
        is_slice |= instruction.opcode == "dynamic-slice"
        instruction = instruction.operands[0]
    return instruction if is_slice else None


def _layer_and_operation(name: str) -> tuple[str, str]:
    """Return layer and operation in a name of JAX, or empty strings where a combined name has several."""
    names = re.split(r"[:;]", name)
    layers, operations = set(map(layer_in, names)), set(map(jax_operation, names))
    layer, operation = ("" if len(found) > 1 else found.pop() for found in (layers, operations))
    return layer, operation


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
