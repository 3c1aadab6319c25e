"""Every row is seen exactly once an epoch: from any source, in batches of any size, on any mesh."""

import functools
import warnings
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
import scipy.sparse

from keras_dist.data.adapters import source_of
from keras_dist.data.batching import Batching, Streaming
from keras_dist.data.streams import StreamSource
from keras_dist.training.executions import ResidentFeed, StreamFeed, execution_of, fits_on_devices
from keras_dist.training.throughput import StepsTuner
from keras_dist.training.uneven_rows import rows_multiple
from tests import layouts
from tests.sources import BATCHED, BY_NUMBER, ONCE

IN_MEMORY = {
    "arrays": lambda arrays: arrays,
    "sparse": lambda arrays: (scipy.sparse.csr_matrix(arrays[0][:, None]), arrays[1]),
}
KINDS = [*IN_MEMORY, *BY_NUMBER, *BATCHED]
MULTIPLES = {"one device": 1, "data=8,model=1": 8, "data=4,model=2": 4, "data=2,model=4": 2}

kinds = st.sampled_from(KINDS)
sizes = st.integers(1, 40)
lengths = st.integers(1, 100)
keys = st.none() | st.integers(0, 99).map(lambda seed: (seed,))


def examples_of(kind: str, rows: int, size: int, steps: int | None = None) -> Batching | Streaming:
    """Rows whose data is their number, from 1; for `y` negative."""
    ids = np.arange(1, rows + 1, dtype="i4")
    arrays = (ids, -ids)
    if kind in BATCHED:
        source = source_of(BATCHED[kind](arrays, size))
        assert isinstance(source, StreamSource)
        return Streaming(source, steps)
    source: Any = source_of(*IN_MEMORY[kind](arrays)) if kind in IN_MEMORY else source_of(BY_NUMBER[kind](arrays))
    return Batching(source, size, steps)


def ids_of(execution: Any, multiple_of: int) -> list[int]:
    """The numbers of its real rows; padding repeats the last one of each batch."""
    found, arrays, rows = [], execution.operands, execution.rows
    if execution.kind == "single":
        arrays = jax.tree.map(lambda leaf: np.asarray(leaf)[None], arrays)
    for x, y in zip(np.asarray(arrays[0]), np.asarray(arrays[1]), strict=True):
        np.testing.assert_array_equal(x.reshape(len(y)), -y)
        assert len(y) % multiple_of == 0 and len(y) - rows < multiple_of
        assert set(y[rows:]) <= {y[rows - 1]}
        found += [int(-number) for number in y[:rows]]
    return found


def seen_by(feed: Any, epochs: range, key: Any, multiple_of: int) -> list[list[int]]:
    """The numbers of the rows that the steps of each epoch see."""
    epochs_seen = []
    for _, executions in feed.epochs(epochs, key):
        seen = []
        for execution in executions:
            if execution.kind.startswith("resident"):
                (_, y, _), numbers, (start, stop) = execution.operands
                numbers = np.asarray(numbers)[start:stop]
                assert numbers.shape[1] % multiple_of == 0
                seen += [int(-number) for number in np.asarray(y)[numbers[:, : execution.rows]].ravel()]
                tell_tuner(feed, execution.steps)
            else:
                seen += ids_of(execution, multiple_of)
        epochs_seen.append(seen)
    return epochs_seen


def tell_tuner(feed: Any, steps: int) -> None:
    feed.tuner.measured(seconds=0.02 * steps, steps=steps)


def assert_once(epochs: list[list[int]], rows: int, in_order: bool) -> None:
    for seen in epochs:
        assert (seen if in_order else sorted(seen)) == list(range(1, rows + 1))


