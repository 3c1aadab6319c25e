"""Executions: one step on a batch, several steps on a stack of batches, or several steps on resident rows.

An execution runs as many steps as take a tenth of a second, unless a callback reads single batches: dispatch costs
nothing then, and Ctrl-C does not wait. Where `fit` determines the number of steps, it is an operand of a loop, so that
one program serves any number. XLA on GPUs asks the host after each turn, about 10 us; a fixed `steps_per_execution`
avoids that.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist.data.arrays import ArraySource
from keras_dist.data.batch import Batch
from keras_dist.data.batching import Batching, Streaming, pass_key
from keras_dist.data.conversion import describe
from keras_dist.data.cursor import Cursor
from keras_dist.data.global_arrays import global_portion
from keras_dist.data.source import RowNumbers, RowSource
from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.placement import put
from keras_dist.distribution.process_rows import HostSlice
from keras_dist.distribution.strategy import Distribution
from keras_dist.jobs import job
from keras_dist.jobs.same_rows import SameRows, Take
from keras_dist.training.activations import input_layout, input_names
from keras_dist.training.throughput import StepsTuner

Body = Callable[[Any, Any], Any]  # one step: `body(carry, (x, y, sample_weight)) -> carry`

RESIDENT_BYTES = 2**26
"""Largest dataset [bytes] kept resident when the backend reports no memory statistics: CPU devices share one copy."""

RESIDENT_PART = 8  # a resident dataset may take this part of the free memory that the backend reports
EARNED_BYTES = 2**18  # each step on a resident dataset saves the time that the transfer of so many bytes takes

CACHE_LINE = 64

STACK_BYTES = 2**22
MAX_STACK = 32
MANY_BATCHES = 4096
"""Batches are stacked if their dispatch costs more than their copy, and there are enough to pay for a compilation."""


@dataclasses.dataclass(frozen=True, eq=False)
class Execution:
    """The steps of one dispatch: one on a batch, one on each batch of a stack, or several on resident rows."""

    kind: str  # of its program
    form: Hashable  # distinguishes the programs of one kind
    rows: int  # real rows of each step
    steps: int
    operands: Any  # the arrays that the program takes
    shardings: Callable[[Distribution], Any]  # of the operands
    run: Callable[[Body, Any, Any, Distribution], Any]  # takes the steps (traced), from body, carry and operands
    describe: Callable[[], str]  # returns a description of the batch of a step, for errors


def execution_of(batch: Batch) -> Execution:
    """Return one step on a batch from the host, or one step on each batch of a stack."""
    kind, run = ("single", _run_once) if batch.stacked is None else ("stacked", _run_stack)
    shardings = functools.partial(_shardings_of, batch)
    form, steps = (batch.rows, batch.form), batch.stacked or 1
    return Execution(kind, form, batch.rows, steps, batch.arrays, shardings, run, batch.describe)


def _shardings_of(batch: Batch, distribution: Distribution) -> Any:
    """Return the shardings of a batch; the dim of a stack is replicated."""
    if batch.stacked is None:
        return _shardings(data_layouts(batch.arrays, distribution))
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batch.arrays)
    return _shardings(data_layouts(one, distribution), stacked=True)


def _run_once(body: Body, carry: Any, operands: Any, distribution: Distribution) -> Any:
    return body(carry, operands)


def _run_stack(body: Body, carry: Any, operands: Any, distribution: Distribution) -> Any:
    return jax.lax.scan(lambda carry, arrays: (body(carry, arrays), None), carry, operands)[0]


def _run_resident(
    steps: int | None,
    shapes: tuple[tuple[int, ...], ...],
    body: Body,
    carry: Any,
    operands: Any,
    distribution: Distribution,
) -> Any:
    """Take the steps on resident rows; for None as many as the operands specify."""
    data, numbers, span = operands
    leaves, tree = jax.tree.flatten(data)

    def step(carry: Any, index: Any) -> Any:
        rows = numbers[index]
        taken = [leaf.at[rows].get(mode="promise_in_bounds") for leaf in leaves]
        batch = tree.unflatten([part.reshape(len(part), *shape) for part, shape in zip(taken, shapes, strict=True)])
        shardings = _shardings(data_layouts(batch, distribution))
        return body(carry, jax.tree.map(jax.lax.with_sharding_constraint, batch, shardings))

    if steps is None:
        return jax.lax.fori_loop(span[0], span[1], lambda index, carry: step(carry, index), carry)
    return jax.lax.scan(lambda carry, index: (step(carry, index), None), carry, span[0] + jnp.arange(steps))[0]


class StreamFeed:
    """Batches from the host, padded to `multiple_of` rows, stacked for one execution, and put on devices ahead of use.

    `share` are the rows that this process gathers, None with one process; `same` compares processes.
    """

    def __init__(
        self,
        examples: Batching | Streaming,
        multiple_of: int,
        distribution: Distribution,
        stack: int = 1,
        ahead: int = 0,
        share: HostSlice | None = None,
        same: SameRows | None = None,
    ) -> None:
        if share is not None and same is not None:
            share = dataclasses.replace(share, see=functools.partial(_compared, same.compare_batch))
        self._examples, self._multiple_of, self._stack = examples, multiple_of, stack
        self._distribution, self._ahead, self._share, self._same = distribution, ahead, share, same
        self.tuner = None

    def epochs(
        self, numbers: range, shuffle_key: tuple[int, ...] | None = None, start: Cursor | None = None
    ) -> Iterator[tuple[int, Iterable[Execution]]]:
        """Yield the executions of each epoch, to be consumed before the next epoch; see `Batching.epochs`."""
        for epoch, batches in self._examples.epochs(
            numbers, self._multiple_of, shuffle_key, self._stack, start, self._share
        ):
            yield epoch, self._executions(batches)

    def expected(self) -> list[Execution]:
        """Return one execution for each program of an epoch, if they are cheap to make."""
        examples = self._examples
        if self._share is not None:
            return []
        if isinstance(examples, Streaming) or not isinstance(examples.source, ArraySource):
            return []
        source, stack, sizes = examples.source, self._stack, (examples.batch_size, self._multiple_of)
        stop = min(examples.steps_of_epoch, examples.batches)
        full = min(stop, source.length // examples.batch_size)
        # stacks, then the remaining full batches, then a partial batch
        spans = [
            range(first, min(first + stack, stop)) for first in sorted({0, full - full % stack, full}) if first < stop
        ]
        return [self._execution(next(source.batches(*sizes, stack=stack, span=span))) for span in spans]

    def _executions(self, batches: Iterator[Batch]) -> Iterator[Execution]:
        waiting: collections.deque[Execution] = collections.deque()
        source = self._examples.source
        if self._same is not None and isinstance(source, RowSource):
            self._same.compare(source.length, lambda rows: jax.tree.leaves(source.gather(rows, len(rows)).arrays))
        try:
            for execution in map(self._execution, batches):
                waiting.append(execution)
                del execution  # the consumer decides how long it stays in memory
                if len(waiting) > self._ahead:
                    yield waiting.popleft()
            yield from waiting
        finally:
            if self._same is not None:
                self._same.end_epoch()

    def _execution(self, batch: Batch) -> Execution:
        is_put = not self._ahead and is_put_by_dispatch(batch)
        return execution_of(batch if is_put else placed(batch, self._distribution))


class ResidentFeed:
    """Batches of a dataset that is replicated once; its arrays must not change meanwhile."""

    def __init__(self, examples: Batching, multiple_of: int, distribution: Distribution, tuner: StepsTuner) -> None:
        mesh, source = distribution.device_mesh, cast(ArraySource, examples.source)
        self._examples, self._source, self._distribution = examples, source, distribution
        self._sizes = examples.batch_size, multiple_of
        self.tuner = tuner
        self._data = jax.tree.map(
            lambda leaf: jax.device_put(leaf, TensorLayout.replicated(leaf.ndim, mesh).backend_layout),
            _flat_copy(source),
        )
        self._shapes = tuple(leaf.shape[1:] for leaf in jax.tree.leaves(source.arrays))

    def epochs(
        self, numbers: range, shuffle_key: tuple[int, ...] | None = None, start: Cursor | None = None
    ) -> Iterator[tuple[int, Iterable[Execution]]]:
        """Yield the executions of each epoch; see `Batching.epochs`."""
        for epoch, span in self._examples.spans_from(numbers, start):
            yield epoch, self._executions(pass_key(shuffle_key, span.began), span.batches)

    def expected(self) -> list[Execution]:
        """Return one execution for each program of an epoch."""
        span = range(min(self._examples.steps_of_epoch, self._examples.batches))
        found = {(execution.kind, execution.form): execution for execution in self._executions(None, span)}
        return list(found.values())

    def _executions(self, shuffle_key: tuple[int, ...] | None, span: range) -> Iterator[Execution]:
        # the numbers of all batches are on the devices, so that one program serves every span
        for rows in self._source.row_numbers(*self._sizes, shuffle_key, span):
            numbers = self._placed(rows)
            start = rows.wanted.start
            while start < rows.wanted.stop:
                steps = self.tuner.steps(left=rows.wanted.stop - start)
                yield self._execution(rows, numbers, range(start, start + steps))
                start += steps

    def _execution(self, rows: RowNumbers, numbers: jax.Array, batches: range) -> Execution:
        """Return the steps on these batches; unless their number is fixed, it is an operand of one program for all."""
        steps, is_fixed = len(batches), self.tuner.is_fixed
        form = rows.real, numbers.shape, self._source.form, self._source.length
        operands = self._data, numbers, np.array([batches.start, batches.stop], np.int32)
        run = functools.partial(_run_resident, steps if is_fixed else None, self._shapes)

        def shardings(distribution: Distribution) -> Any:
            span = TensorLayout.replicated(1, distribution.device_mesh).backend_layout
            return jax.tree.map(lambda leaf: leaf.sharding, self._data), numbers.sharding, span

        def describe() -> str:
            leaves, tree = jax.tree.flatten(self._data)
            pairs = zip(leaves, self._shapes, strict=True)
            like = [jax.ShapeDtypeStruct((rows.real, *shape), leaf.dtype) for leaf, shape in pairs]
            return Batch(tree.unflatten(like), rows.real, name=self._source.name).describe()

        kind = f"resident {steps}" if is_fixed else "resident"
        return Execution(kind, form, rows.real, steps, operands, shardings, run, describe)

    def _placed(self, rows: RowNumbers) -> jax.Array:
        padded = rows.padded.astype(np.int32)
        layout = self._distribution.get_data_layout(padded.shape[1:])
        return jax.device_put(padded, _stacked(layout).backend_layout)


def _flat_copy(source: ArraySource) -> Any:
    """Copy all rows and flatten each: XLA on CPUs gathers flat rows in half the time."""

    def empty(leaf: Any) -> np.ndarray:
        shape = leaf.shape if leaf.ndim <= 2 else (len(leaf), math.prod(leaf.shape[1:]))
        dtype = _device_dtype(leaf)
        size = math.prod(shape) * dtype.itemsize
        memory = np.empty(size + CACHE_LINE, np.uint8)  # XLA on CPUs uses aligned memory without another copy
        first = -memory.ctypes.data % CACHE_LINE
        return memory[first : first + size].view(dtype).reshape(shape)

    copies, tree = jax.tree.flatten(jax.tree.map(empty, source.arrays))
    step = max(1, EARNED_BYTES * source.length // max(1, sum(copy.nbytes for copy in copies)))
    for start in range(0, source.length, step):  # each gather stays in the processor's cache
        numbers = np.arange(start, min(start + step, source.length))
        for copy, rows in zip(copies, jax.tree.leaves(source.gather(numbers, len(numbers)).arrays), strict=True):
            copy[numbers[0] : numbers[-1] + 1] = rows.reshape(len(rows), *copy.shape[1:])
    return tree.unflatten(copies)


def is_put_by_dispatch(batch: Batch) -> bool:
    """Whether the program itself transfers the batch; in a job JAX does not split host arrays."""
    return batch.portion is None and job.process_count() == 1


def placed(batch: Batch, distribution: Distribution) -> Batch:
    """Return a batch, or a stack of batches, with its arrays on the devices, in a job as global arrays."""
    shardings = _shardings_of(batch, distribution)
    if batch.portion is None:
        arrays = put(batch.arrays, shardings)
    else:
        whole = functools.partial(global_portion, portion=batch.portion, dim=0 if batch.stacked is None else 1)
        arrays = jax.tree.map(whole, batch.arrays, shardings)
    return dataclasses.replace(batch, arrays=arrays, portion=None)


def compare_call(same: SameRows, source: ArraySource) -> None:
    """Compare the batch of a call in all processes."""
    _compared(same.compare_call, source.arrays)


def _compared(compare: Callable[[int, Take, str], None], arrays: Any) -> None:
    leaves = jax.tree.leaves(arrays)
    compare(len(leaves[0]), lambda rows: [leaf.take(rows, axis=0) for leaf in leaves], describe(arrays))


def fits_on_devices(source: RowSource, distribution: Distribution) -> bool:
    """Whether the dataset may be kept on the devices: it is in memory, and small."""
    stats = [device.memory_stats() for device in local_devices(distribution)]
    if not isinstance(source, ArraySource) or distribution.device_mesh.is_multi_process or not stats:
        return False
    free = [stat["bytes_limit"] - stat["bytes_in_use"] for stat in stats if stat]
    limit = min(free) // RESIDENT_PART if free else RESIDENT_BYTES
    return _device_bytes(source) <= limit


def local_devices(distribution: Distribution) -> list[Any]:
    """Return the devices of this process in the mesh."""
    return distribution.device_mesh.backend_mesh.local_devices


def earns_residence(source: RowSource, steps: int) -> bool:
    """Whether this many steps on a resident dataset save more time than its transfer takes."""
    return isinstance(source, ArraySource) and _device_bytes(source) <= EARNED_BYTES * steps


def _device_bytes(source: ArraySource) -> int:
    return sum(leaf.size * _device_dtype(leaf).itemsize for leaf in jax.tree.leaves(source.arrays))


def _device_dtype(leaf: Any) -> np.dtype[Any]:
    return jnp.dtype(jax.dtypes.canonicalize_dtype(leaf.dtype))


def stack_of(source: RowSource, batch_size: int, epochs: int) -> int:
    """Return the number of streamed batches in a stack."""
    if not isinstance(source, ArraySource) or source.length * epochs < MANY_BATCHES * batch_size:
        return 1
    row_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(source.arrays)) / source.length
    return int(min(MAX_STACK, max(1, STACK_BYTES // max(1, row_bytes * batch_size))))


def data_layouts(arrays: tuple[Any, Any, Any], distribution: Distribution) -> Any:
    """Return the layouts of `(x, y, sample_weight)`: inputs by their rules, others with rows over the batch axis."""
    x, *others = arrays
    leaves, treedef = jax.tree.flatten(x)
    inputs = [input_layout(name, leaf.shape, distribution) for name, leaf in zip(input_names(x), leaves, strict=True)]
    rest = jax.tree.map(lambda leaf: distribution.get_data_layout(leaf.shape), others)
    return (treedef.unflatten(inputs), *rest)


def _shardings(layouts: Any, stacked: bool = False) -> Any:
    return jax.tree.map(lambda layout: (_stacked(layout) if stacked else layout).backend_layout, layouts)


def _stacked(layout: TensorLayout) -> TensorLayout:
    return TensorLayout((None, *layout.axes), layout.device_mesh)
