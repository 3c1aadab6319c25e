"""The run of `make demo`: a classifier of handwritten digits, on a mesh of eight fake CPU devices.

`demo.toml` says all of it but the model; the environment variable `KERAS_DIST_MESH` changes the shape of the mesh.
"""

from __future__ import annotations

import pathlib
import time

import jax
from flax import nnx

import keras_dist as kd

CONFIG = pathlib.Path(__file__).with_name("demo.toml")
DEVICES = 8


class Classifier(nnx.Module):
    """Two dense layers over the pixels of an 8x8 image, values 0..16."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(64, width, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.logits = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits (batch, 10) of `images` (batch, 8, 8)."""
        pixels = images.reshape(len(images), -1) / 16.0
        return self.logits(self.dropout(nnx.relu(self.hidden(pixels))))


def train() -> float:
    """Train, and return the accuracy over the test images."""
    started = time.monotonic()
    kd.use_cpu_devices(DEVICES)
    run = kd.assembly.build(kd.config.load(CONFIG))
    run.model.summary()
    run.train()
    accuracy = run.evaluate()["accuracy"]
    print(f"wall time {time.monotonic() - started:.1f} s")
    print(f"mesh {run.distribution.device_mesh.describe()}: test accuracy {accuracy:.4f}")
    return accuracy
