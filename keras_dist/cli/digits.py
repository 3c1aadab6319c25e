"""The model and the run of `keras-dist demo`; `demo.toml` has the other settings."""

from __future__ import annotations

import time

import jax
from flax import nnx

import keras_dist as kd


class Classifier(nnx.Module):
    """Two dense layers on 8x8 images with values 0 to 16."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(64, width, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.logits = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return logits, `(batch, 10)`, of images, `(batch, 8, 8)`."""
        pixels = images.reshape(len(images), -1) / 16.0
        return self.logits(self.dropout(nnx.relu(self.hidden(pixels))))


def train(config: kd.config.RunConfig, devices: int) -> float:
    """Train on `devices` fake CPU devices, and return the accuracy on the test images."""
    started = time.monotonic()
    kd.use_cpu_devices(devices)
    run = kd.assembly.build(config)
    run.model.summary()
    run.train()
    accuracy = run.evaluate()["accuracy"]
    print(f"wall time {time.monotonic() - started:.1f} s")
    print(f"mesh {run.distribution.device_mesh.describe()}: test accuracy {accuracy:.4f}")
    return accuracy
