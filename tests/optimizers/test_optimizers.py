"""Optimizers by name, any optax transformation, and what is refused."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from keras_dist import errors, optimizers

get: Any = optimizers.get

PARAMS: Any = {"w": jnp.array([1.0, -2.0, 0.5])}
GRADS: list[Any] = [
    {"w": jnp.array([0.1, -0.3, 2.0])},
    {"w": jnp.array([-0.2, 0.1, 1.0])},
    {"w": jnp.array([0.0, 5.0, -1.0])},
]


def run(transformation, grads=GRADS):
    params: Any = PARAMS
    state = transformation.init(PARAMS)
    for grad in grads:
        updates, state = transformation.update(grad, state, params)
        params = optax.apply_updates(params, updates)
    return np.asarray(params["w"])


@pytest.mark.parametrize(("name", "rate"), [("sgd", 0.01), ("adam", 0.001), ("adamw", 0.001), ("rmsprop", 0.001)])
def test_a_name_keeps_kerass_default_rate_in_its_state(name, rate):
    state = get(name).init(PARAMS)
    assert state.learning_rate.dtype == jnp.float32
    assert float(state.learning_rate) == pytest.approx(rate)
    assert float(get(name, 0.5).init(PARAMS).learning_rate) == 0.5


def test_the_rate_in_state_counts():
    transformation = get("sgd")
    state = transformation.init(PARAMS)._replace(learning_rate=jnp.float32(0.5))
    updates, state = transformation.update(GRADS[0], state, PARAMS)
    np.testing.assert_allclose(updates["w"], -0.5 * np.asarray(GRADS[0]["w"]))
    assert float(state.learning_rate) == 0.5


def test_with_learning_rate_is_the_optax_optimizer_of_that_rate():
    np.testing.assert_allclose(
        run(optimizers.with_learning_rate(optax.scale_by_adam(), 0.02)), run(optax.adam(0.02)), rtol=1e-6
    )


def test_low_precision_updates_keep_their_dtype():
    transformation = get("adam")
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    updates, _ = transformation.update(params, transformation.init(params), params)
    assert updates["w"].dtype == jnp.bfloat16


def test_an_optax_transformation_is_taken_as_it_is():
    np.testing.assert_array_equal(run(get(optax.adagrad(0.1))), run(optax.adagrad(0.1)))


@pytest.mark.parametrize("given", [0.1, ["adam"], optax.adam, lambda grads: grads])
def test_what_is_no_optimizer_is_refused(given):
    with pytest.raises(errors.ModelError, match="`optimizer` must be a name, a config, an Optimizer") as caught:
        get(given)
    assert caught.value.given and caught.value.fix
