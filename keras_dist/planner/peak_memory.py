"""The memory of intermediate results of a step on one device, from its propagated program.

XLA allocates what it does not fuse: products, convolutions, lookups, reductions, collectives, the state of loops. A
chain of elementwise operations is computed where it is needed, so its inputs are live until its last reader.
`storage.STORAGE` says how many bytes a backend stores for an array; where this depends on what XLA chooses, there are
two figures. `verdict` has the margins around them.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator

from keras_dist.planner import memory_program as program
from keras_dist.planner.memory_program import Block, Operation, Reader, Value
from keras_dist.planner.sharded_module import ShardedModule
from keras_dist.planner.storage import Storage

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the operations of MLIR have no types


_DONATED = ("tf.aliasing_output", "jax.buffer_donor")
_LEAST_REARRANGED = 1 / 16
"""The part of the peak from which sorted arrays, and parts of arrays at steps, are of unknown memory."""
_MOST_READ = 2
"""Most arrays of its size that an elementwise result is computed from again for each reader."""
_COSTLY = program.named(
    "atan2 cbrt cosine divide exponential exponential_minus_one log log_plus_one logistic power remainder rsqrt sine "
    "sqrt tan tanh"
) | program.named("acos acosh asin asinh atanh cosh digamma erf erf_inv erfc lgamma sinh tan", "chlo")
"""Elementwise operations that XLA for CPUs and GPUs computes once for several readers."""


@dataclasses.dataclass(frozen=True)
class PeakMemory:
    """Memory of a step on one device, beside the bytes of its arguments [bytes].

    Attributes:
        nbytes: estimate of the peak of intermediate results, in arrays with the least padding.
        most_nbytes: the same where XLA stores more for an array: other tiles, a wider element type.
        padding_nbytes: bytes that the backend stores for arguments, and results beside them, in addition to theirs.
        operations: number of operations.
        opaque: operations of unknown needs, which are not in these figures: kernels for GPUs, FFTs, decompositions;
            large sorts, slices with strides and interior padding, such as `jax.lax.associative_scan` uses.
    """

    nbytes: int = 0
    most_nbytes: int = 0
    padding_nbytes: int = 0
    operations: int = 0
    opaque: tuple[str, ...] = ()


def peak_memory(module: ShardedModule) -> PeakMemory:
    """Estimate the memory of a step on one device."""
    main, reader = module.functions["main"], Reader(module)
    given = main.attributes["arg_attrs"] if "arg_attrs" in main.attributes else ()  # noqa: SIM401  # they have no `get`
    arguments = list(zip(main.regions[0].blocks[0].arguments, reader.main.arguments, given, strict=False))
    donated = [stored for _, stored, of in arguments if any(name in of for name in _DONATED)]
    on_device = [each for each in arguments if program.ON_HOST not in str(each[2])]
    padding = sum(stored.nbytes - module.nbytes(value) for value, stored, _ in on_device)
    simulation = _Simulation(reader.main, donated, reader.storage)
    nbytes, most = simulation.peak("nbytes"), simulation.peak("most_nbytes")
    large = [name for name, size in reader.rearranged.items() if size > _LEAST_REARRANGED * nbytes]
    return PeakMemory(nbytes, most, padding, reader.count, tuple(dict.fromkeys((*reader.opaque, *large))))


class _Simulation:
    """The allocations of a block."""

    def __init__(self, block: Block, donated: list[Value] | None, storage: Storage) -> None:
        """Take the donated arguments, for `main`."""
        self._block, self._donated, self._storage = block, donated, storage
        self._index = {operation: index for index, operation in enumerate(block.operations)}
        self._inside = {
            operation: [_Simulation(inner, None, storage) for inner in operation.blocks]
            for operation in block.operations
            if operation.blocks
        }
        self._trace_roots()

    def _is_allocated(self, operation: Operation, result: Value, read: frozenset[Value]) -> bool:
        """Whether a result that reads these arrays is allocated."""
        if not operation.is_fused:
            return operation.name not in program.CONSTANTS | program.VIEWS
        computes_once = operation.name in _COSTLY and len(result.readers) > 1
        is_kept = computes_once and not self._storage.fuses_into_products
        is_kept = is_kept or sum(root.nbytes >= result.nbytes for root in read) > _MOST_READ
        return is_kept or any(self._needs_memory(reader, result) for reader in result.readers)

    def _needs_memory(self, reader: Operation, value: Value) -> bool:
        if reader.name == "stablehlo.optimization_barrier" and self._storage.fuses_into_products:
            return any(result.readers for result in reader.results_of(value))
        if reader.name in program.VIEWS and reader in self._index:
            return any(
                self._needs_memory(each, result) for result in reader.results_of(value) for each in result.readers
            )
        if reader.name == "stablehlo.dynamic_update_slice":
            return value is reader.operands[0]
        if reader.name in program.PRODUCTS:
            return not self._storage.fuses_into_products
        return reader.name in program.FROM_MEMORY or reader.name == "return" or reader.name.startswith("sdy.")

    def _trace_roots(self) -> None:
        """Find the arrays that each value is computed from, and where each array is read last."""
        self._roots = {argument: frozenset([argument]) for argument in self._block.arguments}
        self._last: dict[Value, int] = {}
        for index, operation in enumerate(self._block.operations):
            read = frozenset[Value]().union(*map(self._roots_of, operation.operands))
            for place, result in enumerate(operation.results):
                self._roots[result] = self._roots_made(operation, place, result, read)
            if not operation.results or any(self._roots[result] != read or not read for result in operation.results):
                self._last |= dict.fromkeys(read, index)
        self._returned = {root for value in self._block.returned for root in self._roots_of(value)}
        self._last |= dict.fromkeys(self._returned, len(self._block.operations))

    def _roots_made(self, operation: Operation, place: int, result: Value, read: frozenset[Value]) -> frozenset[Value]:
        if operation.name in program.CONSTANTS:
            return frozenset()
        if operation.name in program.VIEWS:
            return self._roots_of(operation.operands[place])
        if not self._is_allocated(operation, result, read):
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

    def peak(self, figure: str) -> int:
        """Return the peak, with this figure of each value."""
        live = peak = 0
        sizes: dict[Value, int] = {}  # of what is allocated
        dying: dict[int, list[Value]] = collections.defaultdict(list)
        donated = collections.Counter(getattr(value, figure) for value in self._donated or ())
        is_early = self._storage.fills_early and figure == "most_nbytes"
        filled = [*self._filled()] if is_early else []
        for index, operation in [(-1, Operation("", [], filled)), *enumerate(self._block.operations)]:
            inside = max((each.peak(figure) for each in self._inside.get(operation, ())), default=0)
            for place, result in enumerate(operation.results):
                if self._roots.get(result) != frozenset([result]) or result in sizes:
                    continue  # it is part of another array
                nbytes = getattr(result, figure)
                if self._is_in_place(operation, result, index, donated[nbytes]):
                    donated[nbytes] -= 1
                    continue
                for root in self._replaced(operation, place):
                    if self._last.get(root, -1) <= index and sizes.get(root) == nbytes:
                        live -= sizes.pop(root)
                        break
                sizes[result] = nbytes
                dying[max(self._last.get(result, index), index)].append(result)
                live += nbytes
            peak = max(peak, live + inside)
            live -= sum(sizes.pop(value, 0) for value in dying.pop(index, ()))
        combined = self._combined() if self._storage.combines_sums else ()
        return max(peak, 2 * sum(getattr(value, figure) for value in combined))  # operands and results

    def _combined(self) -> set[Value]:
        """Return the results of all-reduces that are only added."""
        reduced, sums = set[Value](), set[Value]()
        for operation in self._block.operations:
            if operation.name == "sdy.all_reduce":
                reduced.update(operation.results)
            elif operation.name == "stablehlo.add" and all(len(operand.readers) == 1 for operand in operation.operands):
                read = [self._roots_of(operand) for operand in operation.operands]
                if all(roots and roots <= reduced | sums for roots in read):
                    sums.update(*read, operation.results)
        return reduced & sums

    def _filled(self) -> Iterator[Value]:
        """Yield the results of loops that are constants before."""
        constants = set[Value]()
        for operation in self._block.operations:
            if operation.is_fused and not any(self._roots_of(operand) - constants for operand in operation.operands):
                constants.update(operation.results)
            elif operation.name == "stablehlo.while":
                pairs = zip(operation.operands, operation.results, strict=False)
                yield from (result for operand, result in pairs if not self._roots_of(operand) - constants)

    def _replaced(self, operation: Operation, place: int) -> Iterator[Value]:
        """Yield the arrays whose memory a result may take, once they are read for the last time."""
        in_place = operation.name in ("stablehlo.while", "stablehlo.scatter")
        for operand in operation.operands[place : place + 1] if in_place else operation.operands:
            if in_place or operation.is_fused or operation.name == "sdy.all_reduce":
                yield from self._roots_of(operand)

    def _is_in_place(self, operation: Operation, result: Value, index: int, donated: int) -> bool:
        """Whether a result takes the place of an argument of the block."""
        is_scattered = operation.name == "stablehlo.scatter"
        if self._donated is not None:
            is_written = operation.is_fused or is_scattered or operation.name == "sdy.manual_computation"
            return result in self._returned and donated > 0 and is_written
        if is_scattered and operation.operands[0] in self._block.arguments:
            return self._last.get(operation.operands[0], -1) <= index
        carried = zip(self._block.returned, self._block.arguments, strict=False)
        argument = next((argument for returned, argument in carried if returned is result), None)
        return argument is not None and self._last.get(argument, -1) <= index
