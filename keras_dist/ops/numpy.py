"""Keras's names of NumPy on `jax.numpy`, one subject a file."""

# ruff: noqa: F403  # a name of the files is one of the module: it is written once

from __future__ import annotations

from keras_dist.ops.numpy_arithmetic import *
from keras_dist.ops.numpy_creation import *
from keras_dist.ops.numpy_elementwise import *
from keras_dist.ops.numpy_indexing import *
from keras_dist.ops.numpy_joining import *
from keras_dist.ops.numpy_logic import *
from keras_dist.ops.numpy_matrices import *
from keras_dist.ops.numpy_products import *
from keras_dist.ops.numpy_reductions import *
from keras_dist.ops.numpy_shapes import *
from keras_dist.ops.numpy_statistics import *
from keras_dist.ops.operation import names_in

__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
