"""Epochs of so many batches: each goes on where the one before has stopped."""

import itertools
import tracemalloc

import numpy as np
import pytest

from keras_dist import data
from keras_dist.data import ArraySource
from keras_dist.data.adapters import source_of
from keras_dist.data.batching import Batching, Streaming, Validation
from keras_dist.data.conversion import weights_of_classes
from keras_dist.data.source import RowSource
from keras_dist.errors import DataError

SOURCE = ArraySource(np.arange(22), np.arange(22) % 3)


def test_split_takes_the_last_rows():
    first, last = SOURCE.split(20)
    assert first.arrays[0].tolist() == list(range(20)) and last.arrays[0].tolist() == [20, 21]
    assert last.arrays[1].tolist() == [2, 0] and last.name == "validation "


@pytest.mark.parametrize(("freq", "epochs"), [(1, [0, 1, 2, 3]), (2, [1, 3]), ([1, 4, 9], [0, 3]), ([], [])])
def test_validation_is_due(freq, epochs):
    validation = Validation(Batching(SOURCE, 5), freq)
    assert [epoch for epoch in range(4) if validation.is_due(epoch)] == epochs


CLASSES = np.array([0, 2, 1, 7])


@pytest.mark.parametrize(
    "y",
    [CLASSES, CLASSES[:, None], CLASSES + 0.2, np.eye(8)[CLASSES], CLASSES.astype("u1")],
    ids=["indices", "column", "floats", "one-hot", "bytes"],
)
def test_examples_weigh_what_their_classes_do(y):
    weights = weights_of_classes(y, {0: 2, 1: 0.5, np.int64(2): 3.0, 5: 9.0})
    assert weights.dtype == np.float32 and weights.tolist() == [2.0, 3.0, 0.5, 1.0]


@pytest.mark.parametrize("wrong", [[1.0, 2.0], {"a": 1.0}, {0: "heavy"}, 3.0], ids=str)
def test_weights_that_are_none_are_refused(wrong):
    with pytest.raises(DataError, match="`class_weight` must be a dict from class indices to finite weights") as caught:
        weights_of_classes(CLASSES, wrong)
    assert repr(wrong) in caught.value.given


@pytest.mark.parametrize(
    ("y", "given"),
    [
        (None, "y=None"),
        ([CLASSES, CLASSES], "y: a list for several outputs"),
        (np.zeros((4, 2, 3)), r"y: shape (4, 2, 3)"),
    ],
    ids=["none", "outputs", "steps"],
)
def test_classes_are_those_of_one_output(y, given):
    with pytest.raises(DataError, match="`class_weight` needs one output") as caught:
        weights_of_classes(y, {0: 1.0})
    assert caught.value.given == given


def test_classes_may_be_whole_floats():
    y = np.array([0.0, 1.0, 1.0])
    assert weights_of_classes(y, {0.0: 2.0, np.float32(1): 0.5}).tolist() == [2.0, 0.5, 0.5]
    for label in (0.5, np.nan, np.inf):
        with pytest.raises(DataError, match="`class_weight` must be a dict from class indices to finite weights"):
            weights_of_classes(y, {label: 2.0})


class _Billion:
    """10**9 examples, or batches, by number."""

    def __len__(self):
        return 10**9

    def __getitem__(self, index):
        return np.full((4, 1), index, "float32")


class _BillionBatches(_Billion, data.PyDataset):
    pass


@pytest.mark.parametrize(
    "x", [np.broadcast_to(np.float32(1), (10**9, 1)), _Billion(), _BillionBatches()], ids=["array", "rows", "batches"]
)
def test_a_billion_rows_in_order_take_no_array_of_their_numbers(x):
    source = source_of(x)
    examples = Batching(source, 32) if isinstance(source, RowSource) else Streaming(source)
    next(source.batches(32, 8) if isinstance(source, RowSource) else source.batches(8))  # imports what reads ahead
    tracemalloc.start()
    try:
        for _, batches in examples.epochs(range(2), multiple_of=8):
            assert len(list(itertools.islice(batches, 3))) == 3
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < 2**20
