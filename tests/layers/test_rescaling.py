"""Rescaling, Normalization, CategoryEncoding."""

from typing import Any

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers, models
from keras_dist.layers.preprocessing import rescaling

DATA = np.random.default_rng(0).normal([1.0, -3.0, 5.0], [1.0, 2.0, 0.5], (50, 3)).astype("float32")


def test_normalization_has_the_weights_of_keras_and_is_the_identity_before_it_adapts() -> None:
    layer = layers.Normalization()
    np.testing.assert_array_equal(layer(DATA), DATA)
    assert [(weight.path, weight.shape, weight.trainable) for weight in layer.weights] == [
        ("mean", (3,), False),
        ("variance", (3,), False),
        ("count", (), False),
    ]
    assert layers.Normalization(mean=1.0, variance=1.0)(DATA).shape == DATA.shape


@pytest.mark.parametrize("when", ["before", "built", "in a model"])
def test_adapting_sets_the_weights_that_a_model_uses(when: str) -> None:
    layer = layers.Normalization()
    if when == "before":
        layer.adapt(DATA)
    elif when == "built":
        layer(DATA)
        layer.adapt(DATA)
    model = models.Sequential([layers.Input((3,)), layer])
    if when == "in a model":
        layer.adapt(DATA)
    outputs = model.predict(DATA, verbose=0)
    np.testing.assert_allclose(outputs.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(outputs.std(0), 1, atol=1e-5)
    np.testing.assert_allclose(model.get_weights()[0], DATA.mean(0), rtol=1e-5)


def test_large_arrays_are_adapted_to_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescaling, "_CHUNK_BYTES", 7 * 3 * 8)
    converted = []
    moments = layers.Normalization._moments

    def noted(self: Any, batch: Any) -> Any:
        converted.append(len(batch))
        return moments(self, batch)

    monkeypatch.setattr(layers.Normalization, "_moments", noted)
    layer = layers.Normalization()
    layer.adapt(DATA)
    assert converted == [7] * 7 + [1]
    np.testing.assert_allclose(layer.get_weights()[0], DATA.mean(0), rtol=1e-5)
    np.testing.assert_allclose(layer.get_weights()[1], DATA.var(0), rtol=1e-5)


def test_large_means_cost_no_precision() -> None:
    layer = layers.Normalization(axis=None)
    layer.adapt(1e4 + DATA)
    np.testing.assert_allclose(layer.get_weights()[1], np.var((1e4 + DATA).astype("float64")), rtol=1e-6)


def test_a_mean_at_each_index_of_the_batch() -> None:
    layer = layers.Normalization(axis=0)
    layer.adapt(DATA)
    np.testing.assert_allclose(layer.get_weights()[0], DATA.mean(1), rtol=1e-4)


def test_adapting_again_forgets_what_was_before() -> None:
    layer = layers.Normalization()
    layer.adapt(DATA + 100)
    layer.adapt(iter([DATA[:20], DATA[20:]]))
    np.testing.assert_allclose(layer.get_weights()[0], DATA.mean(0), rtol=1e-5)


def test_numbers_for_channels_that_come_first():
    images = np.ones((2, 3, 4, 5), "float32")
    layer = kd.layers.Rescaling([1.0, 2.0, 3.0], offset=[0.0, 0.0, 1.0])
    kd.config.set_image_data_format("channels_first")
    try:
        np.testing.assert_array_equal(layer(images)[:, :, 0, 0], [[1, 2, 4]] * 2)
    finally:
        kd.config.set_image_data_format("channels_last")


def test_a_py_dataset_is_adapted_to():
    class Batches(kd.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return np.full((4, 3), 2.0 * index, "float32"), np.zeros(4)

    layer = kd.layers.Normalization()
    layer.adapt(Batches())
    np.testing.assert_array_equal(layer.mean, [1, 1, 1])


def test_the_number_of_bins_tells_shapes_before_limits_are_known():
    layer = kd.layers.Discretization(num_bins=4, output_mode="one_hot")
    assert layer.compute_output_shape((None, 3, 2)) == (None, 3, 2, 4)


def test_lists_of_integers_are_encoded() -> None:
    assert layers.CategoryEncoding(3, "one_hot")([2, 0]).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert layers.CategoryEncoding(3, "count")([[0, 2, 2]]).tolist() == [[1, 0, 2]]
