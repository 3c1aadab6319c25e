"""`SeedGenerator`: a stream of random keys. `keras_dist.random` shows it; here it can own a `Variable`."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from keras_dist._support.raw_errors import explain_methods
from keras_dist._support.types import DTypeLike, Shape
from keras_dist._unstable.flax_internals import TraceError, in_trace_of
from keras_dist._unstable.jax_internals import is_tracing
from keras_dist.errors import ModelError
from keras_dist.random.seeds import KeySource, check_seed, unseeded_key
from keras_dist.variables.initial_values import initial_of
from keras_dist.variables.variable import Key


@explain_methods
class SeedGenerator(nnx.Module, KeySource):
    """A stream of random keys whose position is a variable; layers that draw random numbers own one.

    Args:
        seed: an integer, 0 <= seed < 2**32, or None for a seed derived from the seed of the model.
        name: by default "seed_generator"; not part of paths.

    Attributes:
        seed_generator_state: `[seed, draws]`, uint32, created with the layer that owns the generator.

    Raises:
        ModelError: `seed` is not such an integer.
    """

    __module__ = "keras_dist.random"  # where users and saved files find it

    def __init__(self, seed: int | None = None, name: str | None = None) -> None:
        self.name = name or "seed_generator"
        self.seed = None if seed is None else check_seed(seed)

    @property
    def state(self) -> Key:
        """The variable `[seed, draws]`, created at its first use, which must not be in a compiled function."""
        if not hasattr(self, "seed_generator_state"):
            with in_trace_of(self):
                first, key = _FirstState(self.seed), unseeded_key() if self.seed is None and is_tracing() else None
                initial = first((2,), jnp.uint32, key) if is_tracing() else initial_of(first, "")
                state: Any = Key.of_layer(initial, (2,), jnp.dtype(jnp.uint32), "seed_generator_state", autocast=False)
                state.set_metadata(tag="seed_generator_state")
                self.seed_generator_state = state
        return self.seed_generator_state

    def next(self, ordered: bool = True) -> jax.Array:
        """Return the next key `[seed, draws]` in uint32, as Keras and functions of `jax.random` use it.

        Args:
            ordered: unused, as in Keras on JAX.

        Raises:
            ModelError: the call is in a compiled function that does not own the generator. Each call of the function
                would draw the same numbers.
        """
        del ordered
        try:
            state = self.state
            words = jnp.array(state[...], copy=True)  # a later step donates the state
            after = state[...] + jnp.array([0, 1], jnp.uint32)
            state[...] = after
        except (TraceError, jax.errors.TracerArrayConversionError) as error:
            summary = "a SeedGenerator is drawn from inside a compiled function that does not own it"
            given = f"a generator of seed {self.seed} that was made outside of jax.jit or the like"
            fix = "pass generator.next() to the function; in a layer self.seed_generator = SeedGenerator() in __init__"
            raise ModelError(summary, given=given, fix=fix) from error
        return words

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {"seed": self.seed, "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> SeedGenerator:
        """Return a generator at its initial position."""
        return cls(**config)


@dataclasses.dataclass(frozen=True)
class _FirstState:
    """The initializer of the state of a generator."""

    seed: int | None

    def __call__(self, shape: Shape, dtype: DTypeLike, key: jax.Array | None) -> jax.Array:
        first = jnp.uint32(self.seed) if key is None or self.seed is not None else jax.random.bits(key, (), jnp.uint32)
        return jnp.stack([first, jnp.uint32(0)])
