"""The program of one device as `peak_memory` reads it: operations with the bytes of their results, without calls.

Names of operations are what XLA computes: a product without two matrices is a multiplication or a reduction.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from typing import Any

from keras_dist.planner.exchanges import numbers_of
from keras_dist.planner.sharded_module import ShardedModule, is_argument, layer_in, name_of, text_of
from keras_dist.planner.tile_padding import padded_images, padded_in_product, padded_rows, without_product

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the operations of MLIR have no types


def named(names: str, dialect: str = "stablehlo") -> frozenset[str]:
    """Return names of operations."""
    return frozenset(f"{dialect}.{name}" for name in names.split())


_CHEAP = named(
    "abs add and broadcast_in_dim ceil clamp compare complex concatenate convert dynamic_slice floor imag is_finite "
    "maximum minimum multiply negate not or pad popcnt real reduce_precision reverse round_nearest_afz "
    "round_nearest_even select shift_left shift_right_arithmetic shift_right_logical sign slice subtract transpose xor"
) | {"chlo.square"}
"""Operations that XLA computes again for each reader rather than keep their results."""
COSTLY = named(
    "atan2 cbrt cosine divide exponential exponential_minus_one log log_plus_one logistic power remainder rsqrt sine "
    "sqrt tan tanh"
) | named("acos acosh asin asinh atanh cosh digamma erf erf_inv erfc lgamma sinh tan", "chlo")
"""Elementwise operations that XLA computes once for several readers."""
FUSED = _CHEAP | COSTLY
VIEWS = named("bitcast_convert optimization_barrier reshape") | {"sdy.sharding_constraint"}
"""Operations whose results are other names of their operands."""
CONSTANTS = named("constant iota partition_id") | {"sdy.constant"}
FROM_MEMORY = named(
    "case cholesky convolution custom_call dot_general fft gather if reduce_window rng_bit_generator scatter "
    "select_and_scatter sort triangular_solve while"
) | {"return"}
"""Operations that read arrays from memory, so that a result which they need is allocated."""
PRODUCTS = named("convolution dot_general")
_MOVES = VIEWS | named("broadcast_in_dim concatenate convert dynamic_slice dynamic_update_slice slice transpose")
"""Operations whose results have the elements of their operands."""
RESIZED = named("broadcast_in_dim concatenate dynamic_slice pad slice")
"""Operations of `FUSED` whose results have another number of elements."""
_OPAQUE = named("cholesky custom_call fft triangular_solve")
"""Operations that may need memory beside their results."""
_WITHOUT_MEMORY = (
    *("Sharding", "SPMD", "annotate_device_placement", "cu_threefry", "xla.sdy", "xla_ffi_p", "xla_python"),
    "tpu_custom_call",
)
"""Beginnings of names of custom calls without such memory: annotations, random bits, callbacks of the host, and kernels
of Pallas for TPUs, whose intermediate results are in VMEM."""
_ALLOWANCE = 1.05
"""Times the padding of products, for the copies with other tiles that XLA for TPUs keeps at the same time."""
_TO_HOST = '_xla_buffer_placement = "pinned_host"'
_WITH_BLOCKS = (*named("case if while"), "sdy.manual_computation")


@dataclasses.dataclass(eq=False)
class Value:
    """A result of an operation, or an argument of a block."""

    nbytes: int
    is_float32: bool = False
    padding: float = math.inf
    """Factor of its bytes in products; infinite outside of products."""
    readers: list[Operation] = dataclasses.field(default_factory=list)
    flows_to: list[Value] = dataclasses.field(default_factory=list)
    """Values of a loop with the same elements: a carried argument, and the result."""

    @property
    def is_padded(self) -> bool:
        """Whether products need more than its bytes."""
        return 1 < self.padding < math.inf


@dataclasses.dataclass(eq=False)
class Operation:
    """An operation with the blocks inside it."""

    name: str
    operands: list[Value]
    results: list[Value]
    blocks: list[Block] = dataclasses.field(default_factory=list)
    is_rounded: bool = False
    """Whether it is a product of default precision: TPUs round its operands to bfloat16."""

    def results_of(self, operand: Value) -> list[Value]:
        """Return the results that are computed from an operand; a barrier has one result for each operand."""
        if self.name != "stablehlo.optimization_barrier":
            return self.results
        return [result for each, result in zip(self.operands, self.results, strict=True) if each is operand]


@dataclasses.dataclass(eq=False)
class Block:
    """Operations in program order; the last one is `return`."""

    arguments: list[Value]
    operations: list[Operation]

    @property
    def returned(self) -> list[Value]:
        """The values that the block returns."""
        return self.operations[-1].operands


class Reader:
    """Reads operations; afterwards it has the `opaque` ones, and the bytes of those that `rearranged` arrays."""

    def __init__(self, module: ShardedModule) -> None:
        self._module = module
        self._padding = padded_images(module) if module.platform == "tpu" else {}
        self._values: list[Value] = []
        self._constants = set[Value]()
        self._reshapes: list[Operation] = []
        self._same_tiles: list[tuple[Operation, Value]] = []
        self.opaque: dict[str, None] = {}
        self.rearranged: dict[str, int] = {}

    def main(self) -> Block:
        """Return `main` of the module with the calls of functions in it replaced by their operations."""
        main = self._block(self._module.block("main"), {})
        if self._module.platform == "tpu":
            self._round_and_pad()
        return main

    def _block(self, block: Any, known: dict[Any, Value]) -> Block:
        arguments = [self._value(argument) for argument in block.arguments]
        known |= zip(block.arguments, arguments, strict=True)
        operations: list[Operation] = []
        self._read(block, known, operations)
        return Block(arguments, operations)

    def _round_and_pad(self) -> None:
        """Note what XLA for TPUs rounds to bfloat16, and pads to tiles; it copies arrays that get other tiles."""
        for operation, operand in self._same_tiles:
            operation.results[0].padding = min(operation.results[0].padding, operand.padding)
        for operation, operand in self._same_tiles:
            if operation.name == "stablehlo.transpose":
                operand.padding = operation.results[0].padding
        rounded = [each for each in self._values if each.is_float32 and not each.is_padded and _is_rounded(each)]
        for value in rounded:
            value.nbytes //= 2
        for reshape in self._reshapes:
            if reshape.operands[0].is_padded or reshape.results[0].is_padded:
                reshape.name = "copy"
        for value in self._values:
            more = _ALLOWANCE * (value.padding - 1) if value.is_padded else 0
            value.nbytes += int(value.nbytes * more)

    def _value(self, value: Any) -> Value:
        nbytes = self._module.nbytes(value)
        if self._padding:
            nbytes = int(nbytes * self._padding.get(tuple(self._module.local_shape(value)), 1))
        found = Value(nbytes, str(getattr(value.type, "element_type", "")) == "f32")
        self._values.append(found)
        return found

    def _read(self, block: Any, known: dict[Any, Value], into: list[Operation]) -> None:
        for each in block.operations:
            operation = each.operation
            operands = [known[operand] for operand in operation.operands]
            if operation.name == "func.call":
                self._call(operation, operands, known, into)
                continue
            if operation.name in _OPAQUE and (described := _opaque(operation)):
                self.opaque[described] = None
            if _rearranges(operation):
                described, nbytes = _described(operation), max(map(self._module.nbytes, operation.results))
                self.rearranged[described] = max(nbytes, self.rearranged.get(described, 0))
            name = self._name(operation)
            made = Operation(name, operands, [])
            if operation.name in _WITH_BLOCKS:
                made.blocks = [self._block(inner, known) for region in operation.regions for inner in region.blocks]
                captured = {value for inner in made.blocks for value in _captured(inner)}
                made.operands = [*operands, *(value for value in captured if value not in operands)]
            made.results = [self._value(result) for result in operation.results]
            if name == "stablehlo.custom_call" and _TO_HOST in str(dict(operation.attributes)):
                made.results[0].nbytes = 0
            if name == "stablehlo.while":
                condition, body = made.blocks
                _connect(operands, condition, body, made.results)
            elif name == "stablehlo.reshape":
                self._reshapes.append(made)
            elif name in FUSED - RESIZED and sum(each not in self._constants for each in operands) == 1:
                self._same_tiles.append((made, next(each for each in operands if each not in self._constants)))
            elif name in PRODUCTS:
                if name == "stablehlo.dot_general" and self._module.platform == "tpu":
                    paddings = padded_in_product(operation, self._module)
                    for value, padding in zip((*operands, *made.results), paddings, strict=True):
                        value.padding = min(value.padding, padding)
                made.is_rounded = "HIGH" not in str(dict(operation.attributes).get("precision_config"))
            elif self._module.platform == "tpu" and name == "stablehlo.gather":
                into += self._padded_lookup(made, padded_rows(operation, self._module))
            if name in CONSTANTS or (name == "stablehlo.broadcast_in_dim" and operands[0] in self._constants):
                self._constants.update(made.results)
            known |= zip(operation.results, made.results, strict=True)
            for operand in dict.fromkeys(made.operands):
                operand.readers.append(made)
            is_early = self._module.platform == "tpu" and _gathers_table(operation)
            into.insert(0 if is_early else len(into), made)

    def _padded_lookup(self, lookup: Operation, padding: float) -> Iterable[Operation]:
        """Pad the rows that are looked up, and yield the copy of the table that XLA for TPUs looks them up in."""
        if padding > 1:
            table, rows = lookup.operands[0], lookup.results[0]
            rows.nbytes = int(rows.nbytes * padding)
            lookup.operands[0] = Value(int(table.nbytes * padding))
            copy = Operation("copy", [table], [lookup.operands[0]])
            table.readers.append(copy)
            yield copy

    def _name(self, operation: Any) -> str:
        is_tpu = self._module.platform == "tpu"
        if operation.name in ("func.return", "stablehlo.return", "sdy.return"):
            return "return"
        if operation.name == "stablehlo.dot_general" and (kind := without_product(operation, is_tpu)):
            return f"stablehlo.{kind}"
        if is_tpu and _is_one_of_each_row(operation):
            return "stablehlo.reduce" if operation.name == "stablehlo.gather" else "stablehlo.select"
        return operation.name

    def _call(self, call: Any, operands: list[Value], known: dict[Any, Value], into: list[Operation]) -> None:
        block = self._module.block(text_of(call.attributes["callee"]))
        inner = dict(zip(block.arguments, operands, strict=True))
        self._read(block, inner, into)
        returned = into.pop()
        for operand in dict.fromkeys(returned.operands):
            operand.readers.remove(returned)
        known |= zip(call.results, returned.operands, strict=True)


def _opaque(operation: Any) -> str:
    """Describe an operation of unknown memory; empty if it needs none."""
    if operation.name != "stablehlo.custom_call":
        return _described(operation)
    target = text_of(operation.attributes["call_target_name"])
    return "" if target.startswith(_WITHOUT_MEMORY) else _described(operation, f"the kernel {target}")


def _described(operation: Any, name: str = "") -> str:
    name, layer = name or operation.name.rpartition(".")[2], layer_in(name_of(operation))
    return f"{name} in {layer}" if layer else name


def _is_one_of_each_row(operation: Any) -> bool:
    """Whether an operation takes or sets one element of each row: XLA for TPUs compares the index with all places."""
    kind = operation.name.rpartition(".")[2]
    if kind not in ("gather", "scatter"):
        return False
    numbers = str(operation.attributes["dimension_numbers" if kind == "gather" else "scatter_dimension_numbers"])
    return "batching_dims" in numbers and not re.search(r"(offset|update_window)_dims = \[\d", numbers)


def _gathers_table(operation: Any) -> bool:
    """Whether an operation gathers a table for lookups: XLA for TPUs does this before all other operations."""
    if operation.name != "sdy.all_gather" or not is_argument(operation.operands[0].owner):
        return False
    return any(use.owner.operation.name == "stablehlo.gather" for use in operation.results[0].uses)


def _rearranges(operation: Any) -> bool:
    """Return whether XLA for TPUs needs unknown copies: of what is sorted, and of elements at steps."""
    if operation.name == "stablehlo.slice":
        return any(stride != 1 for stride in numbers_of(operation.attributes["strides"]))
    if operation.name == "stablehlo.pad":
        return any(numbers_of(operation.attributes["interior_padding"]))
    return operation.name == "stablehlo.sort"


def _connect(operands: list[Value], condition: Block, body: Block, results: list[Value]) -> None:
    """Note where the values that a loop carries go."""
    for place, result in enumerate(results):
        carried = [condition.arguments[place], body.arguments[place], result]
        operands[place].flows_to += carried
        body.returned[place].flows_to += carried


def _is_rounded(value: Value) -> bool:
    """Whether a value is only read by products that round it."""
    seen, found = {value}, [value]
    for value in found:  # which grows
        following = [*value.flows_to]
        for reader in value.readers:
            if reader.name in _MOVES or (reader.name in FUSED and value.readers == [reader]):
                following += reader.results_of(value)
            elif not reader.is_rounded:
                is_carried = reader.name == "stablehlo.while" or (reader.name == "return" and bool(value.flows_to))
                if not is_carried:
                    return False
        found += [each for each in dict.fromkeys(following) if each not in seen]
        seen.update(following)
    return True


def _captured(block: Block) -> Iterable[Value]:
    """Yield the values from outside that a block reads."""
    own = {*block.arguments, *(result for operation in block.operations for result in operation.results)}
    for operation in block.operations:
        yield from (operand for operand in operation.operands if operand not in own)
