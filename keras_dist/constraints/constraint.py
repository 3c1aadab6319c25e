"""`Constraint`: what a weight is brought back to after each step."""

from __future__ import annotations

from typing import Any

from keras_dist.saving import Configurable


class Constraint(Configurable):
    """Base of all constraints: a subclass gives the nearest allowed weight in `__call__(w)`.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import constraints
        >>> class AtMostOne(constraints.Constraint):
        ...     def __call__(self, w):
        ...         return jnp.minimum(w, 1.0)
        >>> AtMostOne()(jnp.array([0.5, 2.0]))
        Array([0.5, 1. ], dtype=float32)

    Source: `keras.constraints.Constraint`.
    """

    def __call__(self, w: Any) -> Any:
        """An array of `w`'s shape and dtype: `w` itself."""
        return w
