"""Every layer in files that Keras reads, and in files that Keras wrote."""

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ModelError
from tests.layers.test_every_layer import LAYERS, VARIANTS, made

APART = ("MultiHeadAttention", "GroupedQueryAttention")
NOT_THERE = ("Lambda", "MixtureOfExperts")
"""Code in a file; Keras's own, which cannot be in a functional model; a layer that Keras lacks."""
CASES = [(name, table) for table in (LAYERS, VARIANTS) for name in table if name not in NOT_THERE]


def model_of(cases):
    """One model of all these layers, and inputs for it."""
    random, inputs, outputs, x = np.random.default_rng(0), [], [], []
    for number, (name, table) in enumerate(cases):
        is_ready = table is LAYERS and callable(LAYERS[name][0])
        layer = made(name, table, **({} if is_ready else {"name": f"{name.lower()}_{number}"}))
        shapes = table[name][1]
        own = [kd.Input(shape) for shape in (shapes if isinstance(shapes, list) else [shapes])]
        outputs.append(layer(*own) if name in APART else layer(own if isinstance(shapes, list) else own[0]))
        inputs += own
        x += [random.integers(0, 4, (2, *tensor.shape[1:])).astype("float32") for tensor in own]
    model = kd.Model(inputs, outputs)
    model.set_weights([random.uniform(0.1, 0.9, w.shape).astype(w.dtype) for w in model.weights])
    return model, x


def close(ours, theirs, names):
    for name, a, b in zip(names, ours, theirs, strict=True):
        np.testing.assert_allclose(*(np.asarray(jax.tree.leaves(one)[0]) for one in (a, b)), 1e-4, 1e-5, err_msg=name)


@pytest.mark.filterwarnings("ignore:.*requested dtype int64")  # by Keras's MixUp
@pytest.mark.parametrize("start", range(4))
def test_every_layer_goes_to_keras_and_comes_back(keras, tmp_path, start):
    cases = CASES[start::4]
    names = [name for name, _ in cases]
    model, x = model_of(cases)
    # where nobody says training, layers of images augment
    expected = jax.jit(lambda x: model(x, training=False))(x)
    model.save(tmp_path / "ours.keras")
    theirs = keras.models.load_model(tmp_path / "ours.keras")
    found = jax.jit(lambda x: theirs(x, training=False))(x)
    close(expected, found, names)

    theirs.save(tmp_path / "theirs.keras")
    again = kd.models.load_model(tmp_path / "theirs.keras")
    for ours, before in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, before)
    assert [w.shape for w in again.weights] == [w.shape for w in model.weights]


def test_keras_quantizes_what_we_save(keras, tmp_path) -> None:
    model = kd.Sequential([kd.Input((8,)), kd.layers.Dense(4, name="up")])
    with pytest.raises(ModelError, match="is quantized by its model") as caught:
        model.layers[0].quantize("int8")
    assert """model.quantize("int8", ".*up")""" in caught.value.fix
    model.save(tmp_path / "m.keras")
    quantized = keras.saving.load_model(tmp_path / "m.keras")
    quantized.quantize("int8")
    x = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")
    assert quantized.layers[0].quantization_mode == "int8"
    np.testing.assert_allclose(quantized.predict(x, verbose=0), model.predict(x, verbose=0), atol=0.05)
