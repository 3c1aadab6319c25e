"""Penalties, and what `regularizers.get` accepts."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import regularizers, saving
from keras_dist.errors import ConfigError, ModelError, UnknownNameError

X = jnp.array([[1.0, -2.0], [0.0, 3.0]])


class Mean(regularizers.Regularizer):
    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def __call__(self, x: Any) -> Any:
        return self.factor * jnp.mean(x)


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
    value, gradient = jax.value_and_grad(regularizers.OrthogonalRegularizer())(row)
    assert float(value) == 0.0
    assert not np.any(gradient)


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("l1", regularizers.L1),
        ("L1", regularizers.L1),
        ("l2", regularizers.L2),
        ("L2", regularizers.L2),
        ("l1l2", regularizers.L1L2),
        ("l1_l2", regularizers.L1L2),
        ("L1L2", regularizers.L1L2),
        ("orthogonal_regularizer", regularizers.OrthogonalRegularizer),
        ("OrthogonalRegularizer", regularizers.OrthogonalRegularizer),
    ],
)
def test_names(name: str, cls: type) -> None:
    assert type(regularizers.get(name)) is cls
    if name != "l1l2":
        assert getattr(regularizers, name) is cls


def test_objects_functions_classes_and_none() -> None:
    mean = Mean()
    assert regularizers.get(mean) is mean
    assert regularizers.get(jnp.sum) is jnp.sum
    assert type(regularizers.get(Mean)) is Mean
    assert regularizers.get(None) is None


@pytest.mark.parametrize(
    "regularizer",
    [regularizers.L1(0.3), regularizers.L1L2(0.1), regularizers.OrthogonalRegularizer(0.2, "columns")],
    ids=lambda regularizer: type(regularizer).__name__,
)
def test_configs_survive_json(regularizer: Any) -> None:
    config = json.loads(json.dumps(regularizers.serialize(regularizer)))
    again = regularizers.deserialize(config)
    assert type(again) is type(regularizer)
    assert again.get_config() == regularizer.get_config()
    assert float(regularizers.get(config)(X)) == float(regularizer(X))  # type: ignore[misc]


def test_custom_objects() -> None:
    config = regularizers.serialize(Mean(4.0))
    assert float(regularizers.deserialize(config, {"Mean": Mean})(X)) == 2.0
    with saving.custom_object_scope({"mean": Mean}):
        assert type(regularizers.get("mean")) is Mean


@pytest.mark.parametrize(
    ("identifier", "error", "words"),
    [
        ("l3", UnknownNameError, r"unknown regularizer 'l3' \(did you mean 'l"),
        (0.01, ModelError, "cannot be called as regularizer"),
        (lambda: 0.0, ModelError, "cannot be called as regularizer"),
        (lambda x, y: 0.0, ModelError, "cannot be called as regularizer"),
        ({"class_name": "L3", "config": {}}, ConfigError, "'L3', which is not known"),
    ],
)
def test_what_is_no_regularizer_is_named(identifier: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        regularizers.get(identifier)
    assert caught.value.given
    assert caught.value.fix


@pytest.mark.parametrize("factor", [-0.1, float("inf"), float("nan"), "0.1", True, [0.1]])
def test_factors_that_are_none_are_named(factor: Any) -> None:
    for make, name in (
        (regularizers.L1, "l1"),
        (regularizers.L2, "l2"),
        (regularizers.L1L2, "l1"),
        (regularizers.OrthogonalRegularizer, "factor"),
    ):
        with pytest.raises(ModelError, match=f"`{name}` is not a factor") as caught:
            make(factor)
        assert repr(factor) in caught.value.given
        assert caught.value.expected == "a finite number of at least 0"


def test_modes_and_shapes_that_are_none_are_named() -> None:
    with pytest.raises(UnknownNameError, match=r"`mode` is none of its options \(did you mean 'rows'\?\)"):
        regularizers.OrthogonalRegularizer(mode="row")
    with pytest.raises(ModelError, match="rows or columns of a matrix") as caught:
        regularizers.OrthogonalRegularizer()(jnp.ones((2, 3, 4)))
    assert "(2, 3, 4)" in caught.value.given
