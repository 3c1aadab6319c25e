"""Shares of data sets: every row read once, and the same global batches for any number of processes."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import keras_dist as kd
from keras_dist import data
from keras_dist.data import ArraySource, ReplicaGroup, ShardPolicy, auto_shard_dataset
from keras_dist.errors import DataError

CONTIGUOUS = {count: {device: device * count // 8 for device in range(8)} for count in (1, 2, 4, 8)}
INTERLEAVED = {count: {device: device % count for device in range(8)} for count in (1, 2, 4, 8)}
ORDERS = {"contiguous": CONTIGUOUS, "interleaved": INTERLEAVED}
MESHES = ["data=8,model=1", "data=4,model=2", "data=2,model=4", "data=1,model=8"]


def place_of(processes):
    """`process_of` for fake processes: indices by the number of the device."""
    return lambda device: processes[device.id]


@functools.cache
def sharding_on(mesh, batch="data"):
    return jax.sharding.NamedSharding(kd.DeviceMesh(mesh).backend_mesh, PartitionSpec(batch))


def rows_by_hand(mesh, processes, global_rows, process):
    """The rows of a process, from the positions of its devices in the mesh: shard 0 is along the first row of it."""
    grid = np.arange(8).reshape([int(size[5:].strip("=")) for size in mesh.split(",")])
    each = global_rows // len(grid)
    held = [shard for shard, devices in enumerate(grid) if any(processes[device] == process for device in devices)]
    return [row for shard in held for row in range(shard * each, (shard + 1) * each)]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_a_process_owns_the_rows_of_its_devices(mesh, order, count):
    processes = ORDERS[order][count]
    for process in range(count):
        rows = data.process_rows(sharding_on(mesh), 16, process, place_of(processes))
        assert rows.tolist() == rows_by_hand(mesh, processes, 16, process)


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


def test_a_batch_over_several_axes():
    processes = place_of(CONTIGUOUS[2])
    assert data.process_rows(sharding_on("data=2,model=4", ("data", "model")), 8, 0, processes).tolist() == [0, 1, 2, 3]
    assert data.process_rows(sharding_on("data=2,model=4", ("model", "data")), 8, 0, processes).tolist() == [0, 2, 4, 6]


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
    with pytest.raises(DataError, match="no layout of a batch"):
        data.process_rows("data", 8)


@pytest.mark.parametrize("rows", [7, 0, -8, 8.0])
def test_rows_that_the_mesh_does_not_divide(rows):
    with pytest.raises(DataError, match="cannot be divided") as error:
        data.process_rows(sharding_on("data=8,model=1"), rows)
    assert error.value.given == f"{rows!r} rows"
    assert error.value.fix.endswith("8")
    with pytest.raises(DataError, match="cannot be divided"):
        ReplicaGroup.numbered(8, 0).rows(rows)


def test_partly_shared_rows_have_no_groups():
    processes = place_of([0, 1, 0, 2, 1, 1, 2, 2])
    with pytest.raises(DataError, match="share some of their rows") as error:
        data.replica_groups(sharding_on("data=4,model=2"), processes)
    assert "processes [0]: shards [0, 1]" in error.value.given
    # the rows of each are right all the same
    assert data.process_rows(sharding_on("data=4,model=2"), 4, 2, processes).tolist() == [1, 3]


def test_a_process_without_devices_in_the_mesh():
    assert data.process_rows(sharding_on("data=8,model=1"), 8, 3, place_of(CONTIGUOUS[2])).tolist() == []
    with pytest.raises(DataError, match="process 3 owns no row"):
        data.replica_group(sharding_on("data=8,model=1"), 3, place_of(CONTIGUOUS[2]))
    with pytest.raises(DataError, match="process 3 owns no row"):
        data.check_process_rows(0, sharding_on("data=8,model=1"), 8, 3, place_of(CONTIGUOUS[2]))


def test_wrong_ownership_is_an_error():
    # the model axis across processes: of 64 rows each of two processes owns all, and not 32 as one may think
    sharding, processes = sharding_on("data=1,model=8"), place_of(CONTIGUOUS[2])
    data.check_process_rows(64, sharding, 64, 1, processes)
    with pytest.raises(DataError, match="process 1") as error:
        data.check_process_rows(32, sharding, 64, 1, processes, name="x")
    assert error.value.given == "32 rows of x"
    assert error.value.expected == "64 of the 64 rows: 0-63"
    assert "process_rows" in error.value.fix
    with pytest.raises(DataError, match=r"4 of the 8 rows: 0, 2, 4, \.\.\."):
        data.check_process_rows(8, sharding_on("data=8,model=1"), 8, 0, place_of(INTERLEAVED[2]))
    with pytest.raises(DataError, match=r"12 of the 16 rows: 0-3, 6-9, 12-15\n"):
        data.check_process_rows(16, sharding_on("data=8,model=1"), 16, 0, place_of([0, 0, 1, 0, 0, 1, 0, 0]))


# the global batches are the same for any number of processes


@st.composite
def jobs(draw):
    """A mesh, and its 8 devices in up to 4 processes, in any order that gives groups."""
    mesh = draw(st.sampled_from(MESHES))
    count = draw(st.sampled_from([1, 2, 4]))
    processes = draw(st.sampled_from([CONTIGUOUS[count], INTERLEAVED[count], [2, 2, 2, 2, 2, 2, 0, 1]]))
    groups = {}
    try:
        groups = data.replica_groups(sharding_on(mesh), place_of(processes))
    except DataError:
        hypothesis.reject()
    return sharding_on(mesh), place_of(processes), groups


SIZES = {"rows": st.integers(1, 100), "batch_size": st.integers(1, 40), "seed": st.none() | st.integers(0, 3)}


@hypothesis.given(job=jobs(), **SIZES)
def test_shares_make_the_global_batches_of_one_process(job, rows, batch_size, seed):
    sharding, process_of, groups = job
    shards = 8 // sharding.shard_shape((8,))[0]
    source = ArraySource(np.arange(rows))
    seen = []
    for part in source.row_numbers(batch_size, shards, None if seed is None else (seed,)):
        assembled = np.full(part.padded.shape, -1)
        for group in groups:
            shares = [data.process_share(part.padded, sharding, process, process_of) for process in group]
            for share in shares:  # those of one group are identical
                np.testing.assert_array_equal(share, shares[0])
            owned = data.process_rows(sharding, part.padded.shape[1], group[0], process_of)
            assert (assembled[:, owned] == -1).all()
            assembled[:, owned] = shares[0]
        np.testing.assert_array_equal(assembled, part.padded)
        seen.extend(assembled[:, : part.real].reshape(-1).tolist())
    assert sorted(seen) == list(range(rows))
    one = data.process_share(part.padded[0], sharding, 0, lambda device: 0)
    np.testing.assert_array_equal(one, part.padded[0])


def numbered(count):
    return [ReplicaGroup.numbered(count, index) for index in range(count)]


def shared_by(job_or_count):
    """A `ReplicaGroup` for each group of a job, or for numbered groups."""
    if isinstance(job_or_count, int):
        return numbered(job_or_count)
    sharding, process_of, groups = job_or_count
    return [data.replica_group(sharding, group[0], process_of) for group in groups]


KINDS = {
    "array": np.asarray,
    "sequence": list,
    "iterable": lambda rows: (row for row in list(rows)),
}


@hypothesis.given(readers=st.integers(1, 4) | jobs(), kind=st.sampled_from(list(KINDS)), **SIZES)
def test_auto_sharded_data_sets_make_the_global_batches_of_one_process(readers, kind, rows, batch_size, seed):
    groups = shared_by(readers)
    order = np.arange(rows) if seed is None else np.random.default_rng(seed).permutation(rows)
    # with one group nothing is cut, nor padded
    shares = [
        list(auto_shard_dataset(KINDS[kind](order), "data", batch_size=batch_size, group=group)) for group in groups
    ]
    if len(groups) == 1:
        assert shares == [order.tolist()]
        return
    multiple = groups[0].multiple_of
    starts = [0] * len(groups)
    for start in range(0, rows, batch_size):
        real = order[start : start + batch_size]
        padded = np.append(real, [real[-1]] * (-len(real) % multiple))
        assembled = np.full(len(padded), -1)
        for place, group in enumerate(groups):
            owned = group.rows(len(padded))
            assert (assembled[owned] == -1).all()
            assembled[owned] = shares[place][starts[place] : starts[place] + len(owned)]
            starts[place] += len(owned)
        np.testing.assert_array_equal(assembled, padded)
    assert starts == [len(share) for share in shares]


@hypothesis.given(readers=st.integers(1, 4) | jobs(), rows=SIZES["rows"], batch_size=st.none() | SIZES["batch_size"])
def test_every_row_is_read_once_but_for_padding(readers, rows, batch_size):
    shares = [data.share_rows(rows, group, batch_size) for group in shared_by(readers)]
    real = np.concatenate([share.numbers[~share.is_padding] for share in shares])
    assert sorted(real.tolist()) == list(range(rows))
    batches = -(-rows // (batch_size or shared_by(readers)[0].multiple_of))
    assert sum(share.is_padding.sum() for share in shares) < batches * shared_by(readers)[0].multiple_of


@pytest.mark.parametrize("count", [2, 3, 4])
def test_without_a_batch_size_rows_are_cut_by_strides(count):
    for index in range(count):
        share = auto_shard_dataset(np.arange(12), num_groups=count, group_index=index)
        assert share.tolist() == list(range(12))[index::count]
    # batches of any size that the groups divide: the same rows in each global batch
    shares = [auto_shard_dataset(range(24), num_groups=count, group_index=index) for index in range(count)]
    size = 12 // count
    for batch in range(2):
        rows = {row for share in shares for row in share[batch * size : (batch + 1) * size]}
        assert rows == set(range(batch * 12, (batch + 1) * 12))


def test_all_groups_of_equal_parts_get_as_many_rows():
    lengths = {len(list(auto_shard_dataset(iter(range(10)), num_groups=4, group_index=index))) for index in range(4)}
    assert lengths == {3}


# kinds of data sets


def test_trees_of_arrays_are_cut_alike_into_fresh_memory():
    x, y = np.arange(20.0).reshape(10, 2), np.arange(10)
    share = auto_shard_dataset({"x": x, "y": y}, batch_size=4, num_groups=2, group_index=1)
    assert share["y"].tolist() == [2, 3, 6, 7, 9]
    np.testing.assert_array_equal(share["x"], x[share["y"]])
    assert not np.shares_memory(share["x"], x)
    with pytest.raises(DataError, match="different lengths"):
        auto_shard_dataset((x, y[:5]), num_groups=2, group_index=0)


class Rows:
    """Rows by number, as torch and grain have them."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return 9

    def __getitem__(self, number):
        assert type(number) is int
        self.read.append(number)
        return {"x": number}


