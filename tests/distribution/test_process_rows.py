"""Which rows of a global batch each process owns, loads and gathers."""

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import keras_dist as kd
from keras_dist import data
from keras_dist.data import ReplicaGroup
from keras_dist.data.arrays import ArraySource
from keras_dist.data.global_arrays import global_portion
from keras_dist.data.lookup import LookupSource
from keras_dist.data.streams import IterableSource
from keras_dist.distribution.process_rows import BatchSlice, HostSlice, wrong_rows
from keras_dist.errors import DataError
from tests.jobs import CONTIGUOUS, INTERLEAVED, MESHES, place_of, sharding_on


@hypothesis.given(
    mesh=st.sampled_from(MESHES),
    batch=st.sampled_from(["data", "model", ("data", "model"), ("model", "data"), None]),
    processes=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    each=st.integers(1, 3),
)
def test_processes_of_any_order_own_what_jax_puts_on_their_devices(mesh, batch, processes, each):
    sharding = sharding_on(mesh, batch)
    array = jax.device_put(np.arange(8 * each), sharding)
    for process in range(4):
        held = {row for shard in array.addressable_shards if processes[shard.device.id] == process
                for row in np.asarray(shard.data).tolist()}  # fmt: skip
        assert data.process_rows(sharding, 8 * each, process, place_of(processes)).tolist() == sorted(held)


def test_layouts_of_every_kind_say_the_same():
    mesh = kd.DeviceMesh("data=4,model=2")
    kinds = [
        sharding_on("data=4,model=2"),
        jax.sharding.NamedSharding(mesh.backend_mesh, PartitionSpec("data", "model")),
        kd.TensorLayout(("data", None, "model"), mesh),
        kd.ModelParallel(kd.LayoutMap(mesh), "data"),
    ]
    for layout in kinds:
        assert data.process_rows(layout, 8, 1, place_of(CONTIGUOUS[4])).tolist() == [2, 3]
    alone = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    assert data.process_rows(alone, 3).tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="a layout of a batch must be"):
        data.process_rows("data", 8)


@pytest.mark.parametrize("rows", [7, 0, -8, 8.0])
def test_rows_that_the_mesh_does_not_divide(rows):
    with pytest.raises(DataError, match="must be a positive multiple of its 8 shards") as error:
        data.process_rows(sharding_on("data=8,model=1"), rows)
    assert error.value.given == f"{rows!r} rows"
    assert error.value.fix.endswith("8")
    with pytest.raises(DataError, match="must be a positive multiple of its 8 shards"):
        ReplicaGroup.numbered(8, 0).rows(rows)


def test_a_process_without_devices_in_the_mesh():
    assert data.process_rows(sharding_on("data=8,model=1"), 8, 3, place_of(CONTIGUOUS[2])).tolist() == []
    with pytest.raises(DataError, match="process 3 owns no row"):
        data.replica_group(sharding_on("data=8,model=1"), 3, place_of(CONTIGUOUS[2]))


def test_wrong_ownership_is_an_error():
    # the model axis across processes: of 64 rows each of two processes owns all, and not 32 as one may think
    sharding, processes = sharding_on("data=1,model=8"), place_of(CONTIGUOUS[2])
    error = wrong_rows({"x": 32}, data.process_rows(sharding, 64, 1, processes), 64, 1)
    assert error.given == "32 rows of x"
    assert error.summary == "process 1 must pass 64 of the 64 rows: 0-63"
    assert "process_rows" in error.fix
    assert "4 of the 8 rows: 0, 2, 4, ..." in str(wrong_rows({"x": 8}, np.arange(0, 8, 2), 8, 0))
    rows = data.process_rows(sharding_on("data=8,model=1"), 16, 0, place_of([0, 0, 1, 0, 0, 1, 0, 0]))
    assert "12 of the 16 rows: 0-3, 6-9, 12-15\n" in str(wrong_rows({"x": 16}, rows, 16, 0))


