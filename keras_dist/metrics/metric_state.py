"""`MetricState`: the state of a metric before its variable is read."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist import _jax
from keras_dist._lending import Borrower, Lendable
from keras_dist._stateless_scope import trace_error


class MetricState(Borrower):
    """The borrower of one metric variable: reading the variable copies the state, and ends the loan.

    A step does not wait for its metrics, so that a state on the devices is fetched only when somebody reads it. An
    initial value stays on the host until then, so that planning allocates nothing.

    Args:
        array: the state.
    """

    def __init__(self, array: jax.Array | np.ndarray) -> None:
        self.array = array

    def array_of(self, variable: Lendable) -> jax.Array:
        """Return the state."""
        del variable
        with jax.ensure_compile_time_eval():
            self.array = jnp.asarray(self.array)  # pyright: ignore[reportUnknownMemberType]
        return self.array

    def copy_of(self, variable: Lendable) -> jax.Array:
        """Return the state as an array that is on no mesh."""
        self.set_to_copy(variable, np.asarray(self.array))
        return variable.peek()

    def take(self, variable: Lendable, array: Any) -> None:
        """End the loan with another array."""
        variable.lend_to(None)
        variable.keep(array)

    def set_to_copy(self, variable: Lendable, value: Any) -> None:
        """End the loan with a copy of a value."""
        if _jax.is_traced(value):
            raise trace_error(variable.path)  # pyright: ignore[reportArgumentType]
        with jax.ensure_compile_time_eval():
            self.take(variable, jnp.array(value, variable.dtype))  # pyright: ignore[reportUnknownMemberType]
