"""What data may be: recognised by what it can do, taken by number, checked where it is read."""

import time
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from jax.experimental.sparse import BCOO

from keras_dist.data.adapters import is_data_set
from keras_dist.data.arrays import ArraySource
from keras_dist.data.batching import Batching
from keras_dist.data.lookup import LookupSource
from keras_dist.data.source import register_source, registered
from keras_dist.data.streams import IterableSource, IteratorSource, NumberedSource
from keras_dist.errors import DataError
from keras_dist.models.fit_arguments import batching, validation_source
from tests.data.rows import W, X, Y, assert_same, reads, source_of
from tests.sources import BATCHED, BY_NUMBER, ONCE, Batches, Examples, TFTensor, TorchTensor


class TestRecognition:
    @pytest.mark.parametrize("kind", BATCHED)
    def test_batches(self, kind):
        x = BATCHED[kind]((X, Y), 8)
        source = source_of(x)
        is_numbered = kind.startswith("PyDataset")
        assert type(source) is (IteratorSource if kind in ONCE else NumberedSource if is_numbered else IterableSource)
        assert is_data_set(x)

    @pytest.mark.parametrize("kind", BY_NUMBER)
    def test_examples(self, kind):
        assert type(source_of(BY_NUMBER[kind]((X, Y)))) is LookupSource

    @pytest.mark.parametrize(
        "x",
        [
            X,
            [X, X],
            (X,),
            {"a": X},
            jax.numpy.asarray(X),
            TorchTensor(X),
            TFTensor(X),
            pd.DataFrame(X),
            pd.Series(Y),
            scipy.sparse.csr_matrix(X),
            scipy.sparse.coo_array(X),
            BCOO((X.ravel(), np.indices(X.shape).reshape(2, -1).T), shape=X.shape),  # `fromdense` compiles
        ],
        ids=lambda x: type(x).__name__,
    )
    def test_arrays(self, x):
        source = source_of(x)
        assert type(source) is ArraySource and not is_data_set(x)
        whole = np.asarray(jax.tree.leaves(source.whole(1).arrays)[0])
        np.testing.assert_array_equal(whole, Y if isinstance(x, pd.Series) else X)

    @pytest.mark.parametrize(
        "x",
        [3, 1.5, "digits.csv", b"bytes", object(), Examples, Batches],
        ids=lambda x: type(x).__name__ + getattr(x, "__name__", ""),
    )
    def test_what_holds_no_examples_is_told_what_does(self, x):
        with pytest.raises(DataError, match=r"x must be arrays, tables, .* or examples by number") as caught:
            source_of(x)
        assert f"of type {type(x).__name__}" in caught.value.given
        for taken in ("arrays", "sparse", "PyDataset", "tf.data", "torch", "grain", "generator", "__getitem__"):
            assert taken in caught.value.summary

    def test_validation_data_is_called_so(self):
        source = validation_source(iter([(X, Y), (X, Y[:3])]))
        with pytest.raises(DataError, match="validation x and validation y must have one row each") as caught:
            reads(source)
        assert "in batch 1 of validation <list_iterator" in caught.value.__notes__[0]
        assert type(validation_source(Examples((X, Y)))) is LookupSource
        assert type(validation_source([X, Y, W])) is ArraySource


