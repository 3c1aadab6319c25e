"""`TerminateOnNaN`: when it ends training, and what it says."""

import math

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.callbacks import LambdaCallback, TerminateOnNaN
from tests.networks import Plain, blobs

X, Y = blobs(24)


@pytest.fixture
def model():
    model = kd.Model.from_nnx(Plain, seed=0)
    model.compile("sgd", loss=kd.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def broken(row):
    x = X.copy()
    x[row] = np.nan
    return x


def test_it_ends_training_at_the_first_batch_whose_loss_is_not_finite(model, capsys):
    ended = []
    end = LambdaCallback(on_train_end=lambda logs: ended.append(True))
    callbacks = [TerminateOnNaN(), end]
    history = model.fit(broken(9), Y, batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
    assert int(model.state.step) == 2 and history.epoch == [0] and ended == [True]
    assert capsys.readouterr().out == (
        "Batch 1: Invalid loss, terminating training. After it the variable 'd1/bias' and 3 of 3 others had values "
        "that are not finite.\n"
    )


def test_it_can_raise(model):
    ended = []
    end = LambdaCallback(on_train_end=lambda logs: ended.append(True))
    with pytest.raises(RuntimeError, match=r"at batch 1\. Loss value: nan\. Terminating .*\. After it"):
        model.fit(broken(9), Y, batch_size=8, shuffle=False, verbose=0, callbacks=[TerminateOnNaN(True), end])
    assert ended == []


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_the_variables_that_are_not_finite_are_named(model, loss, capsys):
    callback = TerminateOnNaN()
    callback.set_model(model)
    callback.on_train_batch_end(4, {"loss": loss})
    assert "All variables are finite" in capsys.readouterr().out and model.stop_training
    bias = next(variable for variable in model.variables if variable.path == "d2/bias")
    bias.assign(np.full(4, np.inf))
    callback.on_train_batch_end(4, {"loss": loss})
    assert "the variable 'd2/bias' had values" in capsys.readouterr().out


@pytest.mark.parametrize("logs", [None, {}, {"accuracy": math.nan}, {"loss": 1.0}])
def test_it_lets_finite_losses_pass(model, logs, capsys):
    callback = TerminateOnNaN()
    callback.set_model(model)
    callback.on_train_batch_end(0, logs)
    assert not model.stop_training and capsys.readouterr().out == ""
