"""Loops of one's own, as Keras's guide "Writing a training loop in JAX" has them, give what they give there."""

from typing import Any

import jax
import numpy as np
import pytest

import keras_dist as kd

X = np.random.default_rng(0).normal(size=(16, 5)).astype("float32")
Y = np.eye(3, dtype="float32")[np.arange(16) % 3]


def trained(keras: Any, optimizer: Any) -> dict[str, Any]:
    """Four steps of the guide's loop."""
    inputs = keras.Input((5,))
    hidden = keras.layers.Dense(4, activation="relu", kernel_constraint="non_neg")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.BatchNormalization()(hidden)))
    rng = np.random.default_rng(1)
    model.set_weights([rng.uniform(0.1, 1, weight.shape) for weight in model.get_weights()])
    loss_fn = keras.losses.CategoricalCrossentropy(from_logits=True)
    accuracy = keras.metrics.CategoricalAccuracy()

    def compute_loss_and_updates(trainable: Any, others: Any, measured: Any, x: Any, y: Any) -> Any:
        y_pred, others = model.stateless_call(trainable, others, x, training=True)
        return loss_fn(y, y_pred), (others, accuracy.stateless_update_state(measured, y, y_pred))

    grad_fn = jax.value_and_grad(compute_loss_and_updates, has_aux=True)

    @jax.jit
    def train_step(state: Any, x: Any, y: Any) -> Any:
        trainable, others, slots, measured = state
        (loss, (others, measured)), grads = grad_fn(trainable, others, measured, x, y)
        trainable, slots = optimizer.stateless_apply(slots, grads, trainable)
        return loss, (trainable, others, slots, measured)

    optimizer.build(model.trainable_variables)
    variables = (model.trainable_variables, model.non_trainable_variables, optimizer.variables, accuracy.variables)
    state: Any = tuple([variable.value for variable in some] for some in variables)
    losses = []
    for start in (0, 4, 8, 12):
        loss, state = train_step(state, X[start : start + 4], Y[start : start + 4])
        losses.append(float(loss))
    for some, values in zip(variables, state, strict=True):
        for variable, value in zip(some, values, strict=True):
            variable.assign(value)
    optimizer.finalize_variable_values(model.trainable_variables)
    return {
        "losses": losses,
        "weights": model.get_weights(),
        "accuracy": float(accuracy.result()),
        "iterations": int(np.asarray(optimizer.iterations)),
    }


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Adam", {"learning_rate": 0.05}),
        ("SGD", {"learning_rate": 0.1, "momentum": 0.9, "use_ema": True, "ema_momentum": 0.5, "weight_decay": 0.1}),
        ("RMSprop", {"learning_rate": 0.1, "gradient_accumulation_steps": 2, "global_clipnorm": 0.1}),
    ],
)
def test_the_guides_loop(keras, name, arguments):
    ours = trained(kd, getattr(kd.optimizers, name)(**arguments))
    theirs = trained(keras, getattr(keras.optimizers, name)(**arguments))
    for key, value in theirs.items():
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), ours[key], value)


def test_gradients_applied_between_steps(keras):
    found = []
    for module in (kd, keras):
        variable = module.Variable(np.ones(2, "float32"))
        optimizer = module.optimizers.Adam(0.1)
        for grad in ([1.0, 2.0], [0.5, -3.0]):
            optimizer.apply_gradients([(np.array(grad, "float32"), variable)])
        optimizer.apply([np.ones(2, "float32")])
        found.append((np.asarray(variable.value), int(np.asarray(optimizer.iterations))))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    assert found[0][1] == found[1][1] == 3
