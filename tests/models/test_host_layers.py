"""Models that begin with layers on the host: text in `fit`, the rest compiled."""

import grain
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError
from tests.layouts import on

TEXT = np.array(["a b c", "b b", "c c a d", "d", "a", "b", "c", "a b"] * 2)
LABELS = np.arange(16) % 2
LOSS = kd.losses.SparseCategoricalCrossentropy(from_logits=True)


def vectorizer():
    layer = layers.TextVectorization(output_sequence_length=5)
    layer.adapt(TEXT)
    return layer


def tail(x):
    x = layers.Embedding(8, 4, embeddings_initializer="ones")(x)
    return layers.Dense(2, kernel_initializer=kd.initializers.GlorotUniform(seed=0))(layers.Flatten()(x))


def with_text():
    inputs = kd.Input(shape=(1,), dtype="string")
    model = kd.Model(inputs, tail(vectorizer()(inputs)))
    model.compile(kd.optimizers.SGD(0.1), LOSS)
    return model


def with_numbers():
    inputs = kd.Input(shape=(5,), dtype="int32")
    model = kd.Model(inputs, tail(inputs))
    model.compile(kd.optimizers.SGD(0.1), LOSS)
    return model


class Examples:
    def __len__(self):
        return len(TEXT)

    def __getitem__(self, number):
        return TEXT[number], LABELS[number]


def batches(size=5):
    for start in range(0, len(TEXT), size):
        yield TEXT[start : start + size], LABELS[start : start + size]


@pytest.fixture(scope="module")
def expected():
    model = with_numbers()
    options = {"epochs": 2, "verbose": 0, "batch_size": 5, "shuffle": False, "validation_split": 0.25}
    history = model.fit(vectorizer()(TEXT), LABELS, **options).history
    return history, model.predict(vectorizer()(TEXT), verbose=0)


def test_text_trains_on_a_mesh_as_its_numbers_on_one_device(expected):
    with on("data=4,model=2", {"embedding/embeddings": (None, "model"), "dense/kernel": ("model", None)}).scope():
        model = with_text()
    options = {"epochs": 2, "verbose": 0, "batch_size": 5, "shuffle": False, "validation_split": 0.25}
    history = model.fit(TEXT, LABELS, **options).history
    np.testing.assert_allclose(history["loss"], expected[0]["loss"], rtol=1e-5)
    np.testing.assert_allclose(history["val_loss"], expected[0]["val_loss"], rtol=1e-5)
    for x in (TEXT, TEXT.tolist(), TEXT[:, None]):
        np.testing.assert_allclose(model.predict(x, verbose=0), expected[1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model(TEXT), expected[1], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_data_sets_of_text():
    numbers = with_numbers()
    x = vectorizer()(TEXT)
    loss = numbers.fit(x, LABELS, batch_size=5, shuffle=False, verbose=0).history["loss"]
    stream = grain.MapDataset.source(Examples()).batch(5)
    for data, options in ((batches(), {}), (Examples(), {"batch_size": 5, "shuffle": False}), (stream, {})):
        model = with_text()
        assert np.allclose(model.fit(data, verbose=0, **options).history["loss"], loss)
    assert np.allclose(model.evaluate(TEXT, LABELS, verbose=0), numbers.evaluate(x, LABELS, verbose=0))
    assert np.allclose(model.evaluate(batches(), verbose=0), numbers.evaluate(x, LABELS, verbose=0))
    assert np.allclose(model.train_on_batch(TEXT, LABELS), numbers.train_on_batch(x, LABELS))
    assert np.allclose(model.test_on_batch(TEXT, LABELS), numbers.test_on_batch(x, LABELS))
    assert np.allclose(model.predict_on_batch(TEXT), numbers.predict_on_batch(x))
    # in the pipeline in place of the model
    layer = vectorizer()
    mapped = stream.map(lambda pair: (layer(pair[0]), pair[1]))
    assert np.allclose(numbers.evaluate(mapped, verbose=0), model.evaluate(TEXT, LABELS, verbose=0))


def test_a_model_comes_back_with_its_vocabulary(tmp_path):
    model = with_text()
    model.fit(TEXT, LABELS, verbose=0)
    model.save(tmp_path / "model")
    again = kd.models.load_model(tmp_path / "model")
    np.testing.assert_allclose(again.predict(TEXT, verbose=0), model.predict(TEXT, verbose=0), rtol=1e-6)
    assert again.layers[1].get_vocabulary() == model.layers[1].get_vocabulary()
    clone = kd.models.clone_model(model)
    assert clone.predict(TEXT, verbose=0).shape == (16, 2)


def test_features_of_several_kinds():
    inputs = {"city": kd.Input((1,), dtype="string"), "age": kd.Input((1,)), "id": kd.Input((1,), dtype="int64")}
    city = layers.StringLookup(vocabulary=["rome", "oslo"], output_mode="one_hot")(inputs["city"])
    number = layers.Hashing(4, output_mode="one_hot")(inputs["id"])
    age = layers.Discretization([18.0, 65.0], output_mode="one_hot")(inputs["age"])
    model = kd.Model(inputs, layers.Concatenate()([city, number, age, inputs["age"]]))
    found = model.predict(
        {"city": np.array(["oslo", "bonn"]), "age": np.array([[17.0], [30.0]]), "id": np.array([2**40, 1])}, verbose=0
    )
    assert found[:, :3].tolist() == [[0, 0, 1], [1, 0, 0]] and found[:, 7:].tolist() == [[1, 0, 0, 17], [0, 1, 0, 30]]
    assert found[:, 3:7].sum(1).tolist() == [1, 1]


def test_what_cannot_be():
    text = kd.Input((1,), dtype="string")
    with pytest.raises(ModelError, match="cannot follow a layer that runs on devices"):
        layers.IntegerLookup(vocabulary=[1])(layers.Dense(2)(kd.Input((2,))))
    with pytest.raises(ModelError, match="must get numbers: it runs on devices"):
        layers.Dense(2)(text)
    with pytest.raises(ModelError, match="cannot be a layer"):
        with_text()(text)
    with pytest.raises(ModelError, match="cannot be exported"):
        with_text().export("/nowhere/at/all")

    class Inside(kd.Model):
        def __init__(self):
            super().__init__()
            self.lookup = layers.IntegerLookup(vocabulary=[1])

        def call(self, inputs):
            return self.lookup(inputs)

    with pytest.raises(ModelError, match="cannot be called in a compiled function"):
        Inside()(np.ones((2, 1), "int32"))


def test_sequential_and_models_of_host_layers_alone():
    model = kd.Sequential([vectorizer(), layers.Embedding(8, 4), layers.Flatten(), layers.Dense(2)])
    model.compile("sgd", LOSS)
    assert np.isfinite(model.fit(TEXT, LABELS, verbose=0).history["loss"]).all()
    assert model.predict(TEXT, verbose=0).shape == (16, 2)
    lookup = kd.Sequential([kd.Input((1,), dtype="string"), layers.StringLookup(vocabulary=["a", "b"])])
    assert lookup.predict(np.array([["a"], ["b"], ["z"]]), verbose=0).tolist() == [[1], [2], [0]]
    inputs = kd.Input((1,), dtype="string")
    around = kd.Model(inputs, layers.Embedding(3, 2)(lookup(inputs)))
    assert around.predict(np.array(["a", "z"]), verbose=0).shape == (2, 1, 2)
