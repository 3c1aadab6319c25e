"""Weights brought back to where they are allowed, and what `constraints.get` accepts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import constraints
from keras_dist.errors import ModelError

W = jnp.array([[3.0, 0.3, 0.0], [-4.0, 0.4, 0.0]])  # columns of length 5, 0.5 and 0


@pytest.mark.parametrize(
    ("constraint", "lengths"),
    [
        (constraints.MaxNorm(), [2.0, 0.5, 0.0]),
        (constraints.MaxNorm(0.1), [0.1, 0.1, 0.0]),
        (constraints.UnitNorm(), [1.0, 1.0, 0.0]),
        (constraints.MinMaxNorm(0.8, 2.0), [2.0, 0.8, 0.0]),
        (constraints.MinMaxNorm(0.8, 2.0, rate=0.5), [3.5, 0.65, 0.0]),
        (constraints.Constraint(), [5.0, 0.5, 0.0]),
    ],
    ids=lambda case: type(case).__name__,
)
def test_lengths(constraint: Any, lengths: list[float]) -> None:
    value = jax.jit(constraint)(W)
    np.testing.assert_allclose(np.linalg.norm(value, axis=0), lengths, rtol=1e-5)
    assert np.all(np.sign(value) == np.sign(W))


@pytest.mark.parametrize("name", ["max_norm", "min_max_norm", "non_neg", "unit_norm"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shape_and_dtype_stay(name: str, dtype: str) -> None:
    value = constraints.get(name)(W.astype(dtype))  # type: ignore[misc]
    assert (value.shape, value.dtype) == (W.shape, jnp.dtype(dtype))


def test_bounds_that_no_length_meets_are_named() -> None:
    for make in (lambda: constraints.MaxNorm(-1), lambda: constraints.MinMaxNorm(2.0, 1.0)):
        with pytest.raises(ModelError, match="`min_value` and `max_value` must be") as caught:
            make()
        assert caught.value.summary.endswith(" 0 <= min_value <= max_value")
