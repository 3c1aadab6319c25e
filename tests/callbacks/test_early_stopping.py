"""`EarlyStopping`: when it ends training, and with which weights."""

import math
import types
from typing import Any

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.callbacks import Callback, EarlyStopping
from keras_dist.errors import ModelError
from tests import layouts
from tests.networks import Noisy, Plain, blobs

LOSS = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
X, Y = blobs(24)


class Weights(Callback):
    """The weights after each epoch; they get worse after the epoch `best`."""

    def __init__(self, best=1):
        super().__init__()
        self.best = best
        self.after = []

    def on_epoch_end(self, epoch, logs: Any = None):
        self.after.append(self.model.get_weights())
        logs["quality"] = -abs(epoch - self.best)


def first_score(y_true, y_pred):
    return y_pred[:, 0]


def model_of(network, metrics=None):
    with layouts.on("data=4,model=2").scope():
        model = kd.Model.from_nnx(network, seed=0)
    model.compile("sgd", loss=LOSS, metrics=metrics)
    return model


@pytest.fixture(scope="module")
def model():
    return model_of(Plain, ["accuracy", "sparse_categorical_crossentropy", first_score])


def run(stopping, values, name="loss", model=None):
    """Drive the hooks; how many epochs there were."""
    model = model or types.SimpleNamespace(metrics=[])
    model.stop_training = False
    stopping.set_model(model)
    stopping.on_train_begin()
    epoch = -1
    for epoch, value in enumerate(values):
        stopping.on_epoch_end(epoch, {name: value})
        if model.stop_training:
            break
    stopping.on_train_end()
    return epoch + 1


def test_it_ends_fit(model):
    stopping = EarlyStopping(monitor="quality", mode="max", patience=2)
    history = model.fit(X, Y, epochs=9, verbose=0, callbacks=[Weights(best=1), stopping])
    assert history.epoch == [0, 1, 2, 3]
    assert (stopping.stopped_epoch, stopping.best, stopping.best_epoch) == (3, 0, 1)
    history = model.fit(X, Y, epochs=9, verbose=0, callbacks=[Weights(best=1), stopping])
    assert history.epoch == [0, 1, 2, 3], "a second fit starts anew"


def test_the_best_weights_are_restored_whether_or_not_it_stopped():
    model = model_of(Noisy)
    for epochs in (3, 9):
        weights = Weights(best=1)
        stopping = EarlyStopping(monitor="quality", mode="max", patience=2, restore_best_weights=True)
        model.fit(X, Y, epochs=epochs, verbose=0, callbacks=[weights, stopping])
        for found, expected in zip(model.get_weights(), weights.after[1], strict=True):
            if found.dtype != np.uint32:  # random streams go on
                np.testing.assert_array_equal(found, expected)
        assert any((a != b).any() for a, b in zip(weights.after[1], weights.after[-1], strict=True))


def test_nan_is_never_the_best():
    stopping = EarlyStopping(monitor="loss", patience=2)
    assert run(stopping, [math.nan, 2.0, 1.0, math.nan, math.nan, 0.5]) == 5
    assert stopping.best == 1.0


@pytest.mark.parametrize(
    ("monitor", "rises"),
    [
        ("loss", False),
        ("val_loss", False),
        ("accuracy", True),
        ("val_accuracy", True),
        ("val_sparse_categorical_crossentropy", False),
    ],
)
def test_auto_asks_the_metric_for_its_direction(model, monitor, rises):
    stopping = EarlyStopping(monitor=monitor)
    stopping.set_model(model)
    stopping.on_train_begin()
    assert stopping.is_improvement(2.0, 1.0) is rises
    assert stopping.is_improvement(1.0, 2.0) is not rises


def test_auto_knows_metrics_of_several_outputs():
    inputs = kd.Input((3,))
    model = kd.Model(inputs, {"a": kd.layers.Dense(1)(inputs), "b": kd.layers.Dense(2)(inputs)})
    model.compile("sgd", loss="mse", metrics={"a": ["mae"], "b": ["accuracy"]})
    stopping = EarlyStopping(monitor="val_b_accuracy")
    stopping.set_model(model)
    stopping.on_train_begin()
    assert stopping.is_improvement(2.0, 1.0)


@pytest.mark.parametrize("monitor", ["unknown", "first_score"])
def test_auto_without_a_direction_raises_before_the_first_epoch(model, monitor):
    with pytest.raises(ModelError, match="the better direction of") as error:
        model.fit(X, Y, verbose=0, callbacks=[EarlyStopping(monitor=monitor)])
    assert monitor in error.value.given and "mode='max'" in error.value.fix


def test_a_value_that_is_not_there_warns_with_those_that_are(model):
    with pytest.warns(UserWarning, match=r"metric `val_loss` which is not available.*: loss,accuracy,"):
        model.fit(X, Y, verbose=0, callbacks=[EarlyStopping()])


def test_a_name_that_is_not_known_is_corrected(model):
    with pytest.raises(ModelError, match=r"is not known \(did you mean 'val_loss'\?\)"):
        model.fit(X, Y, verbose=0, callbacks=[EarlyStopping("val_losss")])
    with pytest.warns(UserWarning, match=r"are: val_loss \(did you mean 'val_loss'\?\)$") as caught:
        run(EarlyStopping("val_losss", mode="min"), [1.0, 1.0, 1.0], "val_loss")
    assert len(caught) == 1


def test_an_unknown_mode_counts_as_auto():
    with pytest.warns(UserWarning, match="EarlyStopping mode 'maximum' is unknown"):
        assert EarlyStopping(mode="maximum").mode == "auto"


def test_a_value_of_one_number_in_an_array_is_compared():
    stopping = EarlyStopping(monitor="f1", mode="max")
    run(stopping, [np.ones(1), np.zeros(1)], "f1")
    assert stopping.best == 1.0


def test_a_value_of_several_numbers_is_refused():
    with pytest.raises(ModelError, match="`f1` must be a scalar") as error:
        run(EarlyStopping(monitor="f1", mode="max"), [np.ones(3)], "f1")
    assert "(3,)" in error.value.given


@pytest.mark.parametrize(
    ("argument", "value"), [("patience", 1.5), ("start_from_epoch", -1), ("baseline", "x"), ("min_delta", math.nan)]
)
def test_arguments_out_of_range(argument, value):
    with pytest.raises(ModelError) as error:
        EarlyStopping(**{argument: value})
    assert argument in str(error.value) and repr(value) in error.value.given
