"""Data that comes in batches: as they come, how many there are, and what is said of those that cannot be used."""

from typing import Any

import grain
import jax
import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from keras_dist.data import PyDataset
from keras_dist.data.batching import Streaming
from keras_dist.data.lookup import LookupSource
from keras_dist.data.streams import StreamSource
from keras_dist.errors import DataError
from keras_dist.models.fit_arguments import weighted_by_class
from tests import sources
from tests.data.rows import W, X, Y, assert_same, reads, source_of
from tests.sources import BATCHED, ONCE, Batches, Endless, Examples, TFDataset, TFTensor, TorchTensor


class TestStreams:
    @pytest.mark.parametrize(
        ("batch", "expected"),
        [
            (X, (X, None, None)),
            ((X,), (X, None, None)),
            ([X, Y], (X, Y, None)),
            ((X, Y, W), (X, Y, W)),
            ((X, None, W), (X, None, W)),
            ({"a": X, "b": [Y, {"c": W}]}, ({"a": X, "b": [Y, {"c": W}]}, None, None)),
            (((X, Y), {"out": Y}), ((X, Y), {"out": Y}, None)),
            ((pd.DataFrame(X), pd.Series(Y)), (X, Y, None)),
            ((scipy.sparse.csr_array(X), Y), (X, Y, None)),
            ((jax.numpy.asarray(X), TorchTensor(Y)), (X, Y, None)),
        ],
        ids=["x", "(x,)", "list", "weights", "no y", "dict", "nested", "pandas", "sparse", "mixed"],
    )
    def test_structures(self, batch, expected):
        assert_same(reads(source_of(iter([batch, batch]))), [expected, expected])

    def test_the_first_batch_is_drawn_alone_and_comes_again(self):
        drawn = []
        source = source_of(drawn.append(number) or (X[number : number + 1], Y[:1]) for number in range(3))
        source.example(8), source.example(1)
        assert drawn == [0]
        batches = source.batches(1)
        next(batches)
        assert drawn == [0]
        next(batches)
        assert drawn == [0, 1]
        assert [batch.rows for batch in batches] == [1]

    def test_weights_of_classes_draw_nothing_more(self):
        loader = sources.TorchLoader((X, Y), 8)
        source = weighted_by_class(source_of(loader), {1: 3.0})
        assert (loader.passes, loader.drawn) == (0, 0)
        assert len(source.x) == 8 and (loader.passes, loader.drawn) == (1, 1)
        weights = np.concatenate([weights for _, _, weights in reads(source)])
        np.testing.assert_array_equal(weights, np.where(Y == 1, 3, 1).astype("f4"))
        assert (loader.passes, loader.drawn) == (1, 3)

    @pytest.mark.parametrize(
        "y", [TorchTensor(Y), TFTensor(Y), pd.Series(Y), np.eye(3)[Y], scipy.sparse.csr_matrix(np.eye(3)[Y])]
    )
    def test_weights_of_classes_of_any_targets(self, y):
        expected = np.where(Y == 1, 3, 1).astype("f4")
        for x in (iter([(X, y)]), X):
            source = weighted_by_class(source_of(x) if x is not X else source_of(x, y), {1: 3.0})
            ((_, _, weights),) = reads(source) if isinstance(source, StreamSource) else [source.whole(1).arrays]
            np.testing.assert_array_equal(weights, expected)

    def test_weights_twice_are_refused(self):
        with pytest.raises(DataError, match="`class_weight` and `sample_weight`"):
            _ = weighted_by_class(source_of(iter([(X, Y, W)])), {1: 3.0}).x

    @pytest.mark.parametrize(
        ("batch", "message"),
        [
            ((X.astype("f8"), Y), "a batch differs from the first"),
            ((X[:, None], Y), "a batch differs from the first"),
            ((X,), "a batch differs from the first"),
            (({"a": X}, Y), "a batch differs from the first"),
            ((X, Y[:3]), "x and y must have one row each"),
            ((X[:0], Y[:0]), "is empty"),
            ((X.astype(object), Y), "x must hold numbers or booleans"),
            ((X, 3), "y must be an array"),
            ((X, np.int32(3)), "y must hold numbers or booleans"),
            ((X, Y, W, W), "the batch must be x, "),
            (None, "x holds no array"),
        ],
        ids=["dtype", "rank", "no y", "tree", "lengths", "empty", "object", "number", "scalar", "four", "none"],
    )
    def test_a_batch_that_cannot_be_used_is_named(self, batch, message):
        def batches() -> Any:
            yield from [(X, Y), (X, Y), batch]

        source = source_of(batches())
        with pytest.raises(DataError, match=message) as caught:
            reads(source)
        assert caught.value.__notes__[0].startswith("in batch 2 of <generator object") and caught.value.fix

    def test_so_is_the_first_of_a_later_pass(self):
        class Changing:
            x = X

            def __iter__(self) -> Any:
                yield self.x, Y
                self.x = X.astype("f8")

        source = source_of(Changing())
        reads(source)
        with pytest.raises(DataError, match="a batch differs from the first") as caught:
            reads(source)
        assert "float64" in caught.value.given and "float32" in caught.value.expected

    @pytest.mark.parametrize("workers", [1, 2])
    @pytest.mark.parametrize("error", [OSError, IndexError, StopIteration, KeyError])
    def test_what_a_source_raises_says_where(self, error, workers):
        class Broken(Batches):
            def __getitem__(self, index: int) -> Any:
                if index == 1:
                    raise error("no disk")
                return super().__getitem__(index)

        source = source_of(Broken((X, Y), 8, workers=workers))
        batches = source.batches(1)
        next(batches)
        with pytest.raises(RuntimeError if error is StopIteration else error) as caught:
            next(batches)
        assert any(note.startswith("in batch 1 of <") and "Broken" in note for note in caught.value.__notes__)

    def test_threads_leave_no_batch_out(self):
        class Hole(Batches):
            def __getitem__(self, index: int) -> Any:
                return None if index == 1 else super().__getitem__(index)

        with pytest.raises(DataError, match="x holds no array"):
            reads(source_of(Hole((X, Y), 8, workers=2)))

    @pytest.mark.parametrize(
        "x", [iter([]), TFDataset((X[:0], Y[:0]), 8), Batches((X[:0], Y[:0]), 8)], ids=lambda x: type(x).__name__
    )
    def test_there_is_at_least_one_batch(self, x):
        with pytest.raises(DataError, match="the data have no batch") as caught:
            _ = source_of(x).x
        assert type(x).__name__ in caught.value.given


