"""`DataLoader` and `Cursor`: each row once an epoch, and from any place on what came next there."""

import itertools
import json

import grain
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_dist.data import Cursor, DataLoader, PyDataset
from keras_dist.data.adapters import source_of
from keras_dist.errors import DataError
from keras_dist.models.fit_arguments import batching


class Rows:
    """Examples by number."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        return np.int32(index)


class Numbered(PyDataset):
    """Batches by number, of 3 rows."""

    def __init__(self, rows):
        super().__init__()
        self.rows, self.read = rows, []

    def __len__(self):
        return -(-self.rows // 3)

    def __getitem__(self, index):
        self.read.append(index)
        return np.arange(self.rows)[index * 3 : index * 3 + 3]


class Again:
    """Batches of 3 rows, again and again."""

    def __init__(self, rows):
        self.batches = [np.arange(rows)[first : first + 3] for first in range(0, rows, 3)]

    def __iter__(self):
        return iter(self.batches)


def once(rows):
    return iter(list(Again(rows)))


SOURCES = {"arrays": np.arange, "by number": Rows, "PyDataset": Numbered, "iterable": Again, "iterator": once}


def loader_of(source, rows, **options):
    batch_size = 3 if source in ("arrays", "by number") else None
    return DataLoader(SOURCES[source](rows), batch_size=batch_size, **options)


def values(batches):
    return [x.tolist() for x, *_ in batches]


@hypothesis.given(
    source=st.sampled_from(["arrays", "by number", "PyDataset", "iterable", "iterator"]),
    rows=st.integers(1, 40),
    epoch=st.integers(0, 2),
    data=st.data(),
    shuffle=st.booleans(),
)
def test_from_any_place_on_the_batches_are_those_that_came_next(source, rows, epoch, data, shuffle):
    epoch = 0 if source == "iterator" else epoch
    loader = loader_of(source, rows, shuffle=shuffle)
    for _ in range(epoch):
        values(loader)
    whole = values(loader)
    assert sorted(itertools.chain(*whole)) == list(range(rows))
    assert source in ("iterable", "iterator") or len(loader) == len(whole)
    taken = data.draw(st.integers(0, len(whole)))

    first = loader_of(source, rows, shuffle=shuffle)
    for _ in range(epoch):
        values(first)
    batches = iter(first)
    done = values(itertools.islice(batches, taken))
    state = json.loads(json.dumps(batches.get_state()))
    assert state["rows"] == sum(map(len, done)) and state["epoch"] == epoch

    later = loader_of(source, rows, shuffle=shuffle)
    left = iter(later)
    left.set_state(state)
    assert done + values(left) == whole
    if source != "iterator":
        assert values(later) == values(loader), "the epoch after"


def test_what_has_numbers_is_not_gone_through_again(capsys):
    dataset = Numbered(30)
    batches = iter(DataLoader(dataset))
    batches.set_state({"epoch": 0, "batch": 8, "rows": 24, "seed": None, "source": None})
    dataset.read.clear()
    assert values(batches) == [[24, 25, 26], [27, 28, 29]]
    assert dataset.read == [0, 8, 9] and not capsys.readouterr().err


def test_what_has_none_is_gone_through_and_the_first_process_says_so(capsys, monkeypatch):
    for is_chief in (True, False):
        monkeypatch.setattr("keras_dist.data.streams.is_chief", lambda is_chief=is_chief: is_chief)
        batches = iter(DataLoader(Again(30)))
        batches.set_state({"epoch": 0, "batch": 8, "rows": 24, "seed": None, "source": None})
        assert values(batches) == [[24, 25, 26], [27, 28, 29]]
        assert ("replaying 8 finished batches of <" in capsys.readouterr().err) is is_chief


def test_an_iterator_with_a_state_of_its_own_goes_there(capsys):
    read = []

    class Source:
        def __len__(self):
            return 30

        def __getitem__(self, index):
            read.append(int(index))
            return np.int32(index)

    def loader():
        return DataLoader(grain.MapDataset.source(Source()).shuffle(seed=1).batch(3))

    batches = iter(loader())
    done = values(itertools.islice(batches, 8))
    state = json.loads(json.dumps(batches.get_state()))
    rest = values(batches)
    left = iter(loader())
    left.set_state(state)
    assert values(left) == rest
    assert sorted(itertools.chain(*done, *rest)) == list(range(30))
    assert not capsys.readouterr().err


def test_a_state_that_is_no_json_is_not_used():
    class Iterator:
        def __init__(self):
            self.batches = iter(np.arange(6).reshape(3, 2))

        def __iter__(self):
            return self

        def __next__(self):
            return next(self.batches)

        def get_state(self):
            return b"somewhere"

        def set_state(self, state):
            pytest.fail("there is none")

    class Iterable:
        def __iter__(self):
            return Iterator()

    batches = iter(DataLoader(Iterable()))
    next(batches)
    assert batches.get_state()["source"] is None
    left = iter(DataLoader(Iterable()))
    left.set_state(batches.get_state())
    assert values(left) == [[2, 3], [4, 5]]


@hypothesis.given(
    source=st.sampled_from(["arrays", "PyDataset", "iterable", "iterator"]),
    rows=st.integers(1, 30),
    steps=st.none() | st.integers(1, 6),
    epochs=st.integers(1, 4),
    initial=st.integers(0, 2),
    multiples=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    data=st.data(),
)
@pytest.mark.filterwarnings("ignore:Your input ran out")
def test_epochs_of_so_many_steps_go_on_where_they_were_on_another_mesh(
    source, rows, steps, epochs, initial, multiples, data
):
    if source == "iterator" and steps is None:
        epochs = 1
    numbers = range(initial, initial + epochs)

    def run(multiple_of, start=None):
        examples = batching(source_of(SOURCES[source](rows)), 3 if source == "arrays" else None, steps)
        return [
            (epoch, batch.arrays[0][: batch.rows].tolist())
            for epoch, batches in examples.epochs(numbers, multiple_of, (7,), start=start)
            for batch in batches
        ]

    whole = run(multiples[0])
    at = data.draw(st.integers(0, len(whole)))
    done = whole[:at]
    epoch = whole[at][0] if at < len(whole) else numbers[-1]
    start = Cursor(epoch, sum(number == epoch for number, _ in done))
    assert done + run(multiples[1], start) == whole


def test_the_remainder_may_be_dropped():
    assert values(DataLoader(np.arange(8), batch_size=3, drop_remainder=True)) == [[0, 1, 2], [3, 4, 5]]
    assert len(DataLoader(np.arange(8), batch_size=3, drop_remainder=True)) == 2
    assert len(DataLoader(np.arange(9), batch_size=3, drop_remainder=True)) == 3


def test_targets_and_weights_come_along():
    ((x, y, weight),) = DataLoader({"a": np.arange(2)}, [np.arange(2)], np.ones(2))
    assert x["a"].tolist() == y[0].tolist() == [0, 1] and weight.tolist() == [1, 1]


def test_the_source_may_not_tell_how_many_there_are():
    with pytest.raises(TypeError, match="does not know how many"):
        len(DataLoader(once(3)))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: DataLoader(Again(9), batch_size=3), "`batch_size` cannot be used with a source of batches"),
        (lambda: DataLoader(Again(9), drop_remainder=True), "`drop_remainder` cannot be used with a source of batches"),
        (lambda: DataLoader(np.arange(2), batch_size=3, drop_remainder=True), "leaves no batch"),
        (lambda: DataLoader(np.arange(2), seed=-1), "`seed` must be an integer of at least 0"),
        (lambda: DataLoader(np.arange(2), batch_size=0), "`batch_size` must be an integer of at least 1"),
        (lambda: iter(DataLoader(np.arange(2))).set_state({"epoch": 1}), "must be the position of a run over data"),
        (lambda: Cursor.from_json(Cursor().to_json() | {"batch": -1}), "must be the position of a run"),
        (lambda: Cursor.from_json([0, 0, 0, 0]), "must be the position of a run"),
        (lambda: Cursor.from_json(Cursor().to_json() | {"epoch": True}), "must be the position of a run"),
    ],
)
def test_what_cannot_be_used_is_refused(make, match):
    with pytest.raises(DataError, match=match):
        make()


def test_a_cursor_counts_batches_and_rows():
    cursor = Cursor(seed=4).after(3).after(2)
    assert cursor == Cursor(0, 2, 5, 4)
    assert Cursor.from_json(json.loads(json.dumps(cursor.to_json()))) == cursor