def test_sequences_are_read_when_asked():
    rows = Rows()
    share = auto_shard_dataset(rows, batch_size=4, num_groups=2, group_index=1)
    assert len(share) == 5
    assert rows.read == []
    assert share[0] == {"x": 2}
    assert rows.read == [2]
    assert [row["x"] for row in share] == [2, 3, 6, 7, 8]  # the last is padding
    assert [row["x"] for row in share[1:3]] == [3, 6]
    assert share[-1] == {"x": 8}
    with pytest.raises(IndexError):
        share[5]


def test_iterables_are_read_batch_after_batch_and_again_in_the_next_epoch():
    read = []

    class Endless:
        def __iter__(self):
            for number in range(10**9):
                read.append(number)
                yield number

    share = auto_shard_dataset(Endless(), batch_size=4, num_groups=2, group_index=1)
    for _ in range(2):
        read.clear()
        rows = iter(share)
        assert [next(rows) for _ in range(4)] == [2, 3, 6, 7]
        assert len(read) == 8


@pytest.mark.parametrize("dataset", ["rows.csv", {"a": 1}, {1, 2}, 7, None, b"x"])
def test_what_holds_no_rows_in_order_is_refused(dataset):
    with pytest.raises(DataError):
        auto_shard_dataset(dataset, num_groups=2, group_index=0)


