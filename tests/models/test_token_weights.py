"""README's recipe for losses of tokens: divided by the weights of the tokens, not by their number."""

import jax
import jax.numpy as jnp
import numpy as np

import keras_dist as kd

RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 7, (2, 6, 5))
WEIGHTS = (RNG.random((6, 5)) < 0.5) * RNG.random((6, 5)).astype(np.float32)
WEIGHTS[1] = 0  # a row of padding alone


def by_hand(weights, rows):
    table, kernel, bias = weights
    logits = table[X[rows]] @ kernel + bias
    each = jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, Y[rows][..., None], -1)[..., 0]
    return (each * WEIGHTS[rows]).sum() / WEIGHTS[rows].sum()


def test_loss_and_gradients_are_those_of_numpy():
    with kd.DataParallel().scope():  # 8 devices, and 6 rows
        model = kd.Sequential(
            [kd.Input((5,), dtype="int32"), kd.layers.Embedding(7, 4, name="e"), kd.layers.Dense(7, name="d")]
        )
    loss = kd.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    per_token = kd.metrics.SparseCategoricalCrossentropy(from_logits=True, name="per_token")
    model.compile(kd.optimizers.SGD(0.1), loss=loss, weighted_metrics=[per_token])
    weights = [jnp.asarray(value) for value in model.get_weights()]
    all_rows = np.arange(6)
    # the mean over all batches is exact in the metric; the loss is the mean of those of the batches by their rows
    of_batches = jax.jit(lambda weights: [by_hand(weights, rows) for rows in (all_rows, all_rows[:4], all_rows[4:])])
    whole, *batches = of_batches(weights)
    found = model.evaluate(X, Y, sample_weight=WEIGHTS, batch_size=4, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["per_token"], whole, rtol=1e-5)
    np.testing.assert_allclose(found["loss"], (4 * batches[0] + 2 * batches[1]) / 6, rtol=1e-5)
    value, gradients = jax.jit(jax.value_and_grad(lambda weights: by_hand(weights, all_rows)))(weights)
    np.testing.assert_allclose(
        model.train_on_batch(X, Y, sample_weight=WEIGHTS, return_dict=True)["loss"], value, rtol=1e-5
    )
    for weight, before, gradient in zip(model.get_weights(), weights, gradients, strict=True):
        np.testing.assert_allclose(weight, before - 0.1 * gradient, atol=1e-6)
