"""Nested, shared and subclassed models, and what is around weights in files."""

import json
import os
import zipfile

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ModelError
from keras_dist.formats.keras_configs import to_keras

X = np.random.default_rng(0).normal(size=(4, 6, 5)).astype("float32")


def branched(k):
    """A functional model of nested models, shared layers, cells, attention, and operators."""
    layers = k.layers
    x = k.Input((6, 5), name="x")
    inner = k.Sequential([k.Input((6, 5)), layers.Dense(5, "relu"), layers.Dense(5)], name="inner")
    again = inner(inner(x))
    a, b = k.Input((6, 5)), k.Input((6, 5))
    two = k.Model([a, b], layers.Add()([layers.Dense(4)(a), layers.Conv1D(4, 3, padding="same")(b)]), name="two")
    y = two([again, x]) * 2.0 - 1.0
    y = layers.MultiHeadAttention(2, 3, dropout=0.1)(y, y)
    y = layers.RNN([layers.GRUCell(3), layers.LSTMCell(4)], return_sequences=True)(y)
    y = layers.Bidirectional(layers.LSTM(2, return_sequences=True))(y)[:, 1:]
    shared = layers.Dense(4, name="shared")
    y = layers.Concatenate()([shared(y), layers.BatchNormalization()(shared(y))])
    return k.Model(x, {"mean": layers.GlobalAveragePooling1D()(y), "last": layers.Dense(1)(y)})


def assert_close(ours, theirs):
    for name in theirs:
        np.testing.assert_allclose(np.asarray(ours[name]), np.asarray(theirs[name]), 1e-4, 1e-5)


def test_functional_models_go_both_ways(keras, tmp_path):
    theirs = branched(keras)
    theirs.save(tmp_path / "theirs.keras")
    ours = kd.models.load_model(tmp_path / "theirs.keras")
    expected = theirs.predict(X, verbose=0)
    assert_close(ours.predict(X, verbose=0), expected)
    ours.save(tmp_path / "ours.keras")
    assert_close(keras.models.load_model(tmp_path / "ours.keras").predict(X, verbose=0), expected)
    made = branched(kd)
    made.load_weights(tmp_path / "theirs.keras")
    for one, other in zip(made.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_calls_of_models_are_told_apart_at_outputs(keras, tmp_path):
    """Keras counts them from 1 there, and from 0 elsewhere."""

    def made(k):
        x = k.Input((5,), name="größe")
        a = k.Input((5,))
        inner = k.Model(a, k.layers.Dense(5, name="dicht")(a), name="innen")
        line = k.Sequential([k.Input((5,)), k.layers.Dense(5)], name="line")
        first = inner(x)
        return k.Model(x, [first, inner(line(first)), line(x)])

    theirs, x = made(keras), X[:, 0]
    theirs.save(tmp_path / "theirs.keras")
    ours = kd.models.load_model(tmp_path / "theirs.keras")
    ours.save(tmp_path / "ours.keras")
    expected = theirs.predict(x, verbose=0)
    models = [ours, *(k.models.load_model(tmp_path / "ours.keras") for k in (kd, keras))]
    models.append(kd.models.model_from_json(theirs.to_json()))
    models[-1].set_weights(theirs.get_weights())
    for model in models:
        for one, other in zip(model.predict(x, verbose=0), expected, strict=True):
            np.testing.assert_allclose(one, other, 1e-4, 1e-5)


def test_functions_go_by_their_registered_names():
    """Keras looks a function up by what stands under `config`."""
    written = {"module": "mine", "class_name": "function", "config": "loss", "registered_name": "my>loss"}
    theirs = {"module": "builtins", "class_name": "function", "config": "my>loss", "registered_name": "function"}
    assert to_keras(written) == theirs


def test_what_keras_has_not_stays_in_the_file(keras, tmp_path):
    mesh = kd.DeviceMesh((4, 2), ("data", "model"))
    layers = [kd.layers.Dense(4, kernel_layout=(None, "model")), kd.layers.Dropout(0.5), kd.layers.Dense(1)]
    with kd.ModelParallel(kd.LayoutMap(mesh)).scope():
        model = kd.Sequential([kd.Input((5,)), *layers])
        model.compile("adam", loss="mse", prefetch=1)
        y = np.ones((4, 1))
        model.fit(X[:, 0], y, verbose=0)
        model.save(tmp_path / "m.keras")
        again = kd.models.load_model(tmp_path / "m.keras")
    assert again.layers[0].kernel.layout.axes == (None, "model")
    assert again.get_compile_config() == model.get_compile_config()
    model.fit(X[:, 0], y, verbose=0)
    again.fit(X[:, 0], y, verbose=0)  # Dropout draws the same bits
    for one, other in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        assert archive.namelist() == ["metadata.json", "config.json", "model.weights.h5"]
        assert "layout" not in archive.read("config.json").decode()
        assert json.loads(archive.read("metadata.json"))["keras_dist"]["policy"] == "float32"
    assert keras.models.load_model(tmp_path / "m.keras").compiled


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_float16"])
def test_half_precision(keras, tmp_path, dtype):
    def make(k):
        return k.Sequential([k.Input((5,)), k.layers.Dense(3, dtype=dtype), k.layers.Dense(2, dtype=dtype)])

    theirs = make(keras)
    theirs.save(tmp_path / "theirs.keras")
    ours = kd.models.load_model(tmp_path / "theirs.keras")
    assert [str(w.dtype) for w in ours.weights] == [w.dtype for w in theirs.weights]
    ours.save(tmp_path / "ours.keras")
    again = keras.models.load_model(tmp_path / "ours.keras")
    for one, other, before in zip(ours.weights, again.weights, theirs.weights, strict=True):
        np.testing.assert_array_equal(np.asarray(one.numpy()), np.asarray(before.value))
        np.testing.assert_array_equal(np.asarray(other.value), np.asarray(before.value))


def hooked(k):
    class Counted(k.layers.Dense):
        def save_own_variables(self, store):
            super().save_own_variables(store)
            store["note"] = np.array([7.0, float(self.units)])

        def load_own_variables(self, store):
            assert float(store["note"][0]) == 7.0
            for number, weight in enumerate(self.weights):
                weight.assign(store[f"{number}"])

    return Counted


def test_layers_say_what_is_kept_of_them(keras, tmp_path):
    theirs = keras.Sequential([keras.Input((5,)), hooked(keras)(3, name="a"), keras.layers.Dense(2)])
    theirs.save(tmp_path / "theirs.keras")
    ours = kd.models.load_model(tmp_path / "theirs.keras", custom_objects={"Counted": hooked(kd)})
    ours.save(tmp_path / "ours.keras")
    ours.save_weights(tmp_path / "ours.weights.h5")
    again = keras.models.load_model(tmp_path / "ours.keras", custom_objects={"Counted": hooked(keras)})
    for one, other, before in zip(ours.weights, again.weights, theirs.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), np.asarray(before.value))
        np.testing.assert_array_equal(np.asarray(other.value), np.asarray(before.value))
    made = kd.Sequential([kd.Input((5,)), hooked(kd)(3), kd.layers.Dense(2)])
    made.load_weights(tmp_path / "ours.weights.h5")
    store = {}
    made.layers[0].save_own_variables(store)
    np.testing.assert_array_equal(store["0"], ours.weights[0].numpy())


