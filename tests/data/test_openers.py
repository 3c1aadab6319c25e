"""What goes wrong in a data set, and where."""

import numpy as np
import pytest

from keras_dist.data import PyDataset
from keras_dist.data.openers import Once
from keras_dist.data.recognition import source_of


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_shuffled_py_dataset_raises_says_at_which_index(workers):
    class Broken(PyDataset):
        def __len__(self):
            return 10

        def __getitem__(self, index):
            if index == 2:
                raise OSError("no disk")
            return np.zeros((2, 1))

    order = np.arange(10)
    np.random.default_rng(np.random.SeedSequence((3,))).shuffle(order)
    place = order.tolist().index(2)
    with pytest.raises(OSError, match="no disk") as caught:
        list(source_of(Broken(workers=workers)).batches(1, (3,)))
    assert place != 2
    for words in (f"in batch {place} of <", "in __getitem__(2) of <"):
        assert any(note.startswith(words) for note in caught.value.__notes__)


def test_looking_ahead_takes_nothing():
    opener = Once(iter("abc"))
    seen = []
    while not opener.is_over():
        assert not opener.is_over()
        seen += [opener.first(), next(opener.open(None))]
    assert seen == list("aabbcc")