class TestLengths:
    @pytest.mark.parametrize("kind", BATCHED)
    def test_what_is_told(self, kind):
        source = source_of(BATCHED[kind]((X, Y), 8))
        unknown = (*ONCE, "tf.data of unknown length", "refilled", "grain iter", "grain loader")
        assert source.num_batches == (None if kind in unknown else 3)
        assert not source.is_endless

    @pytest.mark.parametrize(
        "x",
        [
            TFDataset((X, Y), 8, cardinality=-1),
            Endless((X, Y), 8),
            grain.MapDataset.source(Examples((X, Y))).batch(8).repeat(),
            grain.MapDataset.source(Examples((X, Y))).repeat().batch(8),
        ],
        ids=["tf.data", "PyDataset", "grain", "grain batched"],
    )
    def test_what_never_ends_needs_steps(self, x):
        source = source_of(x)
        with pytest.raises(DataError, match="`steps_per_epoch` is missing") as caught:
            Streaming(source, None, "steps_per_epoch")
        assert "never end" in caught.value.given
        ((_, batches), (_, others)) = ((epoch, list(b)) for epoch, b in Streaming(source, 4).epochs(range(2), 1))
        assert [len(batches), len(others)] == [4, 4]

    def test_a_length_that_is_not_known_is_none(self):
        class Unknown(sources.Refilled):
            def __len__(self) -> int:
                raise NotImplementedError

        assert source_of(Unknown((X, Y), 8)).num_batches is None


class TestNumbered:
    def test_a_method_of_that_name_is_another_thing(self):
        class Table:
            def num_batches(self) -> int:
                return 7

            def __len__(self) -> int:
                return 3

            def __getitem__(self, index: int) -> Any:
                return np.float32(index)

        assert isinstance(source_of(Table()), LookupSource)

    def test_those_of_an_endless_one_are_not(self):
        batches = source_of(Endless((np.arange(50), Y[:1].repeat(50)), 1)).batches(1, (1,))
        assert [int(next(batches).arrays[0][0]) for _ in range(60)] == [*range(50), *range(10)]

    def test_how_many_there_are_may_change(self):
        class Growing(Batches):
            def on_epoch_end(self) -> None:
                self.batches.append(self.batches[0])

        epochs = Streaming(source_of(Growing((X, Y), 8))).epochs(range(3), 1)
        assert [len(list(batches)) for _, batches in epochs] == [3, 4, 5]


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
    source = source_of(iter("abc"))
    assert [item for _ in "abc" for item in (source.first(), next(source.open(None)))] == list("aabbcc")
