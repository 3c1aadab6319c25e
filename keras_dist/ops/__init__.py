"""Keras's operations on `jax.numpy`, `jax.nn`, `jax.lax`, `jax.scipy` and `jax.image`.

    from keras_dist import ops

    ops.relu(ops.matmul(x, kernel))                     # arrays, numbers, lists, variables
    ops.mean(kd.Input((4, 8)), axis=1)                  # a step of a functional model

`ops.numpy`, `ops.nn`, `ops.linalg` and `ops.image` contain the names of Keras's modules of the same names.

Source: names, arguments and defaults as in `keras.ops`.
"""

# ruff: noqa: F403  # each file lists its names in `__all__`

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist.ops import core, linalg, math, nn, numpy
from keras_dist.ops import image as image
from keras_dist.ops.core import *
from keras_dist.ops.linalg import *
from keras_dist.ops.math import *
from keras_dist.ops.nn import *
from keras_dist.ops.numpy import *
from keras_dist.symbolic.tensors import OPERATIONS as OPERATIONS

__all__ = sorted({*core.__all__, *linalg.__all__, *math.__all__, *nn.__all__, *numpy.__all__})  # pyright: ignore[reportUnsupportedDunderAll]

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
