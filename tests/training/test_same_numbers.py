"""Same seed, same numbers: on every mesh."""

import functools

import numpy as np
import pytest

import keras_dist as kd
from tests import layouts
from tests.networks import LOSS, Noisy, Plain, blobs, values_of
from tests.soak import crossed


@functools.cache
def trained(factory, name):
    return train(factory, name)


def train(factory, name):
    """Initial values, history and final values of three epochs. Validated only without zero gradients."""
    with layouts.on(name).scope():
        model = kd.Model.from_nnx(factory, seed=7)
        initial = values_of(model)
        model.compile("adam", loss=LOSS, metrics=["accuracy"])
        model.optimizer.learning_rate = 0.01
        validation = blobs(40, seed=1) if factory is Plain else None
        history = model.fit(*blobs(160), batch_size=40, epochs=3, verbose=0, validation_data=validation)
    return initial, history.history, values_of(model)


def as_bytes(values):
    return {path: value.tobytes() for path, value in values.items()}


@pytest.mark.first_cases(2)
@pytest.mark.soak
@pytest.mark.parametrize(("factory", "name"), crossed([Noisy, Plain], layouts.ALL[1:]))
def test_initial_weights_are_bitwise_equal_and_training_losses_agree(factory, name):
    expected_initial, expected, expected_final = trained(factory, "one device")
    initial, found, final = trained(factory, name)
    assert as_bytes(initial) == as_bytes(expected_initial)
    np.testing.assert_allclose(found["loss"], expected["loss"], atol=1e-5, rtol=0)
    np.testing.assert_allclose(found["accuracy"], expected["accuracy"], atol=1e-6, rtol=0)
    assert found["loss"][-1] < found["loss"][0] - 0.3, "it does learn"
    if factory is Plain:  # without zero gradients
        np.testing.assert_allclose(found["val_loss"], expected["val_loss"], atol=1e-5, rtol=0)
        for path, value in expected_final.items():
            np.testing.assert_allclose(final[path], value, atol=2.5e-5, rtol=0, err_msg=path)


def test_two_runs_on_one_mesh_are_bitwise_equal():
    first, second = trained(Noisy, "data=2,model=4"), train(Noisy, "data=2,model=4")
    assert first[1] == second[1]
    assert as_bytes(first[2]) == as_bytes(second[2])
