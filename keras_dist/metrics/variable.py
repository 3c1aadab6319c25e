"""`MetricVariable`: an array of a metric's state."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist import _jax
from keras_dist._operators import Operators, as_pytree, value_of
from keras_dist.errors import ModelError


@as_pytree
class MetricVariable(Operators):
    """An array of a metric's state. It counts as its value in arithmetic and functions of `jax.numpy`.

    Args:
        value: the initial value; it decides shape and dtype for good.
        name: for errors and listings.
        owner: the name of its metric.
    """

    def __init__(self, value: np.ndarray, name: str, owner: str) -> None:
        self.name = name
        self.path = f"{owner}/{name}"
        self.shape = value.shape
        self.dtype = value.dtype
        self._value: Any = value
        self._held: Any = None

    def _read(self) -> Any:
        if self._held is not None:
            self._value, self._held = np.asarray(self._held), None
        return jnp.asarray(self._value)

    def hold(self, value: jax.Array) -> None:
        """Put an array of its shape and dtype in the place of the current one; reading it fetches it to the host."""
        self._held = value

    def _checked(self, value: Any) -> Any:
        """Return `value`, broadcast to the shape and cast to the dtype."""
        array = jnp.asarray(value_of(value), self.dtype)
        if array.shape != self.shape:
            if array.ndim:
                raise ModelError(
                    f"metric variable {self.name!r} cannot take a value of another shape",
                    given=f"shape {array.shape}",
                    expected=f"shape {self.shape}, or a scalar",
                    fix=f"reduce the value first, or add_variable(shape={array.shape}, ...)",
                )
            array = jnp.broadcast_to(array, self.shape)
        return array

    def _write(self, value: Any) -> Any:
        if _jax.is_traced(value):
            raise ModelError(
                f"a metric is updated inside of a compiled function, which does not own its variable {self.name!r}",
                given="metric.update_state(...) in call, compute_loss or train_step",
                expected="metrics that compile knows, or pure functions",
                fix="compile(..., metrics=[metric]); in a train_step of your own return the value in its logs, or use "
                "metric.stateless_update_state",
            )
        self._value, self._held = value, None
        return value

    def _array(self) -> Any:
        return jnp.asarray(self._value) if self._held is None else self._held

    def _store(self, array: jax.Array) -> None:
        self.hold(array)

    def __repr__(self) -> str:
        return f"<MetricVariable {self.name!r} {self.value}>"
