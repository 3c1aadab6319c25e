"""`keras-dist convert`: a file of Keras as safetensors."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_dist as kd
from tests import commands

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(scope="module")
def made(keras):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(4, name="d1")(inputs)
    return keras.Model(inputs, keras.layers.BatchNormalization(name="norm")(hidden), name="network")


def test_weights_keep_their_paths_and_values(made, keras, tmp_path, capsys):
    made.save(tmp_path / "m.keras")
    assert commands.run("convert", tmp_path / "m.keras", tmp_path / "out") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out'}: 6 weights, 32 numbers\n"
    found = load_file(tmp_path / "out" / "model.safetensors")
    expected = {variable.path: np.asarray(variable.value) for variable in made.weights}
    assert found.keys() == expected.keys()
    np.testing.assert_equal(found, expected)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["class_name"] == "Functional"
    other = keras.models.clone_model(made)
    model = kd.Model.from_keras(other)
    model.load_weights(tmp_path / "out")
    np.testing.assert_equal([weight.numpy() for weight in model.weights], list(expected.values()))


def test_another_element_type(made, tmp_path):
    made.save(tmp_path / "m.keras")
    assert commands.run("convert", tmp_path / "m.keras", tmp_path / "m.safetensors", "--dtype", "float16") == 0
    assert {value.dtype.name for value in load_file(tmp_path / "m.safetensors").values()} == {"float16"}
