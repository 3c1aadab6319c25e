"""What each of several processes gathers of a batch: together the batch of one process, each row once in a group."""

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import keras_dist as kd
from keras_dist.data.arrays import ArraySource
from keras_dist.data.global_arrays import global_portion
from keras_dist.data.lookup import LookupSource
from keras_dist.data.streams import IterableSource
from keras_dist.distribution.process_rows import Portion, Share
from keras_dist.errors import DataError
from tests.jobs import CONTIGUOUS, INTERLEAVED, be, place_of, sharding_on

PROCESSES = [*(CONTIGUOUS[n] for n in (2, 4)), *(INTERLEAVED[n] for n in (2, 4)), [0, 1, 0, 2, 1, 1, 2, 2]]


class Rows:
    """Examples by number, which notes what is read."""

    def __init__(self, count):
        self.count, self.read = count, []

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        self.read.append(number)
        return np.float32(number)


def batches_of(kind, rows, size, share, key=None, stack=1):
    array = np.arange(rows, dtype=np.float32)
    if kind == "stream":
        return IterableSource([array[start : start + size] for start in range(0, rows, size)]).batches(4, share=share)
    source = ArraySource(array) if kind == "array" else LookupSource(Rows(rows))
    return source.batches(size, 4, key, stack, share=share)


@hypothesis.settings(max_examples=30)
@hypothesis.given(
    kind=st.sampled_from(["array", "lookup", "stream"]),
    processes=st.sampled_from(PROCESSES),
    rows=st.integers(1, 30),
    size=st.integers(1, 12),
    key=st.none() | st.just((7,)),
    stack=st.sampled_from([1, 2]),
)
def test_the_processes_gather_the_batches_of_one(kind, processes, rows, size, key, stack):
    layouts = (sharding_on("data=4,model=2"),)
    whole = list(batches_of(kind, rows, size, None, key, stack))
    parts = [
        list(batches_of(kind, rows, size, Share(layouts, 4, False, process, place_of(processes)), key, stack))
        for process in range(max(processes) + 1)
    ]
    for batch, *portions in zip(whole, *parts, strict=True):
        expected = batch.arrays[0]
        made = np.full_like(expected, -1)
        for one in portions:
            assert (one.rows, one.stacked, one.portion.padded) == (batch.rows, batch.stacked, expected.shape[-1])
            made[..., one.portion.positions] = one.arrays[0]
            np.testing.assert_array_equal(expected[..., one.portion.positions], one.arrays[0])
        np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize(("process", "read"), [(0, [0, 1, 2, 3]), (1, [4, 5]), (2, [5]), (3, [5])])
def test_only_own_examples_are_read(process, read):
    examples = Rows(6)  # padded to 8
    source = LookupSource(examples)
    examples.read.clear()
    processes = place_of([0, 0, 0, 0, 1, 1, 2, 3])
    (batch,) = source.batches(6, 8, share=Share((sharding_on("data=8,model=1"),), 8, False, process, processes))
    assert examples.read == read
    assert batch.arrays[0].tolist() == ([4, 5] if process == 1 else read)


def test_arrays_that_are_laid_out_differently_need_the_rows_of_all():
    layouts = sharding_on("data=4,model=2"), sharding_on("data=4,model=2", ("model", "data"))
    share = Share(layouts, 8, False, 0, place_of(CONTIGUOUS[4]))
    assert share.portion(8).positions.tolist() == [0, 1, 4]
    with pytest.raises(DataError, match="unequal parts"):
        Share(layouts, 8, True, 0, place_of(CONTIGUOUS[4])).portion(8)


@pytest.mark.parametrize(
    ("processes", "positions"),
    [(CONTIGUOUS[4], [4, 5]), (INTERLEAVED[2], list(range(8))), (INTERLEAVED[4], [2, 3, 6, 7])],
)
def test_rows_of_ones_own_are_taken_as_they_are(processes, positions):
    share = Share((sharding_on("data=4,model=2"),), 4, True, 2 if 2 in processes else 1, place_of(processes))
    portion = share.portion(len(positions))
    assert portion.numbers.tolist() == list(range(len(positions)))
    assert (portion.positions.tolist(), portion.rows, portion.padded) == (positions, 8, 8)


def test_rows_of_ones_own_that_do_not_divide():
    share = Share((sharding_on("data=8,model=1"),), 8, True, 1, place_of(CONTIGUOUS[2]))
    with pytest.raises(DataError, match="cannot be divided among its devices") as error:
        share.portion(6)
    assert error.value.fix.startswith("batches of 8 rows")
    with pytest.raises(DataError, match="unequal parts"):
        Share((sharding_on("data=8,model=1"),), 8, True, 1, place_of([0, 0, 0, 1, 1, 1, 1, 1])).portion(8)


def test_a_process_without_a_device_gathers_nothing(monkeypatch):
    be(monkeypatch, CONTIGUOUS[4], 3)
    first = kd.DataParallel(devices=kd.list_devices()[:4]).get_data_layout((4,)).backend_layout
    with pytest.raises(DataError, match="process 3 owns no row"):
        Share((first,), 4).portion(4)


@pytest.mark.parametrize("shape", [(8, 2), (3, 8, 2)])
def test_global_arrays_are_made_of_portions(shape):
    mesh = kd.DeviceMesh("data=4,model=2").backend_mesh
    array, dim = np.random.default_rng(0).normal(size=shape), len(shape) - 2
    sharding = jax.sharding.NamedSharding(mesh, PartitionSpec(*[None] * dim, "data", "model"))
    made = global_portion(array, sharding, Portion(np.arange(8), np.arange(8), 8, 8), dim)
    expected = jax.device_put(array, sharding)
    assert (made.dtype, made.sharding) == (expected.dtype, expected.sharding)
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize(("rows", "positions"), [(6, range(6)), (8, range(1, 9)), (7, range(8)), (4, [0, 1, 4, 5])])
def test_rows_that_a_device_lacks_are_noticed(rows, positions):
    portion = Portion(np.arange(rows), np.array(positions), 8, 8)
    with pytest.raises(DataError, match="another number of rows than it owns"):
        global_portion(np.zeros(rows), sharding_on("data=4,model=2"), portion)
