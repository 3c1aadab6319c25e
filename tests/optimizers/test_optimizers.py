"""Names with Keras's defaults, any optax transformation, and what is refused."""

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


def keras_rmsprop(w, velocity=0.0, rate=1e-3):
    """`keras.optimizers.RMSprop.update_step`, in numpy."""
    for grad in GRADS:
        g = np.asarray(grad["w"])
        velocity = 0.9 * velocity + 0.1 * g**2
        w = w - rate * g / np.sqrt(velocity + 1e-7)
    return w


def keras_adam(w, decay=0.0, rate=1e-3):
    """`keras.optimizers.Adam.update_step` (and AdamW's decay before it), in numpy."""
    m = v = 0.0
    for t, grad in enumerate(GRADS, 1):
        g = np.asarray(grad["w"])
        w = w - w * decay * rate
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        w = w - rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-7)
    return w


def keras_sgd(w, rate=0.01):
    return w - rate * sum(np.asarray(grad["w"]) for grad in GRADS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sgd", keras_sgd),
        ("adam", keras_adam),
        ("adamw", lambda w: keras_adam(w, decay=0.004)),
        ("rmsprop", keras_rmsprop),
    ],
)
def test_a_name_does_what_keras_does_with_its_defaults(name, expected):
    np.testing.assert_allclose(run(get(name)), expected(np.asarray(PARAMS["w"])), rtol=1e-5)


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


def test_names_in_any_case():
    np.testing.assert_array_equal(run(get("Adam")), run(get("adam")))


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


@pytest.mark.parametrize("given", [None, 0.1, ["adam"], optax.adam, lambda grads: grads])
def test_what_is_no_optimizer_is_refused(given):
    with pytest.raises(errors.ModelError, match="`optimizer` is neither a name nor an optax") as caught:
        get(given)
    assert caught.value.given and caught.value.expected and caught.value.fix