def test_an_empty_data_set_is_refused():
    for empty in (np.zeros((0, 3)), range(0)):
        with pytest.raises(DataError, match="empty"):
            auto_shard_dataset(empty, num_groups=2, group_index=0)


# policies


def test_policies_are_their_values():
    assert [policy.value for policy in ShardPolicy] == ["auto", "data", "file", "off"]
    assert ShardPolicy("file") is ShardPolicy.FILE
    assert ShardPolicy.FILE == "file"


@pytest.mark.parametrize(("wrong", "near"), [("fil", "file"), ("FILE", "file"), ("of", "off"), (3, None), (None, None)])
def test_a_wrong_policy_lists_the_options(wrong, near):
    with pytest.raises(DataError, match=f"did you mean '{near}'" if near else r"no such policy\n") as error:
        auto_shard_dataset(range(4), wrong, num_groups=2, group_index=0)
    assert error.value.expected == "one of 'auto', 'data', 'file', 'off'"
    assert repr(wrong) in error.value.given


def open_files(files):
    return [f"{file}{row}" for file in files for row in range(2)]


class Folder:
    """A data set that knows its files."""

    def __init__(self, files):
        self.files = files

    def with_files(self, files):
        return Folder(files)

    def __iter__(self):
        return iter(open_files(self.files))


FILES = ["a", "b", "c"]


@pytest.mark.parametrize("policy", ["auto", "file", ShardPolicy.FILE])
def test_whole_files_go_to_groups(policy):
    def share(dataset, index, files=None):
        return auto_shard_dataset(dataset, policy, files=files, num_groups=2, group_index=index)

    assert share(None, 0, FILES) == ["a", "c"]
    assert share(None, 1, FILES) == ["b"]
    assert share(open_files, 0, iter(FILES)) == ["a0", "a1", "c0", "c1"]
    assert list(share(Folder(FILES), 1)) == ["b0", "b1"]


