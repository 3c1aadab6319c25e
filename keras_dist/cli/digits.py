"""`keras-dist demo`: a classifier of handwritten digits, trained on a mesh of eight fake CPU devices.

The layouts come from `demo.toml`; the environment variable `KERAS_DIST_MESH` changes the shape of the mesh.
"""

from __future__ import annotations

import pathlib
import time

import jax
from flax import nnx

import keras_dist as kd
from keras_dist.datasets import digits

CONFIG = pathlib.Path(__file__).with_name("demo.toml")
DEVICES = 8
BATCH_SIZE = 128
EPOCHS = 15


class Classifier(nnx.Module):
    """Two dense layers over the pixels of an 8x8 image, values 0..16."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(64, 256, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.logits = nnx.Linear(256, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits (batch, 10) of `images` (batch, 8, 8)."""
        pixels = images.reshape(len(images), -1) / 16.0
        return self.logits(self.dropout(nnx.relu(self.hidden(pixels))))


def train() -> float:
    """Train, and return the accuracy over the test images."""
    started = time.monotonic()
    kd.use_cpu_devices(DEVICES)
    kd.set_random_seed(1337)
    kd.set_distribution(kd.distribution_from_config(CONFIG))
    (x_train, y_train), (x_test, y_test) = digits.load_data()

    model = kd.Model.from_nnx(Classifier)
    model.compile("adam", loss=kd.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.optimizer.learning_rate = 3e-3
    model.summary()
    model.fit(x_train, y_train, batch_size=BATCH_SIZE, epochs=EPOCHS, validation_data=(x_test, y_test))

    accuracy = model.evaluate(x_test, y_test, batch_size=BATCH_SIZE, verbose=0, return_dict=True)["accuracy"]
    print(f"mesh {model.distribution.device_mesh.describe()}: test accuracy {accuracy:.4f}")
    print(f"wall time {time.monotonic() - started:.1f} s")
    return accuracy
