"""Arguments that make no sense are refused by name, not taken or left to JAX and numpy."""

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import KerasDistError

X, Y = np.ones((8, 4), np.float32), np.ones((8, 1), np.float32)


class Unshowable:
    """Its repr fails."""

    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.fixture(scope="module")
def model():
    model = kd.Sequential([kd.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"epochs": True}, "`epochs`"),
        ({"validation_data": (X, Y), "validation_freq": []}, "`validation_freq`"),
        ({"sample_weight": np.array([1, 1, np.nan, 1, 1, 1, 1, 1])}, "sample_weight must be finite\n.*nan in row 2"),
        ({"class_weight": {1: float("nan")}}, "`class_weight`"),
        ({"batch_size": Unshowable()}, "whose __repr__ raises RuntimeError"),
    ],
)
def test_fit_refuses(model, arguments, words):
    with pytest.raises(KerasDistError, match=words):
        model.fit(X, Y, verbose=0, **arguments)


def test_a_batch_without_rows_midway(model):
    batches = [(X, Y), (X[:0], Y[:0]), (X, Y)]
    with pytest.raises(KerasDistError, match="the batch is empty") as caught:
        model.fit(iter(batches), verbose=0)
    assert any(note.startswith("in batch 1 of") for note in caught.value.__notes__)


def test_the_byte_order_of_arrays_changes_nothing(model):
    swapped = X.astype(">f4")
    expected = model.predict(X, verbose=0)
    np.testing.assert_array_equal(model.predict(swapped, verbose=0), expected)
    np.testing.assert_array_equal(model(swapped), model(X))
    assert kd.losses.MeanSquaredError()(swapped, X) == 0
    assert kd.layers.Flatten()(swapped).shape == (8, 4)
