"""The peak of the intermediate results of a step on one device, from its propagated program.

XLA allocates what it does not fuse: products, convolutions, lookups, reductions, collectives, the state of loops. A
chain of elementwise operations is computed where it is needed, so its inputs live as long as its last reader. This
module follows these rules before compilation; `tests/planner/memory_bank.py` compares its figures with XLA.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from keras_dist.planner.halos import labels_of, numbers_of
from keras_dist.planner.sharded_module import ShardedModule, layer_in, name_of, operations_in, text_of

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the operations of MLIR have no types


def _named(names: str, dialect: str = "stablehlo") -> frozenset[str]:
    return frozenset(f"{dialect}.{name}" for name in names.split())


_CHEAP = _named(
    "abs add and broadcast_in_dim ceil clamp compare complex concatenate convert dynamic_slice floor imag is_finite "
    "maximum minimum multiply negate not or pad popcnt real reduce_precision reverse round_nearest_afz "
    "round_nearest_even select shift_left shift_right_arithmetic shift_right_logical sign slice subtract transpose xor"
) | {"chlo.square"}
"""Operations that XLA computes again for each reader rather than keep their results."""
_COSTLY = _named(
    "atan2 cbrt cosine divide exponential exponential_minus_one log log_plus_one logistic power remainder rsqrt sine "
    "sqrt tan tanh"
) | _named("acos acosh asin asinh atanh cosh digamma erf erf_inv erfc lgamma sinh tan", "chlo")
"""Elementwise operations that XLA computes once for several readers."""
_FUSED = _CHEAP | _COSTLY
_VIEWS = _named("bitcast_convert optimization_barrier reshape") | {"sdy.sharding_constraint"}
"""Operations whose results are other names of their operands."""
_CONSTANTS = _named("constant iota partition_id") | {"sdy.constant"}
_FROM_MEMORY = _named(
    "case cholesky convolution custom_call dot_general fft gather if reduce_window rng_bit_generator scatter "
    "select_and_scatter sort triangular_solve while"
) | {"return"}
"""Operations that read arrays from memory, so that a result which they need is allocated."""
_PRODUCTS = _named("convolution dot_general")
_MOVES = _VIEWS | _named("broadcast_in_dim concatenate convert dynamic_slice dynamic_update_slice slice transpose")
"""Operations whose results have the elements of their operands."""
_OPAQUE = _named("cholesky custom_call fft triangular_solve")
"""Operations that may need memory beside their results."""
_LEAST_REARRANGED = 1 / 16
"""The part of the peak from which sorted arrays, and parts of arrays at steps, are of unknown memory."""
_WITHOUT_MEMORY = (
    *("Sharding", "SPMD", "annotate_device_placement", "cu_threefry", "xla.sdy", "xla_ffi_p", "xla_python"),
    "tpu_custom_call",
)
"""Beginnings of names of custom calls without such memory: annotations, random bits, callbacks of the host, and kernels
of Pallas for TPUs, whose intermediate results are in VMEM."""
_TO_HOST = '_xla_buffer_placement = "pinned_host"'
_DONATED = ("tf.aliasing_output", "jax.buffer_donor")
_LANES = 128
"""Elements of the last dim of a tile in the memory of TPUs."""
_WITH_BLOCKS = (*_named("case if while"), "sdy.manual_computation")


@dataclasses.dataclass(frozen=True)
class PeakMemory:
    """The peak of intermediate results on one device.

    Attributes:
        nbytes: bytes, without what `opaque` operations need beside their results.
        opaque: operations of unknown needs: kernels for GPUs, FFTs, decompositions; large sorts, slices with strides
            and interior padding, such as `jax.lax.associative_scan` uses.
    """

    nbytes: int
    opaque: tuple[str, ...]


@dataclasses.dataclass(eq=False)
class Value:
    """A result of an operation, or an argument of a block."""

    nbytes: int
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


@dataclasses.dataclass(eq=False)
class Block:
    """Operations in program order; the last one is `return`."""

    arguments: list[Value]
    operations: list[Operation]

    @property
    def returned(self) -> list[Value]:
        """The values that the block returns."""
        return self.operations[-1].operands


def _read_main(reader: _Reader, module: ShardedModule) -> Block:
    """Return `main` of a module with the calls of functions in it replaced by their operations."""
    main = reader.block(module.functions["main"].regions[0].blocks[0], {})
    if module.platform == "tpu":
        for value in [each for each in reader.values if each.is_float32 and _is_rounded(each, set())]:
            value.nbytes //= 2
    return main


class _Reader:
    def __init__(self, module: ShardedModule) -> None:
        self._module = module
        self._padding = _padding_of_images(module) if module.platform == "tpu" else {}
        self.values: list[Value] = []
        self.opaque: dict[str, None] = {}
        self.rearranged: dict[str, int] = {}

    def block(self, block: Any, known: dict[Any, Value]) -> Block:
        arguments = [self._value(argument) for argument in block.arguments]
        known |= zip(block.arguments, arguments, strict=True)
        operations: list[Operation] = []
        self._read(block, known, operations)
        return Block(arguments, operations)

    def _value(self, value: Any) -> Value:
        nbytes = self._module.nbytes(value)
        if padded := self._padding.get(tuple(self._module.local_shape(value))):
            nbytes = int(nbytes * padded)
        found = Value(nbytes, str(getattr(value.type, "element_type", "")) == "f32")
        self.values.append(found)
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
            name = "return" if operation.name in ("func.return", "stablehlo.return", "sdy.return") else operation.name
            made = Operation(name, operands, [])
            if operation.name in _WITH_BLOCKS:
                made.blocks = [self.block(inner, known) for region in operation.regions for inner in region.blocks]
                captured = {value for inner in made.blocks for value in _captured(inner)}
                made.operands = [*operands, *(value for value in captured if value not in operands)]
            made.results = [self._value(result) for result in operation.results]
            if name == "stablehlo.custom_call" and _TO_HOST in str(dict(operation.attributes)):
                made.results[0].nbytes = 0
            if name == "stablehlo.while":
                condition, body = made.blocks
                _connect(operands, condition, body, made.results)
            elif name in _PRODUCTS:
                made.is_rounded = "HIGH" not in str(dict(operation.attributes).get("precision_config"))
            known |= zip(operation.results, made.results, strict=True)
            for operand in dict.fromkeys(made.operands):
                operand.readers.append(made)
            into.append(made)

    def _call(self, call: Any, operands: list[Value], known: dict[Any, Value], into: list[Operation]) -> None:
        block = self._module.functions[text_of(call.attributes["callee"])].regions[0].blocks[0]
        inner = dict(zip(block.arguments, operands, strict=True))
        self._read(block, inner, into)
        returned = into.pop()
        for operand in dict.fromkeys(returned.operands):
            operand.readers.remove(returned)
        known |= zip(call.results, returned.operands, strict=True)


def _padding_of_images(module: ShardedModule) -> dict[tuple[int, ...], float]:
    """Return how many times its bytes an array of a shape takes: XLA for TPUs pads channels or batch to `_LANES`."""
    found: dict[tuple[int, ...], float] = {}
    for operation in (each for function in module.functions.values() for each in operations_in(function)):
        if operation.name != "stablehlo.convolution":
            continue
        image, kernel, result = labels_of(operation)
        for value, labels, ends in zip(
            (*operation.operands, operation.results[0]), (image, kernel, result), ("bf", "io", "bf"), strict=True
        ):
            shape = module.local_shape(value)
            sizes = [shape[labels.index(end)] for end in ends]
            found[tuple(shape)] = min(-(-size // _LANES) * _LANES / size for size in sizes if size)
    return found


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


def _connect(operands: list[Value], condition: Block, body: Block, results: list[Value]) -> None:
    """Note where the values that a loop carries go."""
    for place, result in enumerate(results):
        carried = [condition.arguments[place], body.arguments[place], result]
        operands[place].flows_to += carried
        body.returned[place].flows_to += carried


def _is_rounded(value: Value, seen: set[Value]) -> bool:
    """Whether a value is only read by products that round it."""
    if value in seen:
        return True
    seen.add(value)
    for reader in value.readers:
        if reader.name in _MOVES or (reader.name in _FUSED and value.readers == [reader]):
            ends_rounded = _is_rounded(reader.results[0], seen)
        else:
            is_carried = reader.name == "stablehlo.while" or (reader.name == "return" and bool(value.flows_to))
            ends_rounded = is_carried or reader.is_rounded
        if not ends_rounded:
            return False
    return all(_is_rounded(each, seen) for each in value.flows_to)


def _captured(block: Block) -> Iterable[Value]:
    """Yield the values from outside that a block reads."""
    own = {*block.arguments, *(result for operation in block.operations for result in operation.results)}
    for operation in block.operations:
        yield from (operand for operand in operation.operands if operand not in own)


def peak_memory(module: ShardedModule) -> PeakMemory:
    """Estimate the peak of intermediate results on one device."""
    main = module.functions["main"]
    attributes = main.attributes["arg_attrs"] if "arg_attrs" in main.attributes else ()  # noqa: SIM401
    arguments = zip(main.regions[0].blocks[0].arguments, attributes, strict=False)
    donated = [module.nbytes(argument) for argument, given in arguments if any(name in given for name in _DONATED)]
    reader = _Reader(module)
    nbytes = _Simulation(_read_main(reader, module), module.platform == "tpu", donated).run()
    large = [name for name, size in reader.rearranged.items() if size > _LEAST_REARRANGED * nbytes]
    return PeakMemory(nbytes, tuple(dict.fromkeys((*reader.opaque, *large))))


class _Simulation:
    """The allocations of a block, in program order."""

    def __init__(self, block: Block, is_tpu: bool, donated: Sequence[int] | None = None) -> None:
        """Take the sizes of donated arguments, for `main`."""
        self._block, self._is_tpu = block, is_tpu
        self._donated = None if donated is None else collections.Counter(donated)
        self._index = {operation: index for index, operation in enumerate(block.operations)}
        self._sinks: dict[Value, set[Operation]] = {}
        self._is_kept: dict[Value, bool] = {}
        for operation in reversed(block.operations):
            for result in operation.results:
                self._decide(operation, result)

    def _decide(self, operation: Operation, result: Value) -> None:
        """Find the operations that finally read a value, and whether it is allocated."""
        readers = result.readers
        sinks: set[Operation] = set()
        for reader in readers:
            if reader not in self._index or not reader.results:
                sinks.add(reader)
            elif reader.name in _VIEWS or (reader.name in _FUSED and not self._is_kept[reader.results[0]]):
                sinks |= self._sinks[reader.results[0]]
            else:
                sinks.add(reader)
        self._sinks[result] = sinks
        if operation.name in _CONSTANTS or operation.name in _VIEWS:
            self._is_kept[result] = False
        elif operation.name in _FUSED:
            is_needed = any(self._needs_memory(reader, result) for reader in readers)
            # XLA for TPUs computes costly values again, too, unless a loop stores them
            is_stored = any(sink.name == "stablehlo.dynamic_update_slice" for sink in sinks)
            is_costly = operation.name in _COSTLY and (is_stored or not self._is_tpu)
            self._is_kept[result] = is_needed or (is_costly and len(sinks) > 1)
        else:
            self._is_kept[result] = True

    def _needs_memory(self, reader: Operation, value: Value) -> bool:
        if reader.name in _VIEWS and reader in self._index:
            return any(self._needs_memory(each, reader.results[0]) for each in reader.results[0].readers)
        if reader.name.startswith("sdy."):
            return True
        if reader.name == "stablehlo.dynamic_update_slice":
            return value is reader.operands[0]
        return reader.name in _FROM_MEMORY and not (self._is_tpu and reader.name in _PRODUCTS)

    def run(self) -> int:
        """Return the peak bytes."""
        block = self._block
        self._trace_roots()
        last = self._last
        live = peak = 0
        sizes: dict[Value, int] = {}  # of what is allocated
        dying: dict[int, list[Value]] = collections.defaultdict(list)
        returned = {root for value in block.returned for root in self._roots_of(value)}
        carried = {} if self._donated is not None else dict(zip(block.returned, block.arguments, strict=False))
        for index, operation in enumerate(block.operations):
            inside = self._inside(operation)
            for place, result in enumerate(operation.results):
                if self._roots.get(result) != frozenset([result]):
                    continue  # it is part of another array
                end = len(block.operations) if result in returned else max(last.get(result, index), index)
                if self._is_in_place(operation, result, index, carried, returned):
                    continue
                for root in self._replaced(operation, place, index):
                    if sizes.get(root) == result.nbytes:
                        live -= sizes.pop(root)
                        break
                sizes[result] = result.nbytes
                dying[end].append(result)
                live += result.nbytes
            peak = max(peak, live + inside)
            live -= sum(sizes.pop(value, 0) for value in dying.pop(index, ()))
        return peak

    def _trace_roots(self) -> None:
        """Find the arrays that each value is computed from, and where each array is read last."""
        self._roots: dict[Value, frozenset[Value]] = {}
        self._last: dict[Value, int] = {}
        for argument in self._block.arguments:
            self._roots[argument] = frozenset([argument])
        for index, operation in enumerate(self._block.operations):
            read = frozenset[Value]().union(*map(self._roots_of, operation.operands))
            for place, result in enumerate(operation.results):
                self._roots[result] = self._roots_made(operation, place, result, read)
            if not operation.results or any(self._roots[result] != read or not read for result in operation.results):
                self._last |= dict.fromkeys(read, index)

    def _roots_made(self, operation: Operation, place: int, result: Value, read: frozenset[Value]) -> frozenset[Value]:
        if operation.name in _CONSTANTS:
            return frozenset()
        if operation.name in _VIEWS:
            return self._roots_of(operation.operands[place])
        if not self._is_kept[result]:
            return read
        if operation.name == "stablehlo.dynamic_update_slice":
            return self._roots_of(operation.operands[0]) or frozenset([result])
        if operation.name == "stablehlo.while":
            body = operation.blocks[1]
            if body.returned[place] is body.arguments[place]:
                return self._roots_of(operation.operands[place])
        return frozenset([result])

    def _roots_of(self, value: Value) -> frozenset[Value]:
        return self._roots.get(value, frozenset([value]))  # of an outer block

    def _replaced(self, operation: Operation, place: int, index: int) -> Iterable[Value]:
        """Yield the arrays whose memory a result may take: they are read for the last time."""
        if operation.name in ("stablehlo.while", "stablehlo.scatter"):
            operands = [operation.operands[place]]
        elif operation.name in _FUSED:
            operands = operation.operands
        else:
            return
        for operand in operands:
            yield from (root for root in self._roots_of(operand) if self._last.get(root, -1) <= index)

    def _is_in_place(
        self, operation: Operation, result: Value, index: int, carried: dict[Value, Value], returned: set[Value]
    ) -> bool:
        """Whether a result takes the place of an argument of the block."""
        if self._donated is not None:
            if result not in returned or operation.name not in _FUSED or not self._donated[result.nbytes]:
                return False
            self._donated[result.nbytes] -= 1
            return True
        argument = carried.get(result)
        return argument is not None and self._last.get(argument, -1) <= index

    def _inside(self, operation: Operation) -> int:
        """Return the bytes that are live only while an operation runs."""
        return max((_Simulation(block, self._is_tpu).run() for block in operation.blocks), default=0)
