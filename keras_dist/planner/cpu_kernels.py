"""The kernels that XLA for CPUs computes a block in, in the order of its schedule.

XLA puts reductions, and elementwise operations around them, into kernels of a library (YNNPACK). Then it fuses cheap
operations into each reader, last ones first, unless this reads more. It joins independent all-reduces of equal groups.

Source: `LibraryRewriter`, `InstructionFusion`, `CpuInstructionFusion`, `AllReduceCombiner` and `BFScheduler` of XLA.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
from collections.abc import Iterable

from keras_dist.planner import memory_program as program
from keras_dist.planner.memory_program import Block, Operation, Value, named

_IN_LIBRARY = named(
    "abs add broadcast_in_dim ceil cosine divide dot_general exponential exponential_minus_one floor log log_plus_one "
    "maximum minimum multiply negate power reduce reshape rsqrt sign sine sqrt subtract tanh"
)
"""Operations that the library computes together with a reduction."""
_LEAST_IN_LIBRARY = 4096
"""Elements of an array from which the library is used."""
_MOST_PASSED = 200
"""Operations between two others that are searched for paths without fusion."""
_WITHOUT_OPERANDS = named("broadcast_in_dim iota")
_FUSIBLE = program.FUSED | program.VIEWS | named("dynamic_update_slice gather iota") | {"copy"}
_EXPENSIVE = program.COSTLY | named("gather")


def kernels(block: Block) -> Block:
    """Return a block with an operation for each kernel of a block."""
    made = scheduled(_Fusion(block).kernels())
    for axes in dict.fromkeys(each.axes for each in made if each.axes):
        made = scheduled(_joined(made, axes))
    return Block(block.arguments, made)


def scheduled(operations: list[Operation]) -> list[Operation]:
    """Sort operations: first in, first out, of those whose operands are computed. The last one stays the last."""
    maker = {result: operation for operation in operations for result in operation.results}
    readers: dict[Operation, list[Operation]] = collections.defaultdict(list)
    waiting: dict[Operation, int] = {}
    for operation in operations:
        needed = {maker[operand] for operand in operation.operands if operand in maker}
        waiting[operation] = len(needed)
        for each in needed:
            readers[each].append(operation)
    ready = [operation for operation in operations[:-1] if not waiting[operation]]
    for operation in ready:  # which grows
        for reader in readers[operation]:
            waiting[reader] -= 1
            ready += [reader] if not waiting[reader] and reader is not operations[-1] else []
    return [*ready, operations[-1]]


def _joined(operations: list[Operation], axes: str) -> list[Operation]:
    """Join the reductions over axes of devices that do not depend on each other."""
    level: dict[Value, int] = {}
    joined: dict[tuple[int, bool], Operation] = {}
    for operation in operations:
        depth = max((level.get(operand, 0) for operand in operation.operands), default=0)
        if operation.axes == axes:
            new = joined.setdefault((depth, operation.results[0].is_float32), Operation("all_reduce", [], []))
            new.operands += operation.operands
            new.results += operation.results
        level |= dict.fromkeys(operation.results, depth + (operation.axes == axes))
    return [*joined.values(), *(each for each in operations if each.axes != axes)]


@dataclasses.dataclass(eq=False)
class _Kernel:
    """Operations in a kernel; the root makes its results."""

    root: Operation
    parts: list[Operation]
    is_library: bool = False


class _Fusion:
    """The fusion of the operations of a block."""

    def __init__(self, block: Block) -> None:
        used, self._operations = set[Value](), list[Operation]()
        for operation in reversed(block.operations):
            if not operation.results or not used.isdisjoint(operation.results):
                self._operations.append(operation)
                used.update(operation.operands)
        self._operations.reverse()
        self._place = {each: place for place, each in enumerate(self._operations)}
        self._maker = {result: each for each in self._operations for result in each.results}
        self._kernel_of = {each: _Kernel(each, [each]) for each in self._operations}
        self._find_readers()
        for operation in reversed(self._operations):
            if operation.name == "stablehlo.reduce" and not self._kernel_of[operation].is_library:
                self._grow(operation)
        self._find_readers()
        self._kept = set[Operation]()
        self._find_kept()
        for operation in reversed(self._operations):
            kernel = self._kernel_of[operation]
            if kernel.root is operation and (self._readers[operation] or not operation.results):
                self._fuse(kernel)

    def _makers(self, operation: Operation) -> Iterable[Operation]:
        return dict.fromkeys(self._maker[operand] for operand in operation.operands if operand in self._maker)

    def _operands(self, kernel: _Kernel) -> list[Operation]:
        """Return the operations whose results a kernel reads, last ones first."""
        found = {made for part in kernel.parts for made in self._makers(part)}.difference(kernel.parts)
        return sorted(found, key=self._place.__getitem__, reverse=True)

    def _find_readers(self) -> None:
        self._readers: dict[Operation, dict[_Kernel, None]] = {each: {} for each in self._operations}
        for kernel in dict.fromkeys(self._kernel_of.values()):
            for made in self._operands(kernel):
                self._readers[made][kernel] = None

    def _grow(self, reduction: Operation) -> None:
        """Add operations around a reduction to its kernel of the library: operands, and readers of the result."""
        if not _is_in_library(reduction):
            return
        kernel = self._kernel_of[reduction]
        kernel.is_library = True
        waiting = [(reduction, False)]
        for operation, is_reader in waiting:  # which grows
            other = self._kernel_of[operation]
            if other is not kernel:
                is_alone = not is_reader or len(self._readers[kernel.root]) == 1
                if other.is_library or not is_alone or not _is_in_library(operation):
                    continue
                kernel.root = operation if is_reader else kernel.root
                kernel.parts.append(operation)
                self._kernel_of[operation] = kernel
                for made in self._makers(operation):
                    self._readers[made].pop(other, None)
                    self._readers[made][kernel] = None
            waiting += [(made, False) for made in self._makers(operation) if self._readers[made].keys() <= {kernel}]
            readers = [each.root for each in self._readers[kernel.root] if each is not kernel]
            waiting += [(readers[0], True)] if operation is kernel.root and len(readers) == 1 else []

    def _find_kept(self) -> None:
        """Find operations that read more than they make, and are not fused into all of their readers."""
        candidates = [operation for operation in self._operations if self._reads_more(operation)]
        bits = {operation: 1 << place for place, operation in enumerate(candidates)}
        self._before: dict[Operation, int] = {}  # the candidates from which an operation is computed, or itself
        for operation in self._operations:
            self._before[operation] = bits.get(operation, 0)
            for made in self._makers(operation):
                self._before[operation] |= self._before[made]
        for operation in reversed(candidates):
            readers = [kernel.root for kernel in self._readers[operation]]
            if not all(self._is_fused(operation, reader, bits[operation]) for reader in readers):
                self._kept.add(operation)

    def _reads_more(self, operation: Operation) -> bool:
        read = (each for each in {*operation.operands} if each.elements >= operation.results[0].elements > 1)
        makers = [self._maker.get(each) for each in read] if operation.name in _FUSIBLE else []
        return sum(made is None or made.name not in _WITHOUT_OPERANDS for made in makers) > 1

    def _is_fused(self, producer: Operation, reader: Operation, bit: int) -> bool:
        """Whether an operation is fused into a reader on all paths."""
        waiting = {reader: None}
        while waiting and len(waiting) <= _MOST_PASSED:
            kernel = self._kernel_of[waiting.popitem()[0]]
            between = [made for made in self._operands(kernel) if self._before[made] & bit]
            if not all(self._may_fuse(kernel, made) for made in between):
                return False
            waiting |= {made: None for made in between if made is not producer}
        return not waiting

    def _may_fuse(self, kernel: _Kernel, producer: Operation) -> bool:
        names = kernel.root.name, producer.name
        if kernel.is_library or self._kernel_of[producer].is_library or not _FUSIBLE.issuperset(names):
            return False
        if producer in self._kept or producer.name == "stablehlo.dynamic_update_slice":
            return False
        is_once = len(self._readers[producer]) == 1
        is_elementwise = producer.results[0].elements == kernel.root.results[0].elements
        return producer.name not in _EXPENSIVE or (is_once and is_elementwise)

    def _fuse(self, kernel: _Kernel) -> None:
        """Fuse operands, last ones first; they stay kernels for other readers."""
        found = {-self._place[made] for made in self._makers(kernel.root)}
        waiting = sorted(found)
        while waiting:
            made = self._operations[-heapq.heappop(waiting)]
            if not self._may_fuse(kernel, made):
                continue
            kernel.parts.append(made)
            del self._readers[made][kernel]
            for before in self._makers(made):
                self._readers[before][kernel] = None
                if not self._readers[made]:
                    self._readers[before].pop(self._kernel_of[made], None)
                if -self._place[before] not in found:
                    found.add(-self._place[before])
                    heapq.heappush(waiting, -self._place[before])

    def kernels(self) -> list[Operation]:
        """Return an operation for each kernel."""
        found = dict.fromkeys(self._kernel_of.values())
        needed = [each for each in found if self._readers[each.root] or not each.root.results]
        return [self._made(each) for each in sorted(needed, key=lambda each: self._place[each.root])]

    def _made(self, kernel: _Kernel) -> Operation:
        root, name = kernel.root, "kernel" if kernel.is_library else kernel.root.name
        results = {result for part in kernel.parts for result in part.results}
        operands = [each for part in kernel.parts for each in part.operands if each not in results]
        if name in program.VIEWS and not all(part.name in program.VIEWS for part in kernel.parts):
            name = "kernel"
        return dataclasses.replace(root, name=name, operands=operands)


def _is_in_library(operation: Operation) -> bool:
    values = *operation.operands, *operation.results
    is_view = operation.name in named("broadcast_in_dim reshape")
    is_large = is_view or max(each.elements for each in values) >= _LEAST_IN_LIBRARY
    return operation.name in _IN_LIBRARY and is_large and all(each.is_float32 for each in values)
