"""Shares of data sets: every row read once, and the same global batches for any number of processes."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import data
from keras_dist.data import ReplicaGroup, ShardPolicy, auto_shard_dataset
from keras_dist.errors import DataError
from tests.jobs import CONTIGUOUS, jobs, place_of

SIZES = {"rows": st.integers(1, 100), "batch_size": st.integers(1, 40), "seed": st.none() | st.integers(0, 3)}


def numbered(count):
    return [ReplicaGroup.numbered(count, index) for index in range(count)]


def shared_by(job_or_count):
    """A `ReplicaGroup` for each group of a job, or for numbered groups."""
    if isinstance(job_or_count, int):
        return numbered(job_or_count)
    sharding, process_of, groups = job_or_count
    return [data.replica_group(sharding, group[0], process_of) for group in groups]


KINDS = {"array": np.asarray, "sequence": list, "iterable": lambda rows: (row for row in list(rows))}


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
    with pytest.raises(DataError, match="must have one row each"):
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


@pytest.mark.parametrize(("wrong", "near"), [("fil", "file"), ("FILE", "file"), ("of", "off"), (3, None), (None, None)])
def test_a_wrong_policy_lists_the_options(wrong, near):
    with pytest.raises(
        DataError,
        match=f"did you mean '{near}'" if near else r"`policy` must be one of 'auto', 'data', 'file', 'off'\n",
    ) as error:
        auto_shard_dataset(range(4), wrong, num_groups=2, group_index=0)
    assert "one of 'auto', 'data', 'file', 'off'" in error.value.summary
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
    with pytest.raises(DataError, match="2 groups of processes need at least one file each") as error:
        auto_shard_dataset(Closed(range(4)), "file", num_groups=2, group_index=0)
    assert "unknown files" in error.value.given


def test_data_cuts_rows_though_files_are_known():
    assert list(auto_shard_dataset(open_files, "data", files=FILES, num_groups=2, group_index=0)) == ["a0", "b0", "c0"]


@pytest.mark.parametrize(
    ("arguments", "title"),
    [
        (
            dict(dataset=open_files, policy="file", files=FILES, num_groups=4, group_index=0),
            "need at least one file each",
        ),
        (dict(dataset=range(4), policy="file", num_groups=2, group_index=0), "need at least one file each"),
        (dict(policy="data", files=FILES, num_groups=2, group_index=0), "no rows to divide"),
        (dict(dataset=range(4), files=FILES, num_groups=2, group_index=0), "a function that opens them"),
        (dict(files="abc", num_groups=2, group_index=0), "`files` must be a list of names or paths"),
        (dict(dataset=range(4), num_groups=2), "0 <= group_index < num_groups"),
        (dict(dataset=range(4), num_groups=2, group_index=2), "0 <= group_index < num_groups"),
        (dict(dataset=range(4), num_groups=2, group_index=True), "0 <= group_index < num_groups"),
        (
            dict(dataset=range(4), num_groups=2, group_index=0, group=ReplicaGroup.numbered(2, 0)),
            "`group` cannot be used with `num_groups`",
        ),
        (dict(dataset=range(4), num_groups=2, group_index=0, batch_size=0), "batch_size"),
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
    with pytest.raises(DataError, match="a distribution is needed"):
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
