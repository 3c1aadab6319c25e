"""Callables as losses."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from keras_dist import losses, saving
from keras_dist.errors import ModelError


@saving.register_keras_serializable("tests")
def scaled_error(y_true, y_pred, scale=1.0):
    return scale * jnp.abs(y_true - y_pred).mean(-1)


def test_integers_stay_integers_unless_a_dtype_is_given():
    def crossentropy(y_true, y_pred):
        return optax.losses.softmax_cross_entropy_with_integer_labels(y_pred, y_true)

    loss = losses.LossFunctionWrapper(crossentropy)
    assert loss(jnp.array([0, 1]), jnp.zeros((2, 4))) == pytest.approx(np.log(4))

    def dtypes(y_true, y_pred):
        assert y_true.dtype == y_pred.dtype == jnp.bfloat16
        return y_pred

    losses.LossFunctionWrapper(dtypes, dtype="bfloat16")(np.array([0, 1]), jnp.zeros(2))


def test_a_last_dim_of_one_is_aligned_in_trees_too():
    def shapes(y_true, y_pred):
        assert [y.shape for y in (y_true["a"], y_pred["a"])] == [(3, 1), (3, 1)]
        return y_pred["b"]

    y_pred = {"a": jnp.ones((3, 1)), "b": jnp.ones(3)}
    assert losses.LossFunctionWrapper(shapes)({"a": jnp.ones(3), "b": jnp.ones(3)}, y_pred) == 1.0


def test_targets_may_be_missing_or_of_another_structure():
    def without(y_true, y_pred):
        assert y_true is None
        return y_pred["a"].mean(-1)

    assert losses.LossFunctionWrapper(without)(None, {"a": jnp.ones((3, 2))}) == 1.0
    assert losses.LossFunctionWrapper(lambda y, z: z[0] - y)(jnp.ones(3), (jnp.ones(3), jnp.ones(3))) == 0.0


def test_a_scalar_needs_no_reduction_and_takes_no_weights():
    loss = losses.LossFunctionWrapper(lambda y_true, y_pred: y_pred.mean())
    assert loss(None, jnp.ones(3)) == 1.0
    with pytest.raises(ModelError, match=r"(?s)`sample_weight` does not fit.*one value for each example"):
        loss(None, jnp.ones(3), jnp.ones(3))


def test_configs_name_the_function():
    loss = losses.LossFunctionWrapper(scaled_error, "sum", "it", scale=3.0)
    again = losses.deserialize(losses.serialize(loss))
    assert (again.fn, again.reduction, again.name) == (scaled_error, "sum", "it")
    assert again(jnp.zeros((2, 2)), jnp.ones((2, 2))) == 6.0


def test_objects_that_can_be_called_go_by_their_class():
    class Distance:
        def __call__(self, y_true, y_pred):
            return y_pred - y_true

    assert losses.LossFunctionWrapper(Distance()).name == "Distance"


@pytest.mark.parametrize(("fn", "options"), [(lambda y: y, {}), (3, {}), (scaled_error, {"scales": 2})])
def test_what_cannot_be_called_is_refused(fn, options):
    with pytest.raises(ModelError, match="`loss` cannot be called") as caught:
        losses.LossFunctionWrapper(fn, **options)
    assert all(name in caught.value.given for name in options) and caught.value.fix
