"""Random functions, generators with state, and the seed of the process.

    from keras_dist import random

    random.normal((2, 3), seed=1337)                    # the same numbers in each call
    generator = random.SeedGenerator(1337)              # owned by a layer: new numbers in each call and step
    random.normal((2, 3), seed=generator)

A seed gives the same bits as Keras on JAX.

Source: names, arguments and defaults as in `keras.random`.
"""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist._support.raw_errors import explain_functions
from keras_dist.random.functions import (
    beta,
    binomial,
    categorical,
    dropout,
    gamma,
    normal,
    randint,
    shuffle,
    truncated_normal,
    uniform,
)
from keras_dist.random.seeds import check_seed as check_seed
from keras_dist.random.seeds import current_seed as current_seed
from keras_dist.random.seeds import key_stream as key_stream
from keras_dist.random.seeds import next_key as next_key
from keras_dist.random.seeds import next_seed as next_seed
from keras_dist.random.seeds import set_random_seed

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

explain_functions(vars())
if TYPE_CHECKING:
    from keras_dist.variables import SeedGenerator
else:
    __getattr__ = missing_from(__name__)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
