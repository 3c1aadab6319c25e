"""The model of the tutorial on DTensor with Keras."""

import numpy as np

import keras_dist as keras
from keras_dist import layers
from keras_dist.datasets import digits


def test_a_sequential_with_layouts_of_its_weights_learns_the_digits():
    mesh = keras.DeviceMesh((8,), ("batch",))
    of_kernels, of_biases = keras.TensorLayout((None, None), mesh), keras.TensorLayout((None,), mesh)
    keras.utils.set_random_seed(1337)
    keras.set_distribution(keras.DataParallel(device_mesh=mesh))
    model = keras.Sequential(
        [
            layers.Flatten(input_shape=(8, 8)),
            layers.Dense(32, activation="relu", name="d1", kernel_layout=of_kernels, bias_layout=of_biases),
            layers.Dense(10, name="d2", kernel_layout=of_kernels, bias_layout=of_biases),
        ]
    )
    assert [(weight.path, weight.name, weight.layout.axes) for weight in model.weights][:2] == [
        ("d1/kernel", "kernel", (None, None)),
        ("d1/bias", "bias", (None,)),
    ]
    model.compile(
        keras.optimizers.Adam(0.01, mesh=mesh),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(mesh=mesh)],
    )
    train, test = ((x.reshape(-1, 8, 8).astype(np.float32) / 16, y) for x, y in digits.load_data())
    model.fit(*train, batch_size=64, epochs=3, verbose=0)
    assert model.evaluate(*test, verbose=0)[1] > 0.9
