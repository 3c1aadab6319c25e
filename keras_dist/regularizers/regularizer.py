"""`Regularizer`: a penalty on a weight or an output."""

from __future__ import annotations

from typing import Any

import jax

from keras_dist._arguments import check_number
from keras_dist.saving import Configurable


class Regularizer(Configurable):
    """Base of all regularizers: a subclass gives a penalty, a scalar, in `__call__(x)`.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import regularizers
        >>> class Mean(regularizers.Regularizer):
        ...     def __call__(self, x):
        ...         return jnp.mean(x)
        >>> float(Mean()(jnp.array([1.0, 2.0])))
        1.5

    Source: `keras.regularizers.Regularizer`.
    """

    def __call__(self, x: Any) -> jax.Array | float:
        """The penalty on `x`: none."""
        return 0.0


def check_factor(argument: str, value: Any) -> float:
    """Return `value` as a float, if it is finite and not negative."""
    return check_number(argument, value, 0, wrong="is not a factor of a penalty", example=0.01)
