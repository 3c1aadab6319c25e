"""Activations: Keras's names and defaults on `jax.nn`, as functions of one array."""

from keras_dist.activations.along_axis import glu, log_softmax, softmax, sparsemax
from keras_dist.activations.identifiers import deserialize, get, serialize
from keras_dist.activations.rectifiers import (
    hard_sigmoid,
    hard_silu,
    hard_tanh,
    leaky_relu,
    linear,
    relu,
    relu6,
    sparse_plus,
    sparse_sigmoid,
    threshold,
)
from keras_dist.activations.shrinking import hard_shrink, soft_shrink, tanh_shrink
from keras_dist.activations.smooth import (
    celu,
    elu,
    exponential,
    gelu,
    log_sigmoid,
    mish,
    selu,
    sigmoid,
    silu,
    softplus,
    softsign,
    squareplus,
    tanh,
)

# Keras knows the functions under these names, too
hard_swish = hard_silu
swish = silu

__all__ = [
    "celu",
    "deserialize",
    "elu",
    "exponential",
    "gelu",
    "get",
    "glu",
    "hard_shrink",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "leaky_relu",
    "linear",
    "log_sigmoid",
    "log_softmax",
    "mish",
    "relu",
    "relu6",
    "selu",
    "serialize",
    "sigmoid",
    "silu",
    "soft_shrink",
    "softmax",
    "softplus",
    "softsign",
    "sparse_plus",
    "sparse_sigmoid",
    "sparsemax",
    "squareplus",
    "swish",
    "tanh",
    "tanh_shrink",
    "threshold",
]
