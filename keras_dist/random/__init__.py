"""Random numbers: Keras's functions, generators that keep state, and the seed of the process.

    from keras_dist import random

    random.normal((2, 3), seed=1337)                    # the same in each call
    generator = random.SeedGenerator(1337)              # owned by a layer: other ones in each call, and in each step
    random.normal((2, 3), seed=generator)

One seed gives the bits that Keras gives on JAX.
"""

from keras_dist.random.distributions import (
    beta,
    binomial,
    categorical,
    gamma,
    normal,
    randint,
    truncated_normal,
    uniform,
)
from keras_dist.random.elements import dropout, shuffle
from keras_dist.random.keys import check_seed as check_seed
from keras_dist.random.keys import current_seed as current_seed
from keras_dist.random.keys import key_stream as key_stream
from keras_dist.random.keys import next_key as next_key
from keras_dist.random.keys import set_random_seed
from keras_dist.random.seed_generator import SeedGenerator

__all__ = [
    "SeedGenerator",
    "beta",
    "binomial",
    "categorical",
    "dropout",
    "gamma",
    "normal",
    "randint",
    "set_random_seed",
    "shuffle",
    "truncated_normal",
    "uniform",
]
