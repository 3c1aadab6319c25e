"""The models of the documents that people come from: DTensor with Keras, the DTensor core API, several workers."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as keras
from keras_dist import layers
from keras_dist.datasets import digits
from tests.layouts import one_device
from tests.soak import ROUNDS

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture(scope="module")
def images() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The digits as 28 x 28 images of 0 to 1."""

    def prepare(x: np.ndarray) -> np.ndarray:
        x = np.repeat(np.repeat(x.reshape(-1, 8, 8), 3, axis=1), 3, axis=2)
        return np.pad(x, ((0, 0), (2, 2), (2, 2))).astype(np.float32) / 16.0

    (x, y), (x_test, y_test) = digits.load_data()
    return (prepare(x), y), (prepare(x_test), y_test)


def batch_mesh() -> keras.DeviceMesh:
    return keras.DeviceMesh((8,), ("batch",))


class TestDTensorWithKeras:
    def test_a_sequential_with_layouts_of_its_weights_learns_the_digits(self, images):
        mesh = batch_mesh()
        unsharded_layout_2d = keras.TensorLayout((None, None), mesh)
        unsharded_layout_1d = keras.TensorLayout((None,), mesh)
        keras.utils.set_random_seed(1337)
        keras.set_distribution(keras.DataParallel(device_mesh=mesh))
        model = keras.Sequential(
            [
                layers.Flatten(input_shape=(28, 28)),
                layers.Dense(
                    32, activation="relu", name="d1", kernel_layout=unsharded_layout_2d, bias_layout=unsharded_layout_1d
                ),
                layers.Dense(10, name="d2", kernel_layout=unsharded_layout_2d, bias_layout=unsharded_layout_1d),
            ]
        )
        assert [(weight.path, weight.name, weight.layout.axes) for weight in model.weights][:2] == [
            ("d1/kernel", "kernel", (None, None)),
            ("d1/bias", "bias", (None,)),
        ]
        model.compile(
            keras.optimizers.Adam(0.01, mesh=mesh),
            loss=LOSS,
            metrics=[keras.metrics.SparseCategoricalAccuracy(mesh=mesh)],
        )
        train, test = images
        model.fit(*train, batch_size=64, epochs=3, verbose=0)
        assert model.evaluate(*test, verbose=0)[1] > 0.9

    def test_layouts_of_a_subclassed_model_go_by_attributes(self):
        class SubclassedModel(keras.Model):
            def __init__(self, name=None):
                super().__init__(name=name)
                self.feature = layers.Dense(16)
                self.feature_2 = layers.Dense(24)
                self.dropout = layers.Dropout(0.1)

            def call(self, inputs, training=None):
                x = self.feature(inputs)
                x = self.dropout(x, training=training)
                return self.feature_2(x)

        self._set_rules()
        subclassed_model = SubclassedModel()
        subclassed_model(np.zeros((16, 16)))
        assert subclassed_model.feature.kernel.layout.axes == ("batch", None)
        assert subclassed_model.feature_2.bias.layout.axes == ("batch",)

    def test_layouts_of_functional_and_sequential_models_go_by_names(self):
        self._set_rules()
        inputs = keras.Input((16,), batch_size=16)
        x = layers.Dense(16, name="feature")(inputs)
        x = layers.Dropout(0.1)(x)
        output = layers.Dense(32, name="feature_2")(x)
        model = keras.Model(inputs, output)
        assert model.layers[1].kernel.layout.axes == ("batch", None)

        model = keras.Sequential(
            [
                layers.Dense(16, name="feature", input_shape=(16,)),
                layers.Dropout(0.1),
                layers.Dense(32, name="feature_2"),
            ]
        )
        assert model.layers[2].kernel.layout.axes == ("batch", None)

    @staticmethod
    def _set_rules() -> None:
        layout_map: Any = keras.LayoutMap(batch_mesh())
        layout_map["feature.*kernel"] = ("batch", None)
        layout_map["feature.*bias"] = ("batch",)
        keras.set_distribution(keras.ModelParallel(layout_map=layout_map, batch_dim_name="batch"))


class DenseLayer(layers.Layer):
    """Xavier's uniform weights, and a bias whose layout is that of the weight without its first dim."""

    def __init__(self, out_dim: int, weight_layout: keras.TensorLayout, activation: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.out_dim, self.weight_layout = out_dim, weight_layout
        self.activation = keras.activations.get(activation)

    def build(self, input_shape: Any) -> None:
        shape = (input_shape[-1], self.out_dim)
        limit = np.sqrt(6.0 / sum(shape))
        uniform = keras.initializers.RandomUniform(-limit, limit)
        self.w = self.add_weight(shape, uniform, name="w", layout=self.weight_layout)
        self.b = self.add_weight(shape[1:], "zeros", name="b", layout=self.weight_layout.axes[1:])

    def call(self, x: Any) -> Any:
        return self.activation(jnp.matmul(x, self.w[...]) + self.b[...])


class MLP(keras.Model):
    """Layers in a list."""

    def __init__(self, members: list[layers.Layer]) -> None:
        super().__init__()
        self.members = members

    def call(self, x: Any) -> Any:
        x = x.reshape(len(x), -1)
        for layer in self.members:
            x = layer(x)
        return x


def train_mlp(distribution: keras.Distribution, axes: Any, images: Any) -> tuple[list[float], float]:
    keras.utils.set_random_seed(7)
    layout = keras.TensorLayout(axes)
    with distribution.scope():
        model = MLP([DenseLayer(64, layout, "relu"), DenseLayer(48, layout, "relu"), DenseLayer(10, layout)])
        model.compile(keras.optimizers.Adam(4e-3, epsilon=1e-7), loss=LOSS, metrics=["accuracy"])
        history = model.fit(*images[0], batch_size=64, epochs=2, verbose=0).history["loss"]
        return history, model.evaluate(*images[1], verbose=0)[1]


@pytest.fixture(scope="module")
def losses_of_one_device(images) -> list[float]:
    return train_mlp(one_device(), (None, None), images)[0]


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("axes", [(None, "model"), (None, None)] if ROUNDS else [(None, "model")])
def test_the_mlp_of_the_core_api_learns_the_same_on_one_device_and_eight(axes, images, losses_of_one_device):
    layout_map = keras.LayoutMap(keras.DeviceMesh((4, 2), ("batch", "model")))
    losses, accuracy = train_mlp(keras.ModelParallel(layout_map=layout_map, batch_dim_name="batch"), axes, images)
    assert np.allclose(losses, losses_of_one_device, rtol=1e-4)  # Adam makes small rounding errors larger
    assert accuracy > 0.9


@pytest.mark.filterwarnings("ignore:Argument `input_shape` is deprecated")
def test_the_cnn_of_several_workers_trains(images):
    keras.set_distribution(keras.DataParallel())
    model = keras.Sequential(
        [
            layers.InputLayer(input_shape=(28, 28)),
            layers.Reshape(target_shape=(28, 28, 1)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(loss=LOSS, optimizer=keras.optimizers.SGD(learning_rate=0.001), metrics=["accuracy"])
    x, y = images[0]
    losses = model.fit(x[:320], y[:320], batch_size=64, epochs=3, verbose=0).history["loss"]
    assert losses[2] < losses[1] < losses[0]
    assert model.weights[0].path == "conv2d/kernel"
