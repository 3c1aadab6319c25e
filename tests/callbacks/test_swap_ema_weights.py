"""`SwapEMAWeights`; `tests/parity/test_multi_optimizer.py` compares its numbers with Keras's."""

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers


class Fails(kd.callbacks.Callback):
    """An error in the validation of the second epoch, when averages are in place of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = None

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.weights = self.model.get_weights()

    def on_test_batch_begin(self, batch, logs=None):
        if self.epoch == 1:
            raise ValueError("a broken batch")


def test_an_error_in_validation_restores_the_weights():
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    model, fails = kd.Sequential([kd.Input((3,)), layers.Dense(1)]), Fails()
    model.compile(kd.optimizers.SGD(0.1, use_ema=True), "mse")
    with pytest.raises(ValueError, match="a broken batch"):
        options = {"epochs": 2, "validation_data": (x, x[:, :1]), "verbose": 0}
        model.fit(x, x[:, :1], callbacks=[kd.callbacks.SwapEMAWeights(), fails], **options)
    np.testing.assert_array_equal(model.get_weights()[0], fails.weights[0])
