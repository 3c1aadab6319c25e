"""`Regularizer`: a penalty on a weight or an output."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from keras_dist.errors import ModelError, shorten
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


def check_factor(name: str, value: Any) -> float:
    """`value` as a float, which is 0 or more.

    Raises:
        ModelError: it is not.
    """
    if not isinstance(value, int | float | np.number) or isinstance(value, bool) or not 0 <= float(value) < math.inf:
        raise ModelError(
            f"`{name}` is not a factor of a penalty",
            given=f"{name}={shorten(value)}",
            expected="a finite number, 0 or more",
            fix=f"for example {name}=0.01",
        )
    return float(value)
