"""Penalties, and what `regularizers.get` accepts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import regularizers
from keras_dist.errors import ModelError, UnknownNameError

X = jnp.array([[1.0, -2.0], [0.0, 3.0]])


@pytest.mark.parametrize(
    ("regularizer", "penalty"),
    [
        (regularizers.L1(0.5), 3.0),
        (regularizers.L2(0.5), 7.0),
        (regularizers.L1L2(0.5, 0.5), 10.0),
        (regularizers.L1L2(l1=0.5), 3.0),
        (regularizers.L1L2(None, 0.5), 7.0),
        (regularizers.L1L2(), 0.0),
        (regularizers.L1(None), 0.06),
        (regularizers.L2(None), 0.14),
        (regularizers.L2(np.float32(0.5)), 7.0),
        (regularizers.OrthogonalRegularizer(2.0), 2.0 * 2.0 / np.sqrt(5.0)),
        (regularizers.OrthogonalRegularizer(2.0, mode="columns"), 2.0 * 2.0 / np.sqrt(13.0)),
        (regularizers.Regularizer(), 0.0),
    ],
)
def test_penalties(regularizer: Any, penalty: float) -> None:
    assert float(regularizer(X)) == pytest.approx(penalty)
    assert float(jax.jit(regularizer)(X)) == pytest.approx(penalty)


@pytest.mark.parametrize("name", ["l1", "l2", "l1l2", "orthogonal_regularizer"])
def test_a_penalty_has_the_dtype_of_the_weight(name: str) -> None:
    penalty = regularizers.get(name)(X.astype("bfloat16"))  # type: ignore[misc]
    assert (penalty.shape, penalty.dtype) == ((), jnp.bfloat16)


def test_one_row_alone_is_orthogonal() -> None:
    row = jnp.array([[3.0, 4.0]])
    value, gradient = jax.jit(jax.value_and_grad(regularizers.OrthogonalRegularizer()))(row)
    assert float(value) == 0.0
    assert not np.any(gradient)


@pytest.mark.parametrize("factor", [-0.1, float("inf"), float("nan"), "0.1", True, [0.1]])
def test_factors_that_are_none_are_named(factor: Any) -> None:
    for make, name in (
        (regularizers.L1, "l1"),
        (regularizers.L2, "l2"),
        (regularizers.L1L2, "l1"),
        (regularizers.OrthogonalRegularizer, "factor"),
    ):
        with pytest.raises(ModelError, match=f"`{name}` must be a finite number of at least 0") as caught:
            make(factor)
        assert repr(factor) in caught.value.given
        assert caught.value.summary.endswith(" must be a finite number of at least 0")


def test_modes_and_shapes_that_are_none_are_named() -> None:
    with pytest.raises(UnknownNameError, match=r"`mode` must be one of .* \(did you mean 'rows'\?\)"):
        regularizers.OrthogonalRegularizer(mode="row")
    with pytest.raises(ModelError, match="rows or columns of a matrix") as caught:
        regularizers.OrthogonalRegularizer()(jnp.ones((2, 3, 4)))
    assert "(2, 3, 4)" in caught.value.given
