"""The Keras 3 distribution guide, with `import keras_dist as keras` and numpy in place of `tf.data`."""

from typing import Any

import jax
import numpy as np
import pytest

import keras_dist as keras
from tests.soak import LARGE, often

SHAPES = [(8, 1), (4, 2), (2, 4), (1, 8)] if LARGE else [(2, 4)]


def test_meshes_and_layouts():
    devices = jax.devices("cpu")
    mesh = keras.distribution.DeviceMesh(shape=(2, 4), axis_names=["data", "model"], devices=devices)
    layout_2d = keras.distribution.TensorLayout(axes=("model", "data"), device_mesh=mesh)
    replicated_layout_4d = keras.distribution.TensorLayout(axes=("data", None, None, None), device_mesh=mesh)
    assert layout_2d.backend_layout.shard_shape((8, 4)) == (2, 2)
    assert replicated_layout_4d.backend_layout.shard_shape((8, 4, 4, 1)) == (4, 4, 4, 1)


def guide_model(keras: Any) -> Any:
    layers = keras.layers
    inputs = layers.Input(shape=(28, 28, 1))
    y = layers.Flatten()(inputs)
    y = layers.Dense(units=200, use_bias=False, activation="relu", name="d1")(y)
    y = layers.Dropout(0.4)(y)
    y = layers.Dense(units=10, activation="softmax", name="d2")(y)
    model = keras.Model(inputs=inputs, outputs=y)
    model.compile(loss="mse", metrics=["accuracy"])
    return model


def model_parallel(shape: tuple[int, int]) -> keras.Distribution:
    mesh_2d = keras.distribution.DeviceMesh(shape=shape, axis_names=["data", "model"], devices=jax.devices("cpu"))
    layout_map = keras.distribution.LayoutMap(mesh_2d)
    layout_map["d1/kernel"] = (None, "model")
    layout_map["d1/bias"] = ("model",)
    layout_map["d2/output"] = ["data", None]
    return keras.distribution.ModelParallel(layout_map, batch_dim_name="data")


def train_on_noise() -> tuple[keras.Model, list[float]]:
    inputs = np.random.default_rng(0).normal(size=(64, 28, 28, 1))
    labels = np.random.default_rng(1).normal(size=(64, 10))
    keras.utils.set_random_seed(1337)
    model = guide_model(keras)
    losses = model.fit(inputs, labels, batch_size=16, epochs=2, verbose=0).history["loss"]
    assert np.isfinite(model.evaluate(inputs, labels, batch_size=16, verbose=0)).all()
    return model, losses


@pytest.fixture(scope="module")
def data_parallel() -> tuple[keras.Model, list[float]]:
    """A model trained on all devices, and its losses."""
    with keras.distribution.DataParallel(devices=jax.devices("cpu")).scope():
        return train_on_noise()


def test_data_parallel(data_parallel):
    model, losses = data_parallel
    assert losses[-1] < losses[0]
    assert all(row.axes == (None,) * len(row.shape) for row in model.layout_plan.rows)
    mesh_1d = keras.distribution.DeviceMesh(shape=(8,), axis_names=["data"], devices=jax.devices("cpu"))
    for options in ({"device_mesh": mesh_1d}, {}):
        keras.distribution.set_distribution(keras.distribution.DataParallel(**options))
        other = guide_model(keras)
        other.build((None, 28, 28, 1))
        assert [row.axes for row in other.layout_plan.rows] == [row.axes for row in model.layout_plan.rows]
        assert other.layout_plan.mesh.shape == model.layout_plan.mesh.shape == (8,)


@often
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.filterwarnings("ignore:1 layout rule:keras_dist.errors.LayoutWarning")  # the guide's layer has no bias
def test_model_parallel(shape, data_parallel):
    keras.distribution.set_distribution(model_parallel(shape))
    model, losses = train_on_noise()
    assert model.get_layer("d1").kernel.layout.axes == (None, "model")
    assert np.allclose(losses, data_parallel[1], rtol=1e-5)