def with_assets(k):
    class Vocabulary(k.layers.Layer):
        def __init__(self, words=(), **kwargs):
            super().__init__(**kwargs)
            self.words = list(words)

        def call(self, x):
            return x

        def save_assets(self, dir_path):
            with open(os.path.join(dir_path, "words.txt"), "w") as file:
                file.write(" ".join(self.words))

        def load_assets(self, dir_path):
            with open(os.path.join(dir_path, "words.txt")) as file:
                self.words.extend(file.read().split())

        def get_config(self):
            return {"name": self.name}

    return Vocabulary


def test_files_of_layers_go_along(keras, tmp_path):
    theirs = keras.Sequential([keras.Input((5,)), with_assets(keras)(["a", "b"])])
    theirs.save(tmp_path / "theirs.keras")
    ours = kd.models.load_model(tmp_path / "theirs.keras", custom_objects={"Vocabulary": with_assets(kd)})
    assert list(ours.layers[0].words) == ["a", "b"]
    ours.save(tmp_path / "ours.keras")
    again = keras.models.load_model(tmp_path / "ours.keras", custom_objects={"Vocabulary": with_assets(keras)})
    assert again.layers[0].words == ["a", "b"]
    with zipfile.ZipFile(tmp_path / "ours.keras", "a") as archive:
        archive.writestr("assets/layers/vocabulary/../../out", "c")
    with pytest.raises(ModelError, match="out"):
        kd.models.load_model(tmp_path / "ours.keras", custom_objects={"Vocabulary": with_assets(kd)})


def test_folders_of_what_is_in_a_file_go_both_ways(keras, tmp_path):
    """`zipped=False`, as on the Hugging Face Hub."""
    x = np.ones((2, 8), "float32")
    theirs = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    keras.saving.save_model(theirs, tmp_path / "theirs", zipped=False)
    ours = kd.models.load_model(tmp_path / "theirs")
    for _ in range(2):  # the second one replaces the first
        kd.saving.save_model(ours, tmp_path / "ours", zipped=False)
    for again in (ours, keras.saving.load_model(tmp_path / "ours"), kd.models.load_model(tmp_path / "ours")):
        np.testing.assert_allclose(again.predict(x, verbose=0), theirs.predict(x, verbose=0), 1e-4, 1e-5)


def test_files_of_layers_are_in_folders_too(tmp_path):
    inputs, words = kd.Input((1,), dtype="string"), kd.layers.StringLookup(name="words")
    words.adapt(["a", "b", "a"])  # a vocabulary that is given stands in the config
    model = kd.Model(inputs, words(inputs))
    model.save(tmp_path / "ours", zipped=False)
    (file,) = (file for file in (tmp_path / "ours" / "assets").rglob("*") if file.is_file())
    again = kd.models.load_model(tmp_path / "ours")
    assert again.get_layer("words").get_vocabulary() == model.get_layer("words").get_vocabulary()
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="not a regular file"):
        kd.models.load_model(tmp_path / "ours")
    file.unlink()
    (tmp_path / "elsewhere").rename(file)
    assets = tmp_path / "ours" / "assets"
    assets.rename(tmp_path / "elsewhere")
    assets.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="behind a link"):
        kd.models.load_model(tmp_path / "ours")
