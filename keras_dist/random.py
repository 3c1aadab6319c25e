"""Random numbers: the process-wide seed, the keys of initial values, and generators that keep state."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import operator
import secrets
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from flax import nnx

from keras_dist.errors import ModelError

__all__ = ["SeedGenerator", "set_random_seed"]

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


@contextlib.contextmanager
def key_stream(seed: int) -> Iterator[None]:
    """Inside, `next_key` gives the keys of `seed`, in the order in which they are asked for."""
    token = _stream.set(_keys(seed))
    try:
        yield
    finally:
        _stream.reset(token)


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


class SeedGenerator(nnx.Module):
    """A stream of random keys whose position is a variable: layers that draw random numbers own one.

    Attributes:
        seed: the first of its two numbers; None for one that follows from the model's seed.
        seed_generator_state: `[seed, draws]`, uint32; born with the layer that owns the generator.

    Args:
        seed: an integer, 0 <= seed < 2**32, or None.
        name: not used.

    Raises:
        ModelError: `seed` is not such an integer.

    Source: `keras.random.SeedGenerator`; with one seed, both give the same bits.
    """

    def __init__(self, seed: int | None = None, name: str | None = None) -> None:
        del name
        self.seed = None if seed is None else check_seed(seed)

    @property
    def state(self) -> nnx.RngState:
        """`[seed, draws]`, made when it is first asked for."""
        if not hasattr(self, "seed_generator_state"):
            first = jax.random.bits(next_key(), (), jnp.uint32) if self.seed is None else jnp.uint32(self.seed)
            self.seed_generator_state = nnx.RngState(jnp.stack([first, jnp.uint32(0)]), tag="seed_generator_state")
        return self.seed_generator_state

    def next(self) -> jax.Array:
        """The next typed PRNG key."""
        state = self.state
        key = jax.random.wrap_key_data(state[...])
        state[...] = state[...] + jnp.array([0, 1], jnp.uint32)
        return key

    def get_config(self) -> dict[str, int | None]:
        """The arguments of the constructor."""
        return {"seed": self.seed}

    @classmethod
    def from_config(cls, config: dict[str, int | None]) -> SeedGenerator:
        """A generator from its first number on."""
        return cls(**config)  # type: ignore[arg-type]


def _keys(seed: int) -> Iterator[jax.Array]:
    return (jax.random.fold_in(jax.random.key(seed), count) for count in itertools.count())
