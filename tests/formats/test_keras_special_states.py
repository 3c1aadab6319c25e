"""More than weights in files of Keras: merged factors, vocabularies, several optimizers, recurrent states."""

import importlib
import inspect
import json
import zipfile

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.formats.keras_configs import operation_from_keras, operation_to_keras

X = np.random.default_rng(0).uniform(-1, 1, (8, 3)).astype("float32")
Y = np.random.default_rng(1).uniform(-1, 1, (8, 2)).astype("float32")


def model_of(kit, **options):
    dense = [kit.layers.Dense(4, name="body", **options), kit.layers.Dense(2, name="head")]
    return kit.Sequential([kit.Input((3,)), *dense])


def trained(kit, optimizer, **options):
    model = model_of(kit, **options)
    model.compile(optimizer, "mse")
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    return model


def go_on(model):
    return model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]


def schedule_free(kit):
    return kit.optimizers.ScheduleFreeAdamW(0.05)


def multi(kit):
    rules = {".*head/.*": kit.optimizers.Adam(0.01)}
    return kit.optimizers.MultiOptimizer(kit.optimizers.OptimizerMap(kit.optimizers.SGD(0.1, momentum=0.9), rules))


def multi_of_one(kit):
    rules = {".*": kit.optimizers.Adam(0.01)}
    return kit.optimizers.MultiOptimizer(kit.optimizers.OptimizerMap(kit.optimizers.SGD(0.1), rules))


@pytest.mark.parametrize("optimizer", [schedule_free, multi, multi_of_one])
def test_the_state_of_optimizers_goes_both_ways(keras, tmp_path, optimizer):
    ours = trained(kd, optimizer(kd))
    ours.save(tmp_path / "ours.keras")
    theirs = keras.models.load_model(tmp_path / "ours.keras")
    assert all(int(np.asarray(v)) == 2 for v in theirs.optimizer.variables if v.path.endswith("adam/iteration"))
    theirs.save(tmp_path / "theirs.keras")
    back = kd.models.load_model(tmp_path / "theirs.keras")
    expected = go_on(ours)
    np.testing.assert_allclose(go_on(theirs), expected, 1e-5)
    np.testing.assert_allclose(go_on(back), expected, 1e-5)


def of_keras(path, to, layer, text):
    """Make of our file one as Keras writes it: the vocabulary in the folder of the layer, and not in the config."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(to, "w") as target:
        config = json.loads(source.read("config.json"))
        for entry in config["config"]["layers"]:
            if entry["config"]["name"] == layer:
                size = len(text.split("\n"))
                entry["config"] |= {"vocabulary": None, "idf_weights": None, "vocabulary_size": size}
        target.writestr("config.json", json.dumps(config))
        target.writestr("metadata.json", json.dumps({"keras_version": "3.15.1"}))
        target.writestr("model.weights.h5", source.read("model.weights.h5"))
        folder = config["config"]["layers"][1]["class_name"]
        names = {"StringLookup": "string_lookup", "IntegerLookup": "integer_lookup"}
        folder = f"assets/layers/{names.get(folder, 'text_vectorization')}"
        target.writestr(f"{folder}/vocabulary.txt", text)


@pytest.mark.parametrize(
    ("layer", "data", "dtype"),
    [
        (lambda: kd.layers.StringLookup(name="look"), ["b", "a", "b"], "string"),
        (lambda: kd.layers.IntegerLookup(name="look", output_mode="multi_hot"), [[7], [5], [7]], "int64"),
        (lambda: kd.layers.TextVectorization(name="look", output_mode="count"), ["a b b", "b c"], "string"),
        (lambda: kd.layers.TextVectorization(name="look", output_mode="tf_idf"), ["a b b", "b c"], "string"),
    ],
)
def test_vocabularies_are_files_of_the_archive(tmp_path, layer, data, dtype):
    pytest.importorskip("h5py")
    lookup = layer()
    lookup.adapt(data)
    inputs = kd.Input((1,), dtype=dtype)
    model = kd.Model(inputs, lookup(inputs))
    rows = np.array([data[0], data[0]]).reshape(2, 1)
    model.save(tmp_path / "ours.keras")
    with zipfile.ZipFile(tmp_path / "ours.keras") as archive:
        (text,) = {archive.read(name).decode() for name in archive.namelist() if name.startswith("assets/")}
    assert text.split("\n") == [str(token) for token in lookup.get_vocabulary()]
    of_keras(tmp_path / "ours.keras", tmp_path / "theirs.keras", "look", text)
    again = kd.models.load_model(tmp_path / "theirs.keras")
    assert again.layers[-1].get_vocabulary() == lookup.get_vocabulary()
    np.testing.assert_array_equal(again.layers[-1](rows), lookup(rows))


def test_states_of_recurrent_layers_are_left_out(keras, tmp_path):
    def made(kit):
        return kit.Sequential([kit.Input(batch_shape=(2, 3, 4)), kit.layers.LSTM(2, stateful=True)])

    x = np.ones((2, 3, 4), "float32")
    ours, theirs = made(kd), made(keras)
    ours.save_weights(tmp_path / "ours.weights.h5")
    theirs.load_weights(tmp_path / "ours.weights.h5")
    np.testing.assert_allclose(theirs.predict(x, verbose=0), ours.predict(x, verbose=0), 1e-5, 1e-6)
    theirs.save(tmp_path / "theirs.keras")
    back = kd.models.load_model(tmp_path / "theirs.keras")
    theirs.reset_states() if hasattr(theirs, "reset_states") else theirs.layers[0].reset_states()
    np.testing.assert_allclose(back.predict(x, verbose=0), theirs.predict(x, verbose=0), 1e-5, 1e-6)
    ours.save(tmp_path / "ours.keras")
    np.testing.assert_allclose(  # our own file goes on where the states were
        kd.models.load_model(tmp_path / "ours.keras").predict(x, verbose=0), ours.predict(x, verbose=0), 1e-5, 1e-6
    )


SAME = {"Abs", "BitwiseNot", "Conj", "LeftShift", "RightShift"}
"""Operations of which Keras has two classes."""


def test_every_operation_of_keras_has_a_name_here(keras):
    wrong = []
    for room in ("core", "image", "linalg", "math", "nn", "numpy"):
        module = importlib.import_module(f"keras.src.ops.{room}")
        for name, cls in vars(module).items():
            if not inspect.isclass(cls) or not issubclass(cls, keras.Operation) or cls.__module__ != module.__name__:
                continue
            entry = {"module": module.__name__, "class_name": name, "config": {"name": "one"}, "name": "one"}
            ours = operation_from_keras({**entry, "inbound_nodes": []})
            there = ours and operation_to_keras(ours)
            if not there or (there["class_name"] != name and name not in SAME) or there["module"] != entry["module"]:
                wrong.append(name)
    assert wrong == ["SegmentReduction"]  # the base of others