def test_auto_cuts_rows_where_files_are_too_few():
    def share(dataset, files=None):
        return list(auto_shard_dataset(dataset, files=files, num_groups=4, group_index=1))

    assert share(open_files, FILES) == ["a1", "c1"]
    assert share(Folder(FILES)) == ["a1", "c1"]
    assert auto_shard_dataset(open_files, files=FILES, num_groups=3, group_index=0) == ["a0", "a1"]  # a file for each


def test_files_without_a_way_to_open_them_are_rows_that_know_no_files():
    class Closed(list):
        files = FILES

    assert list(auto_shard_dataset(Closed(range(4)), num_groups=2, group_index=0)) == [0, 2]
    with pytest.raises(DataError, match="whole files cannot be divided") as error:
        auto_shard_dataset(Closed(range(4)), "file", num_groups=2, group_index=0)
    assert "not known" in error.value.given


def test_data_cuts_rows_though_files_are_known():
    assert list(auto_shard_dataset(open_files, "data", files=FILES, num_groups=2, group_index=0)) == ["a0", "b0", "c0"]


@pytest.mark.parametrize(
    ("arguments", "title"),
    [
        (dict(dataset=open_files, policy="file", files=FILES, num_groups=4, group_index=0), "whole files"),
        (dict(dataset=range(4), policy="file", num_groups=2, group_index=0), "whole files"),
        (dict(policy="data", files=FILES, num_groups=2, group_index=0), "no rows to divide"),
        (dict(files=FILES, num_groups=4, group_index=0), "no rows to divide"),
        (dict(policy="data"), "no rows to divide"),
        (dict(dataset=range(4), files=FILES, num_groups=2, group_index=0), "what opens them"),
        (dict(files="abc", num_groups=2, group_index=0), "not a list of files"),
        (dict(files=set(FILES), num_groups=2, group_index=0), "not a list of files"),
        (dict(files=7, num_groups=2, group_index=0), "not a list of files"),
        (dict(dataset=range(4), num_groups=2), "no such group"),
        (dict(dataset=range(4), group_index=0), "no such group"),
        (dict(dataset=range(4), num_groups=2, group_index=2), "no such group"),
        (dict(dataset=range(4), num_groups=2, group_index=-1), "no such group"),
        (dict(dataset=range(4), num_groups=2, group_index=True), "no such group"),
        (dict(dataset=range(4), num_groups=2, group_index=0, group=ReplicaGroup.numbered(2, 0)), "given twice"),
        (dict(dataset=range(4), num_groups=2, group_index=0, batch_size=0), "batch_size"),
        (dict(dataset=iter(range(4)), num_groups=2, group_index=0, batch_size=0), "batch_size"),
    ],
)
def test_arguments_that_cannot_be_used(arguments, title):
    with pytest.raises(DataError, match=title) as error:
        auto_shard_dataset(**arguments)
    assert error.value.given
    assert error.value.fix


@pytest.mark.parametrize("dataset", [range(4), iter(range(4)), np.arange(4), object()])
def test_off_hands_the_data_set_back(dataset):
    assert auto_shard_dataset(dataset, "off", num_groups=2, group_index=1) is dataset
    assert auto_shard_dataset(open_files, "off", files=["a"], num_groups=2, group_index=1) == ["a0", "a1"]


# the current distribution


def test_the_groups_are_those_of_the_current_distribution(monkeypatch):
    mesh = kd.DeviceMesh("data=2,model=4")
    processes = CONTIGUOUS[4]  # four processes, but two groups: the model axis spans processes
    share = functools.partial(auto_shard_dataset, np.arange(8), batch_size=4)
    with kd.ModelParallel(kd.LayoutMap(mesh), "data").scope():
        for process in range(4):
            group = data.replica_group(process_index=process, process_of=place_of(processes))
            assert group.count == 2
            assert share(group=group).tolist() == ([0, 1, 4, 5] if process < 2 else [2, 3, 6, 7])
        dataset = iter(range(4))
        assert auto_shard_dataset(dataset) is dataset  # here there is one process
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with kd.DataParallel().scope(), pytest.raises(DataError, match="process 1 owns no row"):
        share()


def test_without_a_distribution(monkeypatch):
    dataset = iter(range(4))
    assert auto_shard_dataset(dataset) is dataset
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(DataError, match="no distribution says"):
        auto_shard_dataset(dataset)


@pytest.mark.parametrize("rows", [8, 5])
def test_a_batch_is_padded_and_cut(rows):
    x = np.arange(rows)
    shares = [data.shard_batch((x, {"y": -x}), group) for group in numbered(4)]
    padded = np.append(x, [x[-1]] * (8 - rows))
    np.testing.assert_array_equal(np.concatenate([share[0] for share in shares]), padded)
    np.testing.assert_array_equal(np.concatenate([share[1]["y"] for share in shares]), -padded)
    assert not np.shares_memory(shares[0][0], x)
    np.testing.assert_array_equal(data.shard_batch(x), x)
