"""Benchmarks: `make bench` runs them all. They measure; tests do not time."""

import os

os.environ["KERAS_BACKEND"] = "jax"