@pytest.mark.parametrize(
    ("mesh", "processes", "groups"),
    [
        ("data=8,model=1", CONTIGUOUS[4], [[0], [1], [2], [3]]),
        ("data=4,model=2", CONTIGUOUS[4], [[0], [1], [2], [3]]),  # the model axis inside of processes
        ("data=4,model=2", CONTIGUOUS[8], [[0, 1], [2, 3], [4, 5], [6, 7]]),  # across them
        ("data=2,model=4", CONTIGUOUS[4], [[0, 1], [2, 3]]),
        ("data=2,model=4", CONTIGUOUS[2], [[0], [1]]),
        ("data=2,model=4", INTERLEAVED[4], [[0, 1, 2, 3]]),
        ("data=4,model=2", INTERLEAVED[4], [[0, 1], [2, 3]]),
        ("data=1,model=8", CONTIGUOUS[8], [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("data=8,model=1", [1, 1, 1, 1, 1, 0, 0, 0], [[1], [0]]),  # ordered by rows, with parts of different sizes
    ],
)
def test_replica_groups_are_processes_with_the_same_rows(mesh, processes, groups):
    assert [list(group) for group in data.replica_groups(sharding_on(mesh), place_of(processes))] == groups
    for index, group in enumerate(groups):
        for process in group:
            found = data.replica_group(sharding_on(mesh), process, place_of(processes))
            assert (found.count, found.index, found.processes) == (len(groups), index, tuple(group))
            owned = data.process_rows(sharding_on(mesh), 24, process, place_of(processes))
            np.testing.assert_array_equal(found.rows(24), owned)


def test_partly_shared_rows_have_no_groups():
    processes = place_of([0, 1, 0, 2, 1, 1, 2, 2])
    with pytest.raises(DataError, match="either the same rows of a batch, or disjoint rows") as error:
        data.replica_groups(sharding_on("data=4,model=2"), processes)
    assert "processes [0]: shards [0, 1]" in error.value.given
    # the rows of each are right all the same
    assert data.process_rows(sharding_on("data=4,model=2"), 4, 2, processes).tolist() == [1, 3]


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
        list(batches_of(kind, rows, size, HostSlice(layouts, 4, False, process, place_of(processes)), key, stack))
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
    (batch,) = source.batches(6, 8, share=HostSlice((sharding_on("data=8,model=1"),), 8, False, process, processes))
    assert examples.read == read
    assert batch.arrays[0].tolist() == ([4, 5] if process == 1 else read)


def test_arrays_that_are_laid_out_differently_need_the_rows_of_all():
    layouts = sharding_on("data=4,model=2"), sharding_on("data=4,model=2", ("model", "data"))
    share = HostSlice(layouts, 8, False, 0, place_of(CONTIGUOUS[4]))
    assert share.portion(8).positions.tolist() == [0, 1, 4]
    with pytest.raises(DataError, match="equally many shards"):
        HostSlice(layouts, 8, True, 0, place_of(CONTIGUOUS[4])).portion(8)


@pytest.mark.parametrize(
    ("processes", "positions"),
    [(CONTIGUOUS[4], [4, 5]), (INTERLEAVED[2], list(range(8))), (INTERLEAVED[4], [2, 3, 6, 7])],
)
def test_rows_of_ones_own_are_taken_as_they_are(processes, positions):
    share = HostSlice((sharding_on("data=4,model=2"),), 4, True, 2 if 2 in processes else 1, place_of(processes))
    portion = share.portion(len(positions))
    assert portion.numbers.tolist() == list(range(len(positions)))
    assert (portion.positions.tolist(), portion.rows, portion.padded) == (positions, 8, 8)


def test_rows_of_ones_own_that_do_not_divide():
    share = HostSlice((sharding_on("data=8,model=1"),), 8, True, 1, place_of(CONTIGUOUS[2]))
    with pytest.raises(DataError, match="must be a multiple of 4") as error:
        share.portion(6)
    assert error.value.fix.startswith("batches of 8 rows")
    with pytest.raises(DataError, match="equally many shards"):
        HostSlice((sharding_on("data=8,model=1"),), 8, True, 1, place_of([0, 0, 0, 1, 1, 1, 1, 1])).portion(8)


@pytest.mark.parametrize("shape", [(8, 2), (3, 8, 2)])
def test_global_arrays_are_made_of_portions(shape):
    mesh = kd.DeviceMesh("data=4,model=2").backend_mesh
    array, dim = np.random.default_rng(0).normal(size=shape), len(shape) - 2
    sharding = jax.sharding.NamedSharding(mesh, PartitionSpec(*[None] * dim, "data", "model"))
    made = global_portion(array, sharding, BatchSlice(np.arange(8), np.arange(8), 8, 8), dim)
    expected = jax.device_put(array, sharding)
    assert (made.dtype, made.sharding) == (expected.dtype, expected.sharding)
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize(("rows", "positions"), [(6, range(6)), (8, range(1, 9)), (7, range(8)), (4, [0, 1, 4, 5])])
def test_rows_that_a_device_lacks_are_noticed(rows, positions):
    portion = BatchSlice(np.arange(rows), np.array(positions), 8, 8)
    with pytest.raises(DataError, match="process 0 must pass 2 of the 8 rows: "):
        global_portion(np.zeros(rows), sharding_on("data=4,model=2"), portion)
