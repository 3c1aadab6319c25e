"""The process-wide random seed, from which models draw their initial values and Dropout streams."""

from __future__ import annotations

import operator
import secrets

from keras_dist.errors import ModelError

_seed: int | None = None


def set_random_seed(seed: int) -> None:
    """Fix the seed of every model built from now on without a `seed` of its own.

    Args:
        seed: an integer, 0 <= seed < 2**32.

    Raises:
        ModelError: `seed` is not such an integer.

    Differs from Keras: numpy's and Python's own generators are left alone; keras_dist never draws from them.
    Two models made one after the other under one seed get the same initial values.

    Source: `keras.utils.set_random_seed`.
    """
    global _seed
    _seed = check_seed(seed)


def current_seed() -> int:
    """The seed set by `set_random_seed`; a fresh one from the operating system when none was set."""
    return _seed if _seed is not None else secrets.randbits(32)


def check_seed(seed: object) -> int:
    """`seed` as an int, 0 <= seed < 2**32.

    Raises:
        ModelError: it is not one.
    """
    try:
        value = operator.index(seed)  # type: ignore[arg-type]
    except TypeError:
        value = -1
    if isinstance(seed, bool) or not 0 <= value < 2**32:
        raise ModelError(
            "`seed` is not a random seed",
            given=f"{seed!r}",
            expected="an integer, 0 <= seed < 2**32",
            fix="for example seed=1337",
        )
    return value
