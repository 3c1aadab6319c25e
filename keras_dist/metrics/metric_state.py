"""`MetricState`: owner of the array of a metric variable."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.lending import Borrower, Lendable
from keras_dist._support.stateless_scope import trace_error
from keras_dist._unstable.jax_internals import is_traced


class MetricState(Borrower):
    """Owner of the array of a metric variable.

    A step does not wait for its metrics: state on devices is copied to the host only when it is read. Initial values
    stay on the host until then, so that planning allocates nothing.
    """

    def __init__(self, array: jax.Array | np.ndarray) -> None:
        self._array: Any = array
        self._is_read = False

    def array_of(self, variable: Lendable) -> jax.Array:
        """Return the state."""
        with jax.ensure_compile_time_eval():
            self._array = jnp.asarray(self._array)  # pyright: ignore[reportUnknownMemberType]
        return self._array

    def unshared(self, variable: Lendable) -> jax.Array:
        """Return the state; copy it first if it was read."""
        if self._is_read:
            self.set_to_copy(variable, self._array)
        return self.array_of(variable)

    def copy_of(self, variable: Lendable) -> jax.Array:
        """Return the state as an array on no mesh."""
        if not self._is_read:
            self.set_to_copy(variable, np.asarray(self._array))
            self._is_read = True
        return self._array

    def take(self, variable: Lendable, array: Any) -> None:
        """Replace the state by an unshared array."""
        self._array, self._is_read = array, False

    def set_to_copy(self, variable: Lendable, value: Any) -> None:
        """Replace the state by a copy of a value."""
        if is_traced(value):
            raise trace_error(variable.path)  # pyright: ignore[reportArgumentType]
        with jax.ensure_compile_time_eval():
            self.take(variable, jnp.array(value, variable.dtype))  # pyright: ignore[reportUnknownMemberType]
