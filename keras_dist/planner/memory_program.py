"""The program of one device as `peak_memory` reads it: operations with the bytes of their results, without calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from keras_dist.planner.exchanges import numbers_of
from keras_dist.planner.sharded_module import ShardedModule, element_nbytes, layer_in, name_of, text_of
from keras_dist.planner.storage import STORAGE, Storage

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the operations of MLIR have no types


def named(names: str, dialect: str = "stablehlo") -> frozenset[str]:
    """Return names of operations."""
    return frozenset(f"{dialect}.{name}" for name in names.split())


VIEWS = named("bitcast_convert optimization_barrier reshape") | {"sdy.sharding_constraint"}
"""Operations whose results are other names of their operands."""
CONSTANTS = named("constant iota partition_id") | {"sdy.constant"}
PRODUCTS = named("convolution dot_general")
FROM_MEMORY = PRODUCTS | named(
    "case cholesky custom_call fft gather if reduce_window rng_bit_generator scatter select_and_scatter sort "
    "triangular_solve while"
)
"""Operations that read arrays from memory, so that a result which they need is allocated."""
_STORED = FROM_MEMORY | named("dynamic_update_slice reduce") | {"return"}
_MOVES = VIEWS | named("broadcast_in_dim concatenate convert dynamic_slice dynamic_update_slice slice transpose")
"""Operations whose results have the elements of their operands."""
_OPAQUE = named("cholesky custom_call fft triangular_solve")
"""Operations that may need memory beside their results."""
_WITHOUT_MEMORY = (
    *("Sharding", "SPMD", "annotate_device_placement", "cu_threefry", "xla.sdy", "xla_ffi_p", "xla_python"),
    "tpu_custom_call",
)
"""Beginnings of names of custom calls without such memory: annotations, random bits, callbacks of the host, and kernels
of Pallas for TPUs, whose intermediate results are in VMEM."""
ON_HOST = "pinned_host"
_WITH_BLOCKS = (*named("case if while"), "sdy.manual_computation")


@dataclasses.dataclass(eq=False)
class Value:
    """A result of an operation, or an argument of a block, with the least and the most bytes that XLA stores."""

    nbytes: int
    most_nbytes: int
    is_float32: bool = False
    readers: list[Operation] = dataclasses.field(default_factory=list)
    flows_to: list[Value] = dataclasses.field(default_factory=list)
    """Values of a loop with the same elements: a carried argument, and the result."""


@dataclasses.dataclass(eq=False)
class Operation:
    """An operation with the blocks inside it."""

    name: str
    operands: list[Value]
    results: list[Value]
    blocks: list[Block] = dataclasses.field(default_factory=list)
    is_rounded: bool = False
    """Whether it is a product of default precision: TPUs round its operands to bfloat16."""

    @property
    def is_fused(self) -> bool:
        """Whether it is computed where its result is needed: elementwise operations, slices, transposes."""
        return self.name not in _STORED | VIEWS | CONSTANTS and self.name.startswith(("stablehlo.", "chlo."))

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
    """Reads operations; afterwards it has their number, the `opaque` ones, and the bytes that some `rearranged`."""

    def __init__(self, module: ShardedModule) -> None:
        self._module, self.storage = module, STORAGE.get(module.platform, Storage())
        self._float32: list[Value] = []
        self.count = 0
        self.opaque: dict[str, None] = {}
        self.rearranged: dict[str, int] = {}
        self.main = self._block(module.block("main"), {})
        arguments = {*self.main.arguments}
        inside = [value for value in self._float32 if self.storage.rounds and value not in arguments]
        for value in [value for value in inside if _is_rounded(value)]:
            value.nbytes, value.most_nbytes = value.nbytes // 2, value.most_nbytes // 2

    def _value(self, value: Any) -> Value:
        if not hasattr(value.type, "element_type"):
            return Value(0, 0)
        shape, element = self._module.local_shape(value), str(value.type.element_type)
        size, widest = element_nbytes(element), self.storage.widest.get(element)
        most = self.storage.most_nbytes(shape, widest or size)
        found = Value(self.storage.least_nbytes(shape, size), most, element == "f32")
        self._float32 += [found] * found.is_float32
        return found

    def _block(self, block: Any, known: dict[Any, Value]) -> Block:
        arguments = [self._value(argument) for argument in block.arguments]
        known |= zip(block.arguments, arguments, strict=True)
        operations: list[Operation] = []
        self._read(block, known, operations, {})
        return Block(arguments, operations)

    def _read(self, block: Any, known: dict[Any, Value], into: list[Operation], seen: dict[Any, list[Value]]) -> None:
        """Read a block; `seen` has the results of operations that XLA does not compute twice."""
        for each in block.operations:
            operation = each.operation
            operands = [known[operand] for operand in operation.operands]
            if operation.name == "func.call":
                self._call(operation, operands, known, into, seen)
                continue
            key = self._key(operation, operands)
            results = operands if key == "stablehlo.optimization_barrier" else seen.get(key)
            if results is None:
                made = self._operation(operation, operands, known)
                into.append(made)
                results = made.results
                if key is not None:
                    seen[key] = results
            known |= zip(operation.results, results, strict=True)

    def _key(self, operation: Any, operands: list[Value]) -> Any:
        """Return what equal operations have in common, where XLA undoes `remat`; None if they are computed again."""
        if self.storage.keeps_remat or operation.name in _WITH_BLOCKS or not operation.results:
            return None
        if operation.name == "stablehlo.optimization_barrier":
            return operation.name
        if operation.name.endswith(".constant"):  # attributes of complex numbers cannot be read
            return operation.get_asm(large_elements_limit=16, use_local_scope=True).partition(" = ")[2]
        known = {name: str(operation.attributes[name]) for name in operation.attributes if name != "sdy.sharding"}
        inside = (each.operation.name for region in operation.regions for each in region.blocks[0].operations)
        result = operation.results[0]
        return operation.name, *map(id, operands), *known.items(), *inside, result.type, self._module.nbytes(result)

    def _operation(self, operation: Any, operands: list[Value], known: dict[Any, Value]) -> Operation:
        self.count += 1
        name = "return" if operation.name.endswith(".return") else operation.name
        if operation.name in _OPAQUE and (described := _opaque(operation)):
            self.opaque[described] = None
        if _rearranges(operation):
            described, nbytes = _described(operation), max(map(self._module.nbytes, operation.results))
            self.rearranged[described] = max(nbytes, self.rearranged.get(described, 0))
        made = Operation(name, operands, [])
        if operation.name in _WITH_BLOCKS:
            made.blocks = [self._block(inner, known) for region in operation.regions for inner in region.blocks]
            captured = {value for inner in made.blocks for value in _captured(inner)}
            made.operands = [*operands, *(value for value in captured if value not in operands)]
        made.results = [self._value(result) for result in operation.results]
        attributes = operation.attributes
        if name == "stablehlo.custom_call" and ON_HOST in str(dict(attributes)):
            made.results[0].nbytes = made.results[0].most_nbytes = 0
        if name == "stablehlo.while":
            _connect(operands, made)
        made.is_rounded = name in PRODUCTS and "HIGH" not in str(dict(attributes).get("precision_config"))
        for operand in dict.fromkeys(made.operands):
            operand.readers.append(made)
        return made

    def _call(
        self, call: Any, operands: list[Value], known: dict[Any, Value], into: list[Operation], seen: dict[Any, Any]
    ) -> None:
        block = self._module.block(text_of(call.attributes["callee"]))
        self._read(block, dict(zip(block.arguments, operands, strict=True)), into, seen)
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


def _rearranges(operation: Any) -> bool:
    """Return whether XLA for TPUs needs unknown copies: of what is sorted, and of elements at steps."""
    if operation.name == "stablehlo.slice":
        return any(stride != 1 for stride in numbers_of(operation.attributes["strides"]))
    if operation.name == "stablehlo.pad":
        return any(numbers_of(operation.attributes["interior_padding"]))
    return operation.name == "stablehlo.sort"


def _connect(operands: list[Value], loop: Operation) -> None:
    """Note where the values that a loop carries go."""
    condition, body = loop.blocks
    for place, result in enumerate(loop.results):
        carried = [condition.arguments[place], body.arguments[place], result]
        operands[place].flows_to += carried
        body.returned[place].flows_to += carried


def _is_rounded(value: Value) -> bool:
    """Whether a value is only read by products that round it."""
    seen, found = {value}, [value]
    for value in found:  # which grows
        following = [*value.flows_to]
        for reader in value.readers:
            if reader.name in _MOVES or (reader.is_fused and value.readers == [reader]):
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
