"""Initializers: Keras's names and defaults on `jax.nn.initializers`, called as `initializer(shape, dtype, key)`."""

from typing import TYPE_CHECKING

from keras_dist._not_here import missing_from
from keras_dist.initializers.constants import Constant, Identity, Ones, Zeros
from keras_dist.initializers.identifiers import deserialize, get, serialize
from keras_dist.initializers.initializer import FromArray, FromFunction, Initializer, RandomInitializer
from keras_dist.initializers.random_values import (
    GlorotNormal,
    GlorotUniform,
    HeNormal,
    HeUniform,
    LecunNormal,
    LecunUniform,
    Orthogonal,
    RandomNormal,
    RandomUniform,
    TruncatedNormal,
    VarianceScaling,
)

# Keras knows the classes under these names, too
IdentityInitializer = identity = Identity
OrthogonalInitializer = orthogonal = Orthogonal
constant = Constant
glorot_normal = GlorotNormal
glorot_uniform = GlorotUniform
he_normal = HeNormal
he_uniform = HeUniform
lecun_normal = LecunNormal
lecun_uniform = LecunUniform
ones = Ones
random_normal = RandomNormal
random_uniform = RandomUniform
truncated_normal = TruncatedNormal
variance_scaling = VarianceScaling
zeros = Zeros

__all__ = [
    "Constant",
    "FromArray",
    "FromFunction",
    "GlorotNormal",
    "GlorotUniform",
    "HeNormal",
    "HeUniform",
    "Identity",
    "IdentityInitializer",
    "Initializer",
    "LecunNormal",
    "LecunUniform",
    "Ones",
    "Orthogonal",
    "OrthogonalInitializer",
    "RandomInitializer",
    "RandomNormal",
    "RandomUniform",
    "TruncatedNormal",
    "VarianceScaling",
    "Zeros",
    "constant",
    "deserialize",
    "get",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "identity",
    "lecun_normal",
    "lecun_uniform",
    "ones",
    "orthogonal",
    "random_normal",
    "random_uniform",
    "serialize",
    "truncated_normal",
    "variance_scaling",
    "zeros",
]

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