class TestLookup:
    @pytest.mark.parametrize("kind", BY_NUMBER)
    @pytest.mark.parametrize("multiple_of", [1, 8])
    def test_rows_are_those_of_arrays(self, kind, multiple_of):
        arrays = ({"a": X, "b": [W]}, Y, W)
        source, expected = source_of(BY_NUMBER[kind](arrays)), ArraySource(*arrays)
        for key in (None, (1, 2)):
            found = list(source.batches(7, multiple_of, key))
            others = list(expected.batches(7, multiple_of, key))
            assert [batch.rows for batch in found] == [batch.rows for batch in others] == [7, 7, 6]
            assert_same([batch.arrays for batch in found], [batch.arrays for batch in others])
            assert [batch.form for batch in found] == [batch.form for batch in others]
        assert_same(source.whole(8).arrays, expected.whole(8).arrays)

    @pytest.mark.parametrize(
        ("example", "shape", "dtype"),
        [
            (3, (), "i8"),
            (0.5, (), "f8"),
            (True, (), "?"),
            (np.float32(1), (), "f4"),
            (np.ones((2, 3), "u1"), (2, 3), "u1"),
            (jax.numpy.ones(2), (2,), "f4"),
            (TorchTensor(np.ones(2)), (2,), "f8"),
            (TorchTensor(np.float32(1)), (), "f4"),
            (TFTensor(np.ones(2, "f4")), (2,), "f4"),
            (scipy.sparse.csr_array(np.eye(3, dtype="f4"))[1], (3,), "f4"),
            (scipy.sparse.csr_matrix(np.eye(3, dtype="f4"))[1], (1, 3), "f4"),
        ],
        ids=lambda value: type(value).__name__ if hasattr(value, "shape") else str(value),
    )
    def test_an_example_may_be(self, example, shape, dtype):
        class Constant(Examples):
            def __getitem__(self, index: int) -> Any:
                return {"x": example}

        x = source_of(Constant((X,))).whole(1).arrays[0]["x"]
        assert x.shape == (20, *shape) and x.dtype == dtype

    @pytest.mark.parametrize("multiple_of", [1, 8])
    def test_full_batches_come_in_stacks(self, multiple_of):
        batches = list(source_of(Examples((X, Y))).batches(6, multiple_of, stack=2))  # three full ones and one of 2
        assert [(batch.stacked, batch.rows) for batch in batches] == [(2, 6), (None, 6), (None, 2)]

    @pytest.mark.parametrize(
        "wrong", ["text", np.array(["a"]), object(), np.array([None])], ids=["text", "texts", "object", "objects"]
    )
    def test_what_an_example_may_not_be(self, wrong):
        class Constant(Examples):
            def __getitem__(self, index: int) -> Any:
                return {"a": wrong}, 1

        with pytest.raises(DataError, match=r"x\['a'\]") as caught:
            source_of(Constant((X,)))
        assert "in example 0 of <" in caught.value.__notes__[0]

    def test_nor_an_empty_data_set(self):
        with pytest.raises(DataError, match="the dataset is empty") as caught:
            source_of(Examples((X[:0], Y[:0])))
        assert "Examples" in caught.value.given

    @pytest.mark.parametrize(
        ("example", "error", "message"),
        [
            ((X[0].astype("f8"), Y[0]), DataError, "an example differs from the first"),
            ((X[0, :1], Y[0]), DataError, "an example differs from the first"),
            (X[0], DataError, "an example differs from the first"),
            (None, OSError, "no disk"),
        ],
        ids=["dtype", "shape", "tree", "raises"],
    )
    def test_an_example_that_is_another_is_named(self, example, error, message):
        class Odd(Examples):
            def __getitem__(self, index: int) -> Any:
                if index == 13 and example is None:
                    raise OSError("no disk")
                return example if index == 13 else super().__getitem__(index)

        with pytest.raises(error, match=message) as caught:
            list(source_of(Odd((X, Y))).batches(8, 1))
        assert any(note.startswith("in example 13 of <") and "Odd" in note for note in caught.value.__notes__)

    def test_nothing_is_read_while_something_is(self):
        """A file is sought and read: from two threads at once, rows would come mixed up."""

        class File(Examples):
            place = -1

            def __getitem__(self, index: int) -> Any:
                self.place = index
                time.sleep(1e-4)  # other threads have their turn
                return np.asarray(self.place, "f4")

        rows = 300
        for _ in range(3):
            found = [batch.arrays[0] for batch in source_of(File((np.arange(rows),))).batches(16, 1)]
            np.testing.assert_array_equal(np.concatenate(found), np.arange(rows))


class TestSparse:
    @pytest.mark.parametrize("form", ["csr_matrix", "csr_array", "coo_matrix", "coo_array", "csc_matrix", "lil_matrix"])
    def test_rows_become_dense_where_they_are_taken(self, form):
        matrix = getattr(scipy.sparse, form)(X * (X % 3 == 0))
        source, expected = source_of(matrix, Y), ArraySource(matrix.toarray(), Y)
        assert source.length == 20
        for stack in (1, 2):
            for one, other in zip(source.batches(6, 4, (1,), stack), expected.batches(6, 4, (1,), stack), strict=True):
                assert_same(one.arrays, other.arrays)
        for one, other in zip(source.split(15), expected.split(15), strict=True):
            assert_same(one.whole(1).arrays, other.whole(1).arrays)

    def test_a_vector_is_an_array(self):
        assert_same(source_of(scipy.sparse.coo_array(W)).whole(1).arrays, (W, None, None))

    def test_lengths_count_its_rows(self):
        with pytest.raises(DataError, match="x and y must have one row each") as caught:
            source_of(scipy.sparse.csr_matrix(X), Y[:19])
        assert "20 rows" in caught.value.given


class TestPandas:
    def test_columns_and_tables(self):
        frame = pd.DataFrame({"a": W, "b": Y.astype("f4")}, index=np.arange(20)[::-1])
        source = source_of({"table": frame, "column": frame["a"]}, pd.DataFrame({"y": Y}), pd.Series(W))
        (batch,) = source.batches(20, 1)
        expected = ({"table": np.stack([W, Y.astype("f4")], 1), "column": W}, Y[:, None], W)
        assert_same(batch.arrays, expected)

    def test_numbers_alone(self):
        for column in (["a"] * 20, [True, None] * 10, pd.Timestamp("2026-01-01")):
            with pytest.raises(DataError, match=r"x\['t'\] must hold numbers or booleans"):
                source_of({"t": pd.DataFrame({"a": W, "b": column})})


def test_steps_make_the_default_batch_size():
    for steps, size in ((3, 7), (None, 32)):
        examples = batching(source_of(Examples((X, Y))), None, steps)
        assert isinstance(examples, Batching) and examples.batch_size == size


def test_sources_that_cannot_recognise_are_named():
    class Mute:
        pass

    class Fails(ArraySource):
        @classmethod
        def recognises(cls, x):
            return x.no_such_attribute

    for wrong in (Mute, 3):
        with pytest.raises(DataError, match=r"`source` must be a class with a class method recognises"):
            register_source(wrong)  # type: ignore[type-var]
    kept = list(registered)
    try:
        register_source(Fails)
        with pytest.raises(
            DataError, match=r"Fails.recognises\(x\) must return True or False for any x\n.*no_such_attribute"
        ):
            is_data_set(np.ones(3))
    finally:
        registered[:] = kept