@hypothesis.settings(max_examples=60)
@hypothesis.given(kinds, lengths, sizes, st.integers(1, 7), st.integers(1, 5), keys, st.integers(1, 3))
def test_epochs_of_so_many_steps_go_on_where_the_last_has_stopped(kind, rows, size, steps, epochs, key, stack):
    examples = examples_of(kind, rows, size, steps)
    batches_of_all = -(-rows // size)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data")
        found = [
            [ids_of(execution_of(batch), 1) for batch in batches]
            for _, batches in examples.epochs(range(epochs), 1, key, stack)
        ]
    rest, expected = batches_of_all, []
    for _ in range(epochs):
        if rest == 0:
            if kind in ONCE:
                break
            rest = batches_of_all
        expected.append(min(steps, rest))
        rest -= expected[-1]
    in_rows = [sum(map(len, seen)) for seen in found]
    starts = np.minimum(np.arange(batches_of_all + 1) * size, rows)
    at, passes, seen_rows = 0, [[]], []
    for count, seen in zip(expected, found, strict=True):
        if at == batches_of_all:
            at = 0
            passes.append([])
        if key is None or kind in BY_NUMBER or kind in IN_MEMORY:
            seen_rows.append(int(starts[at + count] - starts[at]))
        else:
            seen_rows.append(sum(map(len, seen)))  # batches of must have one row each come in any order
        at += count
        passes[-1] += [row for batch in seen for row in batch]
    assert in_rows == seen_rows
    for seen in passes[:-1]:
        assert sorted(seen) == list(range(1, rows + 1))
    assert len(set(passes[-1])) == len(passes[-1])


@functools.cache
def distribution_of(mesh: str) -> Any:
    return layouts.on(mesh, {})


@hypothesis.settings(max_examples=20)
@hypothesis.given(
    kinds,
    lengths,
    sizes,
    st.integers(1, 2),
    keys,
    st.sampled_from(list(MULTIPLES)),
    st.integers(1, 3),
    st.integers(0, 2),
)
def test_streamed_executions(kind, rows, size, epochs, key, mesh, stack, ahead):
    epochs = 1 if kind in ONCE else epochs
    distribution = distribution_of(mesh)
    examples = examples_of(kind, rows, size)
    multiple_of = rows_multiple(examples.source.x, distribution)
    assert multiple_of == MULTIPLES[mesh]
    feed = StreamFeed(examples, multiple_of, distribution, stack, ahead)
    assert_once(seen_by(feed, range(epochs), key, multiple_of), rows, in_order=key is None)


@hypothesis.settings(max_examples=15)
@hypothesis.given(
    st.sampled_from(list(IN_MEMORY)),
    lengths,
    sizes,
    st.integers(1, 3),
    keys,
    st.sampled_from(list(MULTIPLES)),
    st.none() | st.integers(1, 5),
)
def test_resident_executions(kind, rows, size, epochs, key, mesh, steps):
    distribution, examples = distribution_of(mesh), examples_of(kind, rows, size)
    assert isinstance(examples, Batching) and fits_on_devices(examples.source, distribution)
    tuner = StepsTuner() if steps is None else StepsTuner(steps)
    feed = ResidentFeed(examples, MULTIPLES[mesh], distribution, tuner)
    assert_once(seen_by(feed, range(epochs), key, MULTIPLES[mesh]), rows, in_order=key is None)


@pytest.mark.parametrize(
    ("kind", "mesh"), [("arrays", "one device"), ("torch", "data=8,model=1"), ("examples", "data=2,model=4")]
)
def test_where_the_rows_live(kind, mesh):
    """The shards of the devices, put together, hold each real row once on every replica."""
    distribution, multiple_of = distribution_of(mesh), MULTIPLES[mesh]
    feed = StreamFeed(examples_of(kind, 21, 8), multiple_of, distribution, 1, ahead=1)
    seen: dict[int, list[int]] = {}
    for _, executions in feed.epochs(range(1)):
        for execution in executions:
            assert not isinstance(execution.operands[1], np.ndarray)
            y = execution.operands[1]
            for shard in y.addressable_shards:
                start = shard.index[0].start or 0
                real = np.asarray(shard.data)[: max(0, execution.rows - start)]
                seen.setdefault(shard.replica_id, []).extend(int(-number) for number in real)
    replicas = {"one device": 1, "data=8,model=1": 1, "data=2,model=4": 4}[mesh]
    assert set(seen) == set(range(replicas))
    assert all(sorted(rows) == list(range(1, 22)) for rows in seen.values())


@pytest.mark.parametrize("stack", [1, 2, 3])
def test_only_batches_of_one_form_make_a_stack(stack):
    rows = [4, 4, 2, 2, 2, 4, 4, 4, 4, 1]
    batches = iter([np.full(count, index, "f4") for index, count in enumerate(rows)])
    source = source_of(batches)
    assert isinstance(source, StreamSource)
    ((_, found),) = ((epoch, list(all_)) for epoch, all_ in Streaming(source).epochs(range(1), 2, None, stack))
    assert [batch.rows for batch in found for _ in range(batch.stacked or 1)] == rows
    assert {batch.stacked for batch in found} == ({None} if stack == 1 else {None, stack})
    stacked = [np.asarray(batch.arrays[0])[:, 0].tolist() for batch in found if batch.stacked]
    assert stacked == {1: [], 2: [[0, 1], [2, 3], [5, 6], [7, 8]], 3: [[2, 3, 4], [5, 6, 7]]}[stack]
