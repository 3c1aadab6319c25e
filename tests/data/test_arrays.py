"""Batches from arrays: every row once, padded to what the mesh divides, never the caller's memory."""

import re

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from keras_dist.data import ArraySource
from keras_dist.data.conversion import check_batch_size
from keras_dist.errors import DataError

X = np.arange(40, dtype="f4").reshape(20, 2)


def test_lists_of_numbers_are_arrays():
    source = ArraySource({"a": X.tolist(), "b": [X.tolist(), X]}, tuple(range(20)))
    x, y, _ = source.arrays
    np.testing.assert_array_equal(x["a"], X)
    assert [one.shape for one in x["b"]] == [(20, 2), (20, 2)] and y.dtype == np.int64


def test_the_order_follows_from_the_key():
    def order(key):
        return [batch.arrays[0].tolist() for batch in ArraySource(np.arange(100)).batches(10, 1, key)]

    assert order((1, 2)) == order((1, 2))
    assert order((1, 2)) != order((1, 3))


@pytest.mark.parametrize("key", [None, (1,)])
def test_batches_never_share_the_callers_memory(key):
    source = ArraySource(X)
    batches = [*source.batches(20, 1, key), source.whole(1), source.whole(8)]
    assert not any(np.shares_memory(batch.arrays[0], X) for batch in batches)


KINDS = {
    "bool": X.astype(bool),
    "int64": X.astype("i8"),
    "uint8": X.astype("u1"),
    "float64": X.astype("f8"),
    "float16": X.astype("f2"),
    "bfloat16": X.astype(ml_dtypes.bfloat16),
    "complex": X.astype("c8"),
    "jax": jnp.asarray(X),
    "strided": X[::2],
    "reversed": X[:, ::-1],
    "fortran": np.asfortranarray(X),
}


@pytest.mark.parametrize("x", KINDS.values(), ids=KINDS)
def test_numbers_of_every_kind(x):
    (batch,) = ArraySource(x).batches(100, 1)
    assert batch.arrays[0].dtype == x.dtype
    np.testing.assert_array_equal(batch.arrays[0], np.asarray(x))


@pytest.mark.parametrize(
    ("x", "name", "given"),
    [
        (np.array([1, "a"], object), "x must hold numbers or booleans", "dtype object"),
        (np.array(["a", "b"]), "x must hold numbers or booleans", "<U1"),
        (np.array(["2026-01-01"], "datetime64[D]"), "x must hold numbers or booleans", "datetime64"),
        (np.float32(3), "x must hold numbers or booleans", r"shape \(\)"),
        ({"image": X, "name": np.array(["a"] * 20)}, r"x\['name'\] must hold numbers or booleans", "<U1"),
        ([["a"], ["b"]], r"x\[0\]\[0\] must be an array", "'a' of type str"),
        ("digits.csv", "x must be an array", "digits.csv"),
        ((row for row in X), "x must be an array", "generator"),
        (None, "x holds no array", "None"),
        ({}, "x holds no array", "{}"),
        (X[:0], "the dataset is empty", "x with 0 rows"),
    ],
    ids=["object", "string", "date", "scalar", "leaf", "lists", "path", "generator", "none", "no leaves", "empty"],
)
def test_what_cannot_be_batched_is_refused_by_name(x, name, given):
    with pytest.raises(DataError, match=name) as caught:
        ArraySource(x)
    assert re.search(given, caught.value.given)
    assert caught.value.given and caught.value.fix


@pytest.mark.parametrize(
    ("arrays", "names"),
    [
        ((X, X[:19]), "x and y must have one row each"),
        ((X, X, np.ones(21)), "x and sample_weight must have one row each"),
        ((X, {"a": X, "b": X[:3]}), r"x and y\['b'\] must have one row each"),
        (({"u": X, "v": X[1:]},), r"x\['u'\] and x\['v'\] must have one row each"),
    ],
)
def test_lengths_that_differ_are_named_with_both_numbers(arrays, names):
    with pytest.raises(DataError, match=names) as caught:
        ArraySource(*arrays)
    assert "20 rows" in caught.value.given


@pytest.mark.parametrize("given", [0, -1, 2.0, "32", True, np.float32(8)])
def test_a_batch_size_that_is_none_is_refused(given):
    with pytest.raises(DataError, match="`batch_size`") as caught:
        check_batch_size(given)
    assert repr(given) in caught.value.given
