"""Files in which layers of one model depend on each other: masks for recurrent layers, factors of LoRA."""

import numpy as np
import pytest

import keras_dist as kd

RECURRENT = {
    "LSTM": lambda lib: lib.layers.LSTM(2),
    "Bidirectional": lambda lib: lib.layers.Bidirectional(lib.layers.GRU(2)),
    "RNN": lambda lib: lib.layers.RNN([lib.layers.LSTMCell(2), lib.layers.GRUCell(2)]),
}


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("has_input", [True, False])
def test_recurrent_layers_behind_a_mask(keras, tmp_path, name, has_input):
    x = np.ones((2, 4, 3), "float32")
    x[0, 1:] = 0
    for library in (keras, kd):
        first = [library.Input((4, 3))] if has_input else []
        model = library.Sequential([*first, library.layers.Masking(), RECURRENT[name](library)])
        expected = np.asarray(model(x))
        model.save(tmp_path / "model.keras")
        np.testing.assert_allclose(kd.models.load_model(tmp_path / "model.keras")(x), expected, atol=1e-6)


LAYERS = {"Dense": (lambda lib: lib.layers.Dense(4), (6,)), "Embedding": (lambda lib: lib.layers.Embedding(5, 4), (3,))}


def network(library, name):
    make, shape = LAYERS[name]
    return library.Sequential([library.Input(shape), make(library)])


@pytest.mark.parametrize("name", LAYERS)
def test_lora_is_merged_in_files_as_in_keras(keras, tmp_path, name):
    ours, plain, theirs = network(kd, name), network(kd, name), network(keras, name)
    x = np.random.default_rng(0).integers(0, 5, (3, *LAYERS[name][1]))
    ours.layers[0].enable_lora(2, lora_alpha=3)
    for weight in ours.weights:
        weight.assign(np.cos(np.arange(np.prod(weight.shape))).reshape(weight.shape))
    expected = ours.predict(x, verbose=0)
    ours.save_weights(tmp_path / "w.weights.h5")
    ours.save(tmp_path / "m.keras")

    for model in (plain, theirs, ours):  # ours last: its factors are forgotten, as they are in the sum
        model.load_weights(tmp_path / "w.weights.h5")
        np.testing.assert_allclose(model.predict(x, verbose=0), expected, atol=1e-5)
    for library in (keras, kd):
        again = library.models.load_model(tmp_path / "m.keras")
        assert again.layers[0].lora_enabled
        np.testing.assert_allclose(again.predict(x, verbose=0), expected, atol=1e-5)
    theirs.layers[0].enable_lora(2)
    theirs.save(tmp_path / "theirs.keras")
    found = kd.models.load_model(tmp_path / "theirs.keras")
    assert len(found.weights) == len(theirs.weights)
    np.testing.assert_allclose(found.predict(x, verbose=0), expected, atol=1e-5)
