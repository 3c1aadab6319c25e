"""Seeds and keys: the seed of the process, keys of initial values, and keys of the argument `seed`."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import secrets
from collections.abc import Generator, Iterator
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support import ambient
from keras_dist._support.arguments import check_int
from keras_dist._unstable.jax_internals import is_key_dtype, is_traced
from keras_dist.errors import ModelError


@dataclasses.dataclass(eq=False)
class _Seeds:
    """The seed of the process; None for seeds of the operating system."""

    seed: int | None = None
    drawn: int = 0  # number of models that have got a seed
    keys: tuple[int, Iterator[int]] | None = None  # a seed, and the numbers that are folded into it


def _seeds() -> _Seeds:
    return ambient.process.seeds


ambient.process.seeds = _Seeds()


def set_random_seed(seed: int) -> None:
    """Set the seed of models that are built later without a `seed`, and the seeds of Python and numpy.

    The first model that creates its weights gets this seed. Later models get seeds derived from it and their number, so
    that the same program gives the same numbers, and two models differ.

    Args:
        seed: an integer, 0 <= seed < 2**32.

    Raises:
        ModelError: `seed` is not such an integer.

    Source: `keras.utils.set_random_seed`. Unlike Keras, keras_dist never draws from `random` and `numpy.random`.
    """
    seed = check_seed(seed)
    ambient.process.seeds = _Seeds(seed)
    random.seed(seed)
    np.random.seed(seed)


def check_seed(seed: object) -> int:
    """Return `seed` as an int, if it is an integer, 0 <= seed < 2**32."""
    return check_int("seed", seed, 0, 2**32 - 1, example=1337)


def current_seed() -> int:
    """Return the seed set by `set_random_seed`, or a new seed from the operating system."""
    seed = _seeds().seed
    return secrets.randbits(32) if seed is None else seed


def next_seed() -> int:
    """Return the seed of the next model: first the seed of `set_random_seed`, then seeds derived from it."""
    seeds = _seeds()
    number, seeds.drawn = seeds.drawn, seeds.drawn + 1
    if seeds.seed is None or number == 0:
        return current_seed()
    return int(np.random.SeedSequence([seeds.seed, number]).generate_state(1)[0])


@contextlib.contextmanager
def unchanged_seeds() -> Generator[None]:
    """Context manager that restores the position of `next_seed` at exit."""
    before = _seeds().drawn
    try:
        yield
    finally:
        _seeds().drawn = before


def next_key() -> jax.Array:
    """Return the next typed PRNG key of the model that is being built, or else of the process."""
    stream = ambient.keys.get()
    if stream is not None:
        return next(stream)
    seed, number = next_numbers()
    return jax.random.fold_in(jax.random.key(seed), number)


def next_numbers() -> tuple[int, int]:
    """Return the seed and the number of the next key of the process, which is the one folded with the other."""
    seeds = _seeds()
    if seeds.keys is None:
        seeds.keys = current_seed(), itertools.count()
    seed, numbers = seeds.keys
    return seed, next(numbers)


def unseeded_key() -> jax.Array:
    """Return the next key; raise a ModelError in a trace, where the key would become a constant of the program."""
    key = next_key()
    if ambient.keys.get() is None and is_traced(key):
        summary = "random numbers without a seed inside a compiled function would be the same in each call"
        fix = "seed=self.seed_generator in call, a SeedGenerator that the layer creates in __init__"
        raise ModelError(summary, given="seed=None while JAX traces, as it does with `call` of every layer", fix=fix)
    return key


def key_stream(key: jax.Array) -> contextlib.AbstractContextManager[object]:
    """Context manager in which `next_key` returns `key` folded with 0, 1, 2, ..., in the order of the calls."""
    return ambient.with_value(ambient.keys, (jax.random.fold_in(key, count) for count in itertools.count()))


class KeySource:
    """Base of `SeedGenerator`, which `keras_dist.variables` defines: it owns a variable."""

    seed: int | None

    def next(self) -> jax.Array:
        """Return the next key `[seed, draws]` in uint32."""
        raise NotImplementedError


def key_of(seed: Any) -> jax.Array:
    """Return the typed PRNG key of the argument `seed` of random functions, which may be a PRNG key itself."""
    if seed is None:
        return unseeded_key()
    if isinstance(seed, KeySource):
        return wrap_key(seed.next())
    if isinstance(seed, jax.Array) and is_key_dtype(seed.dtype) and not seed.shape:
        return seed
    if isinstance(seed, jax.Array) and seed.dtype == jnp.uint32 and seed.shape == (2,):
        return wrap_key(seed)
    if isinstance(seed, jax.Array):
        given = f"an array of {seed.dtype}, shape {seed.shape}"
        fix = "for example seed=1337, or seed=self.seed_generator in a layer"
        raise ModelError("`seed` must be an integer, a SeedGenerator, or one PRNG key", given=given, fix=fix)
    return wrap_key(jnp.array([check_seed(seed), 0], jnp.uint32))


def wrap_key(words: jax.Array) -> jax.Array:
    """Return the typed PRNG key of two uint32, for Keras's generator on JAX."""
    return cast("jax.Array", jax.random.wrap_key_data(words, impl="threefry2x32"))
