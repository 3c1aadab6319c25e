"""The process-wide seed, and the keys of initial values."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import secrets
from collections.abc import Iterator

import jax

from keras_dist import _jax
from keras_dist._arguments import check_int
from keras_dist.errors import ModelError

_seed: int | None = None
_stream: contextvars.ContextVar[Iterator[jax.Array] | None] = contextvars.ContextVar("keys", default=None)
_process_stream: Iterator[jax.Array] | None = None


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
    global _seed, _process_stream
    _seed = check_seed(seed)
    _process_stream = None


def check_seed(seed: object) -> int:
    """Return `seed` as an int, if it is an integer, 0 <= seed < 2**32."""
    return check_int("seed", seed, 0, 2**32 - 1, wrong="is not a random seed", example=1337)


def current_seed() -> int:
    """The seed set by `set_random_seed`; a fresh one from the operating system when none was set."""
    return _seed if _seed is not None else secrets.randbits(32)


def next_key() -> jax.Array:
    """The next typed PRNG key: of the model that is being built, else of the process."""
    global _process_stream
    stream = _stream.get()
    if stream is None:
        if _process_stream is None:
            _process_stream = _keys(current_seed())
        stream = _process_stream
    return next(stream)


def unseeded_key() -> jax.Array:
    """The next key, for numbers that must differ from call to call.

    Raises:
        ModelError: JAX is tracing, and no model is being built. The key would become a constant of the compiled
            program, and its numbers the same in each call.
    """
    key = next_key()
    if _stream.get() is None and _jax.is_traced(key):
        raise ModelError(
            "random numbers without a seed inside a compiled function",
            given="seed=None while JAX traces, as it does with `call` of every layer",
            expected="a SeedGenerator that the layer owns: its position is a variable of the model, so that each step "
            "draws other numbers",
            fix="self.seed_generator = SeedGenerator() in __init__, and seed=self.seed_generator in call",
        )
    return key


@contextlib.contextmanager
def key_stream(seed: int) -> Iterator[None]:
    """Inside, `next_key` gives the keys of `seed`, in the order in which they are asked for."""
    token = _stream.set(_keys(seed))
    try:
        yield
    finally:
        _stream.reset(token)


def _keys(seed: int) -> Iterator[jax.Array]:
    return (jax.random.fold_in(jax.random.key(seed), count) for count in itertools.count())
