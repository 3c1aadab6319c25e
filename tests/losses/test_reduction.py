"""Values, weights and masks to one number."""

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist.errors import ModelError
from keras_dist.losses.loss import check_values, reduce_values

VALUES = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], "f4")


def test_what_is_masked_is_not_counted_and_may_be_nan():
    values = jnp.array([1.0, jnp.nan, 3.0])
    mask = jnp.array([True, False, True])
    assert reduce_values(values, None, [mask]) == 2.0
    assert reduce_values(values, None, [mask], "sum") == 4.0
    assert reduce_values(values, jnp.array([1, 1, 2]), [mask]) == 3.5
    assert reduce_values(values, jnp.array([1, 1, 3]), [mask], "mean_with_sample_weight") == 2.5
    assert reduce_values(values, None, [mask, jnp.array([True, True, False])]) == 1.0
    assert reduce_values(values, None, [jnp.zeros(3, bool)]) == 0.0
    assert reduce_values(jnp.asarray(VALUES), None, [mask]) == 2.5, "a mask of examples"


def test_an_empty_batch_has_no_loss():
    assert reduce_values(jnp.zeros((0, 3))) == 0


@pytest.mark.parametrize(
    ("values", "weight"),
    [(jnp.float32(1), (3,)), (jnp.ones(4), (3,)), (jnp.ones((2, 3)), (3,)), (jnp.ones((2, 1)), (2, 3))],
)
@pytest.mark.parametrize("name", ["sample_weight", "mask"])
def test_weights_and_masks_that_do_not_fit_are_refused(values, weight, name):
    with pytest.raises(ModelError, match=f"`{name}` does not fit the loss") as caught:
        reduce_values(values, jnp.ones(weight)) if name == "sample_weight" else reduce_values(
            values, None, [jnp.ones(weight, bool)]
        )
    assert str(weight) in caught.value.given and caught.value.fix


def test_values_for_each_pair_are_taken_when_targets_have_pairs():
    pairs = jnp.zeros((6, 6))
    assert check_values(pairs, pairs, jnp.zeros((6, 6, 3))) is pairs
    assert check_values(pairs, None, jnp.zeros((6, 3))) is pairs
    with pytest.raises(ModelError, match="`loss` returned no value for each example"):
        check_values(pairs, jnp.zeros(6), jnp.zeros((6, 3)))


def test_values_of_one_example_are_no_pair():
    assert check_values(jnp.zeros((1, 1)), jnp.zeros(1), jnp.zeros((1, 3))).shape == (1, 1)


def test_scalars_and_integers_are_values():
    assert check_values(3, None, jnp.ones(2)).dtype == jnp.float32
    assert check_values(np.array([1, 2]), None, jnp.ones(2)).dtype == jnp.float32
    assert check_values(jnp.ones(2), None, jnp.float32(1)).shape == (2,), "predictions without examples"


@pytest.mark.parametrize("values", [None, (jnp.ones(2),), "mse"])
def test_what_is_no_array_is_no_value(values):
    with pytest.raises(ModelError, match="did not return an array"):
        check_values(values, jnp.ones(2), jnp.ones(2))
