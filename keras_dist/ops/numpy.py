"""Keras's names of NumPy functions, on `jax.numpy`."""

# ruff: noqa: F403  # each file lists its names in `__all__`

from __future__ import annotations

from keras_dist.ops.numpy_creation import *
from keras_dist.ops.numpy_elementwise import *
from keras_dist.ops.numpy_reductions import *
from keras_dist.ops.numpy_shapes import *
from keras_dist.ops.operation import names_in

__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
