"""Integers of 64 bits that 32 do not hold are refused, by the names of the input and the row."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import DataError

IDS = np.arange(32).reshape(8, 4) % 10
HASHED = IDS.copy()
HASHED[5, 2] = 2**32 + 3
Y = np.arange(8) % 2


@pytest.fixture(scope="module")
def model() -> Any:
    ids = kd.Input((4,), dtype="int32", name="ids")
    vectors = layers.GlobalAveragePooling1D()(layers.Embedding(10, 2)(ids))
    model = kd.Model({"ids": ids}, layers.Dense(2)(vectors))
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def batches() -> Iterator[Any]:
    yield {"ids": IDS}, Y
    yield {"ids": HASHED}, Y


class Examples:
    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, index: int) -> Any:
        return {"ids": HASHED[index]}, Y[index]


@pytest.mark.parametrize(
    "run",
    [
        lambda model, x: model.fit(x, Y, verbose=0),
        lambda model, x: model.fit({"ids": IDS}, Y, validation_data=(x, Y), verbose=0),
        lambda model, x: model.evaluate(x, Y, verbose=0),
        lambda model, x: model.predict(x, verbose=0),
        lambda model, x: model.train_on_batch(x, Y),
        lambda model, x: model.test_on_batch(x, Y),
        lambda model, x: model.predict_on_batch(x),
        lambda model, x: model.fit(batches(), verbose=0),
    ],
)
def test_inputs(model: Any, run: Any) -> None:
    with pytest.raises(DataError, match=r"x\['ids'\] holds an integer that does not fit int32") as error:
        run(model, {"ids": HASHED})
    assert "4294967299 in row 5 of" in str(error.value)


def test_calls(model: Any) -> None:
    with pytest.raises(DataError, match=r"inputs\['ids'\] of layer 'functional' .*\n.*4294967299 in row 5"):
        model({"ids": HASHED})
    with pytest.raises(DataError, match=r"inputs of layer 'embedding' .*\n.*-8589934592 in row 1"):
        layers.Embedding(10, 2)(np.array([3, -(2**33)]))


def test_targets_weights_and_examples(model: Any) -> None:
    for y, weights, name in ((Y + 2**31, None, "y"), (Y, np.full(8, 2**40), "sample_weight")):
        with pytest.raises(DataError, match=f"^{name} holds an integer that does not fit int32"):
            model.fit({"ids": IDS}, y, sample_weight=weights, verbose=0)
    with pytest.raises(DataError, match="fit uint32"):
        model.fit({"ids": IDS}, Y.astype(np.uint64) + 2**32, verbose=0)
    with pytest.raises(DataError, match="4294967299") as error:
        model.evaluate(Examples(), batch_size=4, verbose=0)
    assert any("example 5 of" in note for note in error.value.__notes__)


def test_files_and_sparse_matrices(model: Any, tmp_path: Any) -> None:
    sparse = pytest.importorskip("scipy.sparse").csr_matrix(HASHED)
    file = np.memmap(tmp_path / "ids", np.int64, "w+", shape=HASHED.shape)
    file[:] = HASHED
    for x in (sparse, file):
        with pytest.raises(DataError, match="4294967299 in row 5"):
            model.predict({"ids": x}, batch_size=3, verbose=0)
    with pytest.raises(DataError, match="4294967299 in row 5"):
        model.fit({"ids": file}, Y, batch_size=3, verbose=0)  # kept on the devices


def test_what_fits_passes() -> None:
    ends = np.array([[-(2**31)], [2**31 - 1]])
    assert kd.Sequential([layers.Identity()]).predict(ends, verbose=0).tolist() == ends.tolist()


def test_variables_refuse_what_does_not_fit_too() -> None:
    variable = kd.Variable(np.zeros(1, np.int32))
    for value in (np.array([2**32 + 5]), [2**32 + 5]):
        with pytest.raises(DataError, match="4294967301 in row 0"):
            variable.assign(value)
    with pytest.raises(DataError, match="4294967301 in row 0"):
        kd.Variable(np.array([2**32 + 5]))
    assert kd.Variable(np.arange(3).astype(">i4")).numpy().tolist() == [0, 1, 2]


def test_lists_of_integers_are_indices() -> None:
    embedding = layers.Embedding(5, 2)
    assert embedding([[3, 4]]).shape == (1, 2, 2)
    with pytest.raises(DataError, match="out of range for `embeddings`"):
        embedding([[2**32 + 3]])
