"""The peak of the intermediate results of a step on one device, from its propagated program.

XLA allocates what it does not fuse: products, convolutions, lookups, reductions, collectives, the state of loops. A
chain of elementwise operations is computed where it is needed, so its inputs live as long as its last reader. This
module follows these rules before compilation; `tests/planner/memory_bank.py` compares its figures with XLA.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence

from keras_dist.planner import memory_program as program
from keras_dist.planner.memory_program import Block, Operation, Reader, Value
from keras_dist.planner.sharded_module import ShardedModule

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the operations of MLIR have no types


_DONATED = ("tf.aliasing_output", "jax.buffer_donor")
_LEAST_REARRANGED = 1 / 16
"""The part of the peak from which sorted arrays, and parts of arrays at steps, are of unknown memory."""
_ROW = 16
"""Bytes from which an array is not a scalar: for GPUs, what several operations broadcast of it is kept."""
_MOST_PASSED = 200
"""Elementwise operations after an array that are searched for the end of its life."""


@dataclasses.dataclass(frozen=True)
class PeakMemory:
    """The peak of intermediate results on one device."""

    nbytes: int  # without what `opaque` operations need beside their results
    opaque: tuple[str, ...]
    """Operations of unknown needs: kernels for GPUs, FFTs, decompositions; large sorts, slices with strides and
    interior padding, such as `jax.lax.associative_scan` uses."""


def peak_memory(module: ShardedModule) -> PeakMemory:
    """Estimate the peak of intermediate results on one device."""
    main = module.functions["main"]
    attributes = main.attributes["arg_attrs"] if "arg_attrs" in main.attributes else ()  # noqa: SIM401
    arguments = zip(main.regions[0].blocks[0].arguments, attributes, strict=False)
    donated = [module.nbytes(argument) for argument, given in arguments if any(name in given for name in _DONATED)]
    reader = Reader(module)
    nbytes = _Simulation(reader.main(), donated, is_tpu=module.platform == "tpu").run()
    large = [name for name, size in reader.rearranged.items() if size > _LEAST_REARRANGED * nbytes]
    return PeakMemory(nbytes, tuple(dict.fromkeys((*reader.opaque, *large))))


def _joined_to_products(block: Block) -> frozenset[Value]:
    """Return elementwise results that XLA for TPUs computes in a product, and stores in place of its result."""
    last, joined = set[Value](), set[Value]()
    for operation in block.operations:
        if operation.name in program.PRODUCTS:
            last.add(operation.results[0])
        if operation.name not in program.VIEWS | program.FUSED - program.RESIZED:
            continue
        before = [operand for operand in operation.operands if operand in last and operand.readers == [operation]]
        if before:
            last.difference_update(before)
            last.add(operation.results[0])
            joined.add(operation.results[0])
    return frozenset(last & joined)


class _Simulation:
    """The allocations of a block."""

    def __init__(self, block: Block, donated: Sequence[int] | None = None, *, is_tpu: bool) -> None:
        """Take the sizes of donated arguments, for `main`."""
        self._block, self._is_tpu = block, is_tpu
        self._donated = None if donated is None else collections.Counter(donated)
        self._index = {operation: index for index, operation in enumerate(block.operations)}
        self._sinks: dict[Value, set[Operation]] = {}
        self._is_kept: dict[Value, bool] = {}
        self._known_inside: dict[Operation, int] = {}
        self._joined = _joined_to_products(block) if self._is_tpu else frozenset[Value]()
        for operation in reversed(block.operations):
            for result in operation.results:
                self._decide(operation, result)

    def _decide(self, operation: Operation, result: Value) -> None:
        """Find the operations that finally read a value, and whether it is allocated."""
        readers = result.readers
        sinks: set[Operation] = set()
        for reader in readers:
            computed = reader.results_of(result) if reader in self._index else []
            is_passed = reader.name in program.FUSED | program.VIEWS
            if not is_passed or not computed or any(self._is_kept[each] for each in computed):
                sinks.add(reader)
            else:
                sinks.update(*(self._sinks[each] for each in computed))
        self._sinks[result] = sinks
        if operation.name in program.CONSTANTS or operation.name in program.VIEWS:
            self._is_kept[result] = False
        elif operation.name in program.FUSED:
            is_needed = result in self._joined or any(self._needs_memory(reader, result) for reader in readers)
            self._is_kept[result] = is_needed or (len(sinks) > 1 and self._is_costly(operation, sinks))
        else:
            self._is_kept[result] = True

    def _is_costly(self, operation: Operation, sinks: set[Operation]) -> bool:
        """Whether a result of several readers is computed once."""
        if self._is_tpu:  # it computes costly values again, too, unless a loop stores them
            is_stored = any(sink.name == "stablehlo.dynamic_update_slice" for sink in sinks)
            return is_stored and operation.name in program.COSTLY
        if operation.name == "stablehlo.broadcast_in_dim":
            return operation.operands[0].nbytes >= _ROW and len(operation.results[0].readers) > 1
        is_reduced = operation.name not in program.RESIZED and any(sink.name == "stablehlo.reduce" for sink in sinks)
        return is_reduced or operation.name in program.COSTLY

    def _needs_memory(self, reader: Operation, value: Value) -> bool:
        if self._is_tpu and reader.name == "stablehlo.optimization_barrier":
            places = [place for place, operand in enumerate(reader.operands) if operand is value]
            return any(reader.results[place].readers for place in places)
        if reader.name in program.VIEWS and reader in self._index:
            return any(self._needs_memory(each, reader.results[0]) for each in reader.results[0].readers)
        if reader.name.startswith("sdy."):
            return True
        if reader.name == "stablehlo.dynamic_update_slice":
            return value is reader.operands[0]
        return reader.name in program.FROM_MEMORY and not (self._is_tpu and reader.name in program.PRODUCTS)

    def run(self) -> int:
        """Return the peak bytes."""
        self._trace_roots()
        block, last = self._block, self._last
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
        self._reduced = set[Value]()
        for argument in self._block.arguments:
            self._roots[argument] = frozenset([argument])
        for index, operation in enumerate(self._block.operations):
            read = frozenset[Value]().union(*map(self._roots_of, operation.operands))
            if self._is_tpu and operation.name == "stablehlo.reduce" and len(read) == 1:
                self._reduced |= read  # stored by an operation with two results: XLA stores no other one in its place
            for place, result in enumerate(operation.results):
                if not self._is_kept[result] and self._is_cheaper(operation, result):
                    self._is_kept[result] = True
                self._roots[result] = self._roots_made(operation, place, result, read)
            if not operation.results or any(self._roots[result] != read or not read for result in operation.results):
                self._last |= dict.fromkeys(read, index)

    def _is_cheaper(self, operation: Operation, result: Value) -> bool:
        """Whether an array of several readers is kept: computing it again needs more memory, or on TPUs more reads."""
        readers = self._sinks[result]
        if operation.name not in program.FUSED or len(readers) < 2:
            return False
        roots = frozenset[Value]().union(*map(self._roots_of, operation.operands))
        large = [root for root in roots if root.nbytes >= result.nbytes]
        if self._is_tpu and len(large) * len(readers) > len(large) + len(readers) and not self._is_passed_on(result):
            return True
        large = [root for root in large if root not in self._block.arguments]
        end = self._end_of(result, None) if len(large) > 1 else 0
        return sum(self._end_of(root, result) < end for root in large) > 1

    def _is_passed_on(self, value: Value) -> bool:
        """Whether one result of it, which is computed where it is needed, has the same readers at the end."""
        computed = (result for reader in value.readers for result in reader.results_of(value))
        return any(self._sinks.get(each) == self._sinks[value] for each in computed if not self._is_kept.get(each))

    def _end_of(self, value: Value, without: Value | None) -> int:
        """Return where a value is read last, except through the value `without`; at the end, if that takes long."""
        seen, waiting, end = {without, value}, [value], -1
        while waiting:
            for reader in waiting.pop().readers:
                is_passed_on = reader in self._index and not any(self._is_kept[result] for result in reader.results)
                if not is_passed_on or not reader.results:
                    end = max(end, self._index.get(reader, len(self._index)))
                    continue
                waiting += [result for result in reader.results if result not in seen]
                seen.update(reader.results)
            if len(seen) > _MOST_PASSED:
                return len(self._index)
        return end

    def _roots_made(self, operation: Operation, place: int, result: Value, read: frozenset[Value]) -> frozenset[Value]:
        if operation.name in program.CONSTANTS:
            return frozenset()
        if operation.name in program.VIEWS:
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
        elif operation.name in program.FUSED or (self._is_tpu and operation.name == "sdy.all_reduce"):
            operands = operation.operands
        else:
            return
        for operand in operands:
            roots = self._roots_of(operand) - self._reduced
            yield from (root for root in roots if self._last.get(root, -1) <= index)

    def _is_in_place(
        self, operation: Operation, result: Value, index: int, carried: dict[Value, Value], returned: set[Value]
    ) -> bool:
        """Whether a result takes the place of an argument of the block."""
        if self._donated is not None:
            target = _scattered_into(operation)
            scatters = target in self._block.arguments and self._last.get(target, -1) <= index
            is_written = operation.name in program.FUSED or scatters
            if result not in returned or not is_written or not self._donated[result.nbytes]:
                return False
            self._donated[result.nbytes] -= 1
            return True
        argument = carried.get(result)
        return argument is not None and self._last.get(argument, -1) <= index

    def _inside(self, operation: Operation) -> int:
        """Return the bytes that are live only while an operation runs."""
        if operation not in self._known_inside:
            peaks = (_Simulation(block, is_tpu=self._is_tpu).run() for block in operation.blocks)
            self._known_inside[operation] = max(peaks, default=0)
        return self._known_inside[operation]


def _scattered_into(operation: Operation) -> Value | None:
    """Return the operand of which a scatter, alone or at the end of a `shard_map`, replaces parts."""
    inner = operation.blocks[0].operations[-2:][0] if operation.name == "sdy.manual_computation" else operation
    arguments = operation.blocks[0].arguments if operation.blocks else operation.operands
    if inner.name != "stablehlo.scatter" or inner.operands[0] not in arguments:
        return None
    return operation.operands[arguments.index(inner.operands[0])]
