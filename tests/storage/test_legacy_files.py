"""Whole models in the format of Keras 2, and weights of it by the names of layers."""

import h5py
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ModelError
from keras_dist.storage.h5_files import H5Reader, H5Writer

X = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")
Y = np.ones((4, 1), "float32")

pytestmark = pytest.mark.filterwarnings("ignore:save. .*has the format of Keras 2")


def network(k):
    inner = k.Sequential([k.Input((4,)), k.layers.Dense(4, name="deep")], name="inner")
    inputs = k.Input((8,))
    x = k.layers.Dense(4, "relu", kernel_regularizer="l2", name="first")(inputs)
    x = k.layers.Add()([x, inner(k.layers.BatchNormalization(name="norm")(x))])
    return k.Model(inputs, k.layers.Dense(1, name="last")(x))


def trained(k, optimizer):
    model = network(k)
    model.compile(optimizer, loss="mse", metrics=["mae"])
    model.fit(X, Y, verbose=0)
    return model


def assert_same(one, other):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-5)


def test_whole_models_go_to_keras_and_come_back(keras, tmp_path):
    path = tmp_path / "ours.h5"
    ours = trained(kd, kd.optimizers.Adam(0.01))
    ours.save(path)
    theirs, again = keras.saving.load_model(path), kd.models.load_model(path)
    for model in (theirs, again):
        np.testing.assert_allclose(model.predict(X, verbose=0), ours.predict(X, verbose=0), 1e-4, 1e-5)
    assert_same(theirs, ours)
    for model in (ours, again):  # Keras 3.15 builds the optimizer of such a file, of its own ones too, for no variables
        model.fit(X, Y, verbose=0)  # with the slots of the optimizer
    assert_same(again, ours)


def test_the_optimizer_may_be_left_out(keras, tmp_path):
    ours = trained(kd, "adam")
    ours.save(tmp_path / "with.h5")
    assert kd.models.load_model(tmp_path / "with.h5").compiled
    ours.save(tmp_path / "without.hdf5", include_optimizer=False)
    assert not kd.models.load_model(tmp_path / "without.hdf5").compiled
    assert not keras.saving.load_model(tmp_path / "without.hdf5").compiled
    with pytest.raises(kd.errors.CheckpointError, match="exists"):
        ours.save(tmp_path / "with.h5", overwrite=False)


@pytest.mark.filterwarnings("default:save. .*has the format of Keras 2")
def test_the_form_is_warned_of_and_models_of_code_have_none(tmp_path):
    class Coded(kd.Model):
        def __init__(self):
            super().__init__()
            self.dense = kd.layers.Dense(1)

        def call(self, inputs):
            return self.dense(inputs)

    model = Coded()
    model(X)
    kept = pytest.warns(UserWarning, match=r"random streams; 'model.keras' keeps them")
    with kept, pytest.raises(ModelError, match="whose `call` is code") as caught:
        model.save(tmp_path / "m.h5")
    assert "model.keras" in caught.value.fix
    assert [*tmp_path.iterdir()] == []


def test_long_lists_of_names_are_split_as_keras_splits_them(keras, tmp_path):
    names = [f"layer_{number:04}_{'x' * 80}" for number in range(1000)]
    with H5Writer("save", tmp_path / "m.h5", tmp_path) as writer:
        writer.note("model_weights", layer_names=names, weight_names=[])
    with H5Reader("load", tmp_path / "m.h5") as reader:
        assert [name.decode() for name in reader.attribute("model_weights", "layer_names")] == names
    load = keras.src.legacy.saving.legacy_h5_format.load_attributes_from_hdf5_group
    with h5py.File(tmp_path / "m.h5") as file:
        assert (load(file["model_weights"], "layer_names"), load(file["model_weights"], "weight_names")) == (names, [])


def test_layers_go_by_their_names_when_asked(keras, tmp_path):
    theirs = network(keras)
    theirs.save(tmp_path / "theirs.h5")
    inputs = kd.Input((8,))
    ours = kd.Model(inputs, kd.layers.Dense(4, name="first")(kd.layers.Dense(8, name="new")(inputs)))
    with pytest.raises(ModelError, match="does not fit"):
        ours.load_weights(tmp_path / "theirs.h5")
    report = ours.load_weights(tmp_path / "theirs.h5", by_name=True)
    assert report.loaded == ("first/kernel", "first/bias")
    np.testing.assert_array_equal(ours.get_layer("first").get_weights()[0], theirs.get_layer("first").get_weights()[0])


@pytest.mark.parametrize("names", [3, np.array([b"\xff"])])
def test_lists_of_names_that_are_none_are_told_of(tmp_path, names):
    path = tmp_path / "odd.h5"
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = names
    with pytest.raises(ModelError, match="'layer_names' of '/'"):
        network(kd).load_weights(path)
