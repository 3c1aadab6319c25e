"""Rows as Hugging Face gives them, if nothing else is asked for: dicts of numbers and lists of numbers."""

import numpy as np
import pytest

from keras_dist.data.adapters import source_of
from keras_dist.data.lookup import LookupSource
from keras_dist.errors import DataError


class Table:
    """A `datasets.Dataset` in its default format."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

    def __getitems__(self, numbers):
        return [self.rows[number] for number in numbers]

    def __iter__(self):
        return iter(self.rows)


def test_lists_of_numbers_are_arrays():
    rows = [{"image": [[n, n + 1.0], [2.0, 3.0]], "more": {"b": [n]}, "label": n} for n in range(5)]
    source = source_of(Table(rows))
    (batch,) = source.batches(5, 1)
    x = batch.arrays[0]
    assert type(source) is LookupSource
    assert (x["image"].shape, x["more"]["b"].shape, x["label"].shape) == ((5, 2, 2), (5, 1), (5,))
    np.testing.assert_array_equal(x["image"], [row["image"] for row in rows])


def test_lists_of_arrays_are_several_inputs():
    (batch,) = source_of(Table([{"both": [np.ones(2), np.zeros(3)]}])).batches(1, 1)
    assert [leaf.shape for leaf in batch.arrays[0]["both"]] == [(1, 2), (1, 3)]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"image": [[1, 2], [3]]}], r"the lists in x\['image'\] must have one length"),
        ([{"ids": [1, 2]}, {"ids": [1]}], "differs from the first"),
        ([{"text": "a word"}], r"x\['text'\] must hold numbers or booleans"),
        ([{"ids": [1, None]}], r"x\['ids'\] must hold numbers or booleans"),
    ],
)
def test_rows_without_one_shape(rows, words):
    with pytest.raises(DataError, match=words):
        list(source_of(Table(rows)).batches(2, 1))
