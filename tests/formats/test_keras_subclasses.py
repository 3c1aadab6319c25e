"""Files of models of registered classes, read by the other library, which goes on training with the optimizer's state.

No Dense with a bias stands before a BatchNormalization: the gradient of such a bias is rounding alone, which Adam
divides by its own size.
"""

import shutil
import warnings

import h5py
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ModelError

X = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
SEQUENCES = np.random.default_rng(1).normal(size=(8, 4, 6)).astype("float32")


def classes(k):
    """Registered classes under the same names in both libraries; the last one registered is that of its own."""
    register = k.saving.register_keras_serializable("subclasses")

    @register
    class Scaled(k.layers.Layer):
        def build(self, input_shape):
            self.z_scale = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="z")
            self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")
            self.a_scale = self.add_weight(shape=(), initializer="ones", name="a")

        def call(self, inputs):
            return inputs * self.z_scale * self.a_scale

    @register
    class Mixing(k.layers.Layer):
        def __init__(self, units, **kwargs):
            super().__init__(**kwargs)
            self.units = units
            self.norm = k.layers.LayerNormalization()
            self.inner = k.Sequential([k.layers.Dense(units, "relu"), k.layers.Dense(6)])
            self.scaled = Scaled()

        def call(self, inputs):
            real, _ = k.ops.fft2((inputs, k.ops.zeros_like(inputs)))
            return self.scaled(inputs) + self.inner(self.norm(inputs + real))

        def get_config(self):
            return {**super().get_config(), "units": self.units}

    @register
    class Block(k.Model):
        def __init__(self, units=4, **kwargs):
            super().__init__(**kwargs)
            self.units = units
            self.second = k.layers.Dense(units, use_bias=False)
            self.first = k.layers.Dense(units, "relu")
            self.norm = k.layers.BatchNormalization()

        def call(self, inputs, training=None):
            return self.norm(self.second(self.first(inputs)), training=training)

        def get_config(self):
            return {**super().get_config(), "units": self.units}

    @register
    class Outer(k.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.head = k.layers.Dense(1)
            self.again = self.head
            self._block = Block(4)
            self.blocks = [Block(3), [Block(5)]]
            self.parts = {"second": Block(4), "first": Block(3)}
            self.tracker = k.metrics.Mean(name="tracker")

        @property
        def alpha(self):
            return self._block

        def call(self, inputs, training=None):
            for block in (self._block, self.blocks[0], *self.blocks[1], self.parts["first"], self.parts["second"]):
                inputs = block(inputs, training=training)
            return self.head(inputs)

    @register
    class Two(k.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.left, self.right = k.layers.Dense(3), k.layers.Dense(3)

        def call(self, left, right):
            return self.left(left) + self.right(right)

    return Mixing, Outer, Two


def nested(k, kinds):
    return kinds[1](), X


def fnet(k, kinds):
    inputs = k.Input((4, 6))
    x = kinds[0](5, name="second")(kinds[0](7, name="first")(inputs))
    return k.Model(inputs, k.layers.Dense(1)(k.layers.GlobalAveragePooling1D()(x))), SEQUENCES


def distributed(k, kinds):
    inner = k.Sequential([k.Input((6,)), k.layers.Dense(3, "relu"), k.layers.Dense(2)])
    inputs = k.Input((4, 6))
    x = k.layers.Bidirectional(k.layers.GRU(3, return_sequences=True))(k.layers.TimeDistributed(inner)(inputs))
    return k.Model(inputs, k.layers.Dense(1)(k.layers.TimeDistributed(k.layers.Dense(2))(x)[:, -1])), SEQUENCES


def unnamed(k, kinds):
    inputs = k.Input((6,))
    x = k.layers.Dense(6, "relu")(k.layers.Dense(6)(inputs))
    return k.Model(inputs, k.layers.Dense(1)(k.layers.Dense(6)(x) + k.layers.Dense(6)(inputs))), X


def fit(model, x):
    model.fit(x, np.ones((8, 1), "float32"), epochs=2, batch_size=8, shuffle=False, verbose=0)


@pytest.mark.parametrize("writer", ["keras", "keras_dist"])
@pytest.mark.parametrize("make", [nested, fnet, distributed, unnamed])
def test_registered_classes_go_both_ways_with_the_state_of_training(keras, tmp_path, make, writer):
    source, target = (keras, kd) if writer == "keras" else (kd, keras)
    model, x = make(source, classes(source))
    model.compile(source.optimizers.Adam(0.05), loss="mse")
    fit(model, x)
    model.save(tmp_path / "m.keras")
    classes(target)
    again = target.saving.load_model(tmp_path / "m.keras")
    for _ in range(2):
        predicted = [np.asarray(one.predict(x, verbose=0)) for one in (model, again)]
        np.testing.assert_allclose(*predicted, 1e-4, 1e-5)
        fit(model, x), fit(again, x)


def test_a_model_whose_call_takes_two_tensors_is_made_again(keras, tmp_path):
    """Keras writes down the shape of the first one alone, and does not read that itself."""
    model = classes(kd)[2]()
    expected = model(X, right=SEQUENCES[:, 0, :5])
    model.save(tmp_path / "m.keras")
    again = kd.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(again(X, SEQUENCES[:, 0, :5]), expected)
    classes(keras)
    with warnings.catch_warnings(action="error"):
        theirs = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(theirs(X, SEQUENCES[:, 0, :5]), expected, 1e-5, 1e-6)
    classes(kd)
    model.save(tmp_path / "folder")
    np.testing.assert_array_equal(kd.models.load_model(tmp_path / "folder")(X, SEQUENCES[:, 0, :5]), expected)


def test_what_has_another_first_name_now_is_found_by_its_old_one(tmp_path):
    """Attributes are renamed, with a property of the old name; of old, nested lists were not looked into."""

    class Before(kd.Model):
        def __init__(self):
            super().__init__()
            self.dense = kd.layers.Dense(3)
            self.blocks = [(kd.layers.Dense(6, use_bias=False),), (kd.layers.Dense(6, use_bias=False),)]

        def call(self, inputs):
            for (block,) in self.blocks:
                inputs = block(inputs)
            return self.dense(inputs)

    class Renamed(kd.Model):
        def __init__(self):
            super().__init__()
            self.a_dense = kd.layers.Dense(3)
            self.blocks = [(kd.layers.Dense(6, use_bias=False),), (kd.layers.Dense(6, use_bias=False),)]

        @property
        def dense(self):
            return self.a_dense

        call = Before.call

    model, renamed, again = Before(), Renamed(), Before()
    expected = model(X)
    renamed(X), again(X)
    model.save_weights(tmp_path / "new.weights.h5")
    renamed.load_weights(tmp_path / "new.weights.h5")
    np.testing.assert_array_equal(renamed(X), expected)
    shutil.copy(tmp_path / "new.weights.h5", tmp_path / "old.weights.h5")
    with h5py.File(tmp_path / "old.weights.h5", "a") as file:
        file.create_group("layers")
        file.move("dense", "layers/dense")
        file.move("blocks/container/dense", "layers/dense_1")
        file.move("blocks/container_1/dense", "layers/dense_2")
        del file["blocks"]
    again.load_weights(tmp_path / "old.weights.h5")
    np.testing.assert_array_equal(again(X), expected)
    with h5py.File(tmp_path / "old.weights.h5", "a") as file:
        del file["layers/dense_1"]
    with pytest.raises(
        ModelError, match=r"missing in the file: blocks/0/0/kernel, there 'blocks/container/dense/vars/0'"
    ):
        again.load_weights(tmp_path / "old.weights.h5")
