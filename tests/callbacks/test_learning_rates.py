"""`ReduceLROnPlateau` and `LearningRateScheduler`: the rates they set, log and cannot set."""

import copy
import math
from typing import Any

import numpy as np
import optax
import pytest

import keras_dist as kd
from keras_dist.callbacks import Callback, LearningRateScheduler, ReduceLROnPlateau
from keras_dist.errors import ModelError
from tests.networks import Plain, blobs

LOSS = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
X, Y = blobs(8)


class Values(Callback):
    """Puts these in the place of losses."""

    def __init__(self, values):
        super().__init__()
        self.values = values

    def on_epoch_end(self, epoch, logs: Any = None):
        logs["loss"] = self.values[epoch]


def compiled(optimizer):
    model = kd.Model.from_nnx(Plain, seed=0)
    model.compile(optimizer, loss=LOSS)
    return model


@pytest.fixture(scope="module")
def shared():
    return compiled(kd.optimizers.SGD(1.0))


@pytest.fixture
def model(shared):
    shared.optimizer.learning_rate = 1.0
    return shared


@pytest.fixture(scope="module")
def both():
    return compiled({"d1": kd.optimizers.SGD(1.0), "d2": kd.optimizers.Adam(0.5)})


@pytest.fixture
def several(both):
    both.optimizers["d1"].learning_rate, both.optimizers["d2"].learning_rate = 1.0, 0.5
    return both


def fit(model, callback, epochs, values=None, **kwargs):
    callbacks = [callback] if values is None else [Values(values), callback]
    return model.fit(X, Y, epochs=epochs, verbose=0, callbacks=callbacks, **kwargs).history


class TestReduceLROnPlateau:
    def test_the_rate_falls_when_the_loss_does_not(self, model, capsys):
        reduce = ReduceLROnPlateau(monitor="loss", factor=0.5, patience=2, verbose=1)
        history = fit(model, reduce, 6, [3.0, 2.0, 2.0, 2.0, 2.0, 2.0])
        assert history["learning_rate"] == [1.0, 1.0, 1.0, 1.0, 0.5, 0.5]
        assert model.optimizer.learning_rate == 0.25
        assert reduce.best == 2.0
        assert capsys.readouterr().out.startswith("\nEpoch 4: ReduceLROnPlateau reducing learning rate to 0.5.\n")

    def test_all_optimizers(self, several, capsys):
        reduce = ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, verbose=1)
        history = fit(several, reduce, 3, [1.0] * 3)
        assert history["learning_rate_d1"] == [1.0, 1.0, 0.5]
        assert history["learning_rate_d2"] == [0.5, 0.5, 0.25]
        assert "Epoch 2: ReduceLROnPlateau reducing d2 learning rate to 0.25." in capsys.readouterr().out

    def test_a_second_fit_starts_anew(self, model):
        reduce = ReduceLROnPlateau(monitor="loss", factor=0.5, patience=2)
        fit(model, reduce, 2, [1.0] * 2)
        fit(model, reduce, 2, [1.0] * 2)
        assert model.optimizer.learning_rate == 1.0

    def test_a_value_that_is_not_there(self, model):
        with pytest.warns(UserWarning, match=r"reduction is conditioned on metric `val_loss` which is not available"):
            fit(model, ReduceLROnPlateau(), 1)

    @pytest.mark.parametrize(
        ("argument", "value"),
        [("factor", 1.0), ("patience", -1), ("cooldown", 0.5), ("min_lr", -1.0), ("min_delta", math.inf)],
    )
    def test_arguments_out_of_range(self, argument, value):
        with pytest.raises(ModelError) as error:
            ReduceLROnPlateau(**{argument: value})
        assert argument in str(error.value) and repr(value) in error.value.given


class TestLearningRateScheduler:
    @pytest.mark.parametrize(
        "schedule",
        [
            lambda epoch: 0.5**epoch,
            lambda epoch, rate: np.float32(0.5**epoch),
            lambda epoch, rate: np.array(0.5**epoch),
            kd.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5),
        ],
    )
    def test_schedules_of_the_epoch_alone_and_rates_of_any_type(self, model, schedule):
        assert fit(model, LearningRateScheduler(schedule), 3)["learning_rate"] == [1.0, 0.5, 0.25]

    def test_it_starts_at_the_initial_epoch(self, model, capsys):
        scheduler = LearningRateScheduler(lambda epoch: 0.5**epoch, verbose=1)
        assert fit(model, scheduler, 3, initial_epoch=2)["learning_rate"] == [0.25]
        assert capsys.readouterr().out == "\nEpoch 3: LearningRateScheduler setting learning rate to 0.25.\n"

    def test_a_type_error_in_the_schedule_is_not_hidden(self, model):
        with pytest.raises(TypeError, match="NoneType"):
            fit(model, LearningRateScheduler(lambda epoch, rate: None + rate), 1)  # pyright: ignore

    def test_all_optimizers(self, several, capsys):
        history = fit(several, LearningRateScheduler(lambda epoch, rate: rate / 2, verbose=1), 2)
        assert history["learning_rate_d1"] == [0.5, 0.25]
        assert history["learning_rate_d2"] == [0.25, 0.125]
        assert "Epoch 2: LearningRateScheduler setting d2 learning rate to 0.125." in capsys.readouterr().out

    @pytest.mark.parametrize("schedule", [0.1, lambda: 0.1, lambda a, b, c: 0.1])
    def test_what_is_no_schedule(self, schedule):
        with pytest.raises(ModelError, match="`schedule` cannot be called"):
            LearningRateScheduler(schedule)

    @pytest.mark.parametrize("rate", [None, "0.1", [0.1], True])
    def test_what_is_no_rate(self, model, rate):
        with pytest.raises(ModelError, match="must be a number") as error:
            fit(model, LearningRateScheduler(lambda epoch: rate), 1)
        assert f"{rate!r} for epoch 0" in error.value.given


@pytest.mark.parametrize("callback", [LearningRateScheduler(lambda epoch: 0.1), ReduceLROnPlateau(monitor="loss")])
@pytest.mark.parametrize(
    ("optimizer", "way_out"),
    [
        (optax.adam(1e-3), "with_learning_rate"),
        (kd.optimizers.SGD(kd.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)), "compile with a number"),
    ],
)
def test_a_rate_that_cannot_be_set_raises_at_the_begin_of_training(callback, optimizer, way_out):
    model = kd.Sequential([kd.Input((8,)), kd.layers.Dense(1)])
    model.compile(copy.deepcopy(optimizer), "mse")
    with pytest.raises(ModelError, match=f"{type(callback).__name__} cannot set the learning rate") as error:
        model.fit(X, Y, verbose=0, callbacks=[callback])
    assert way_out in error.value.fix
    assert int(model.state.step) == 0
