"""Accumulated gradients: several batches, equal or not, make the update of one large batch."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import keras_dist as kd
from keras_dist import layers, losses, optimizers
from keras_dist.errors import ModelError

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(20, 4)).astype("float32")
Y = RANDOM.normal(size=(20, 3)).astype("float32")
WEIGHTS = RANDOM.uniform(0.0, 3.0, 20).astype("float32")
KERNEL = RANDOM.normal(size=(4, 3)).astype("float32")
STEPS = 3
"""Batches of 8, 8 and 4 rows."""


def trained(
    loss: Any, sample_weight: Any = None, accumulate: bool = True, devices: int = 1, **options: Any
) -> list[np.ndarray]:
    with kd.DataParallel(devices=jax.devices()[:devices]).scope():
        model = kd.Sequential([kd.Input((4,)), layers.Dense(3, kernel_regularizer="l2", name="d1")])
    model.set_weights([KERNEL, np.zeros(3, np.float32)])
    optimizer = optimizers.SGD(0.5, gradient_accumulation_steps=STEPS if accumulate else None, clipnorm=0.3)
    model.compile(optimizer, loss, **options)
    size = 8 if accumulate else len(X)
    model.fit(X, Y, batch_size=size, sample_weight=sample_weight, shuffle=False, verbose=0)
    return model.get_weights()


@functools.cache
def of_one_batch(reduction: str, weighted: bool) -> list[np.ndarray]:
    """The update of all rows at once."""
    return trained(losses.MeanSquaredError(reduction=reduction), WEIGHTS if weighted else None, accumulate=False)


def assert_same(found: list[np.ndarray], reduction: str, weighted: bool) -> None:
    for a, b in zip(found, of_one_batch(reduction, weighted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("loss", "reduction"),
    [
        (losses.MeanSquaredError(), "sum_over_batch_size"),
        (losses.MeanSquaredError(reduction="mean_with_sample_weight"), "mean_with_sample_weight"),
        (lambda y, y_pred: jnp.mean((y - y_pred) ** 2, axis=-1), "sum_over_batch_size"),
    ],
    ids=["sum_over_batch_size", "mean_with_sample_weight", "callable"],
)
def test_a_shorter_last_batch_counts_for_less(loss: Any, reduction: str) -> None:
    assert_same(trained(loss, WEIGHTS), reduction, weighted=True)


def test_a_scalar_loss_counts_as_the_mean_over_the_rows() -> None:
    assert_same(trained(lambda y, y_pred: jnp.mean((y - y_pred) ** 2)), "sum_over_batch_size", weighted=False)


def test_on_a_mesh_and_in_one_execution() -> None:
    loss = losses.MeanSquaredError(reduction="mean_with_sample_weight")
    found = trained(loss, WEIGHTS, devices=4, steps_per_execution=3)
    assert_same(found, "mean_with_sample_weight", weighted=True)


def test_values_that_a_mask_leaves_out_do_not_count() -> None:
    mask = np.arange(20) % 3 > 0
    assert float(losses.MeanSquaredError().divisor(Y, Y, mask=mask)) == mask.sum()
    weighted = losses.MeanSquaredError(reduction="mean_with_sample_weight").divisor(Y, Y, WEIGHTS, mask)
    np.testing.assert_allclose(weighted, WEIGHTS[mask].sum(), rtol=1e-6)


def test_batches_without_any_weight_change_nothing() -> None:
    optimizer = optimizers.SGD(1.0, gradient_accumulation_steps=2)
    state: Any = optimizer.init(jnp.zeros(3))
    for _ in range(2):
        steps, state = optimizer.update(jnp.zeros(3), state, jnp.zeros(3), batch_weight=0.0)
    np.testing.assert_array_equal(steps, jnp.zeros(3))


def test_it_goes_on_under_a_loss_scale() -> None:
    inner = optimizers.SGD(1.0, gradient_accumulation_steps=2)
    optimizer, params = optimizers.LossScaleOptimizer(inner, 8.0), jnp.zeros(2)
    state: Any = optimizer.init(params)
    for gradient, weight in ((1.0, 3.0), (5.0, 1.0)):
        steps, state = optimizer.update(8 * gradient * jnp.ones(2), state, params, batch_weight=weight)
    np.testing.assert_allclose(steps, [-2.0, -2.0])


def schedule(count: Any) -> Any:
    return 0.5 / (1 + count)


def halves_and_notes() -> optax.GradientTransformation:
    """A transformation of one's own, which counts its updates."""

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        return jax.tree.map(lambda u: u / 2, updates), state + 1

    return optax.GradientTransformation(lambda params: jnp.zeros((), jnp.int32), update)


CHAINS = {
    "adamw": lambda: optax.adamw(schedule),
    "injected": lambda: optax.inject_hyperparams(optax.rmsprop)(learning_rate=schedule),
    "adafactor": lambda: optax.adafactor(schedule, min_dim_size_to_factor=2),
    "partition": lambda: optax.partition(
        {"a": optax.adam(schedule), "b": optax.lion(0.1)},
        lambda params: {"e": {"embeddings": "a"}, "d": dict.fromkeys(params["d"], "b")},
    ),
    "of ours": lambda: optax.chain(optimizers.SGD(0.5), optax.trace(0.5)),
}

IDS, LABELS = RANDOM.integers(0, 7, (2, 22, 5))
TOKENS = (RANDOM.random((22, 5)) < 0.5).astype("float32")
TOKENS[3:5] = 0


def language_model(devices: int) -> Any:
    with kd.DataParallel(devices=jax.devices()[:devices]).scope():
        model = kd.Sequential(
            [kd.Input((5,), dtype="int32"), layers.Embedding(7, 4, name="e"), layers.Dense(7, name="d")]
        )
    values = np.random.default_rng(1)
    model.set_weights([values.normal(size=weight.shape).astype("float32") for weight in model.weights])
    return model


def trained_on_tokens(optimizer: Any, size: int, devices: int = 1, epochs: int = 2, **options: Any) -> Any:
    model = language_model(devices)
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    model.compile(optimizer, loss, **options)
    model.fit(IDS, LABELS, batch_size=size, sample_weight=TOKENS, shuffle=False, epochs=epochs, verbose=0)
    return model


@functools.cache
def whole(chain: str) -> list[np.ndarray]:
    """The weights after updates of all tokens at once."""
    return trained_on_tokens(CHAINS[chain](), len(IDS)).get_weights()


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("chain", "devices"), [("adamw", 1), ("injected", 1), ("adafactor", 4), ("partition", 4), ("of ours", 4)]
)
def test_any_chain_of_optax_makes_the_update_of_one_large_batch_of_tokens(chain: str, devices: int) -> None:
    # batches of 8, 8 and 6 rows, which have other numbers of tokens
    optimizer = optimizers.OptaxOptimizer(CHAINS[chain](), gradient_accumulation_steps=3)
    found = trained_on_tokens(optimizer, 8, devices, **({} if devices == 1 else {"steps_per_execution": 3}))
    for one, other in zip(found.get_weights(), whole(chain), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_the_state_of_a_chain_changes_once_an_update() -> None:
    optimizer = optimizers.OptaxOptimizer(
        optax.chain(halves_and_notes(), optax.adam(schedule)), gradient_accumulation_steps=3
    )
    params: Any = {"w": jnp.ones(3)}
    state = optimizer.init(params)
    for batch in range(1, 7):
        steps, after = optimizer.update({"w": jnp.arange(3.0)}, state, params)
        if batch % 3:
            np.testing.assert_array_equal(steps["w"], np.zeros(3))
            jax.tree.map(np.testing.assert_array_equal, after.slots, state.slots)
        state = after
    assert int(state.slots[0]) == 2
    counts = [int(leaf) for leaf in jax.tree.leaves(state.slots) if leaf.dtype == jnp.int32]
    assert counts == [2, 2, 2]  # of the own one, of Adam, and of the schedule


def test_a_line_search_needs_the_loss_of_all_batches() -> None:
    with pytest.raises(ModelError, match="cannot accumulate gradients"):
        trained_on_tokens(optimizers.OptaxOptimizer(optax.lbfgs(), gradient_accumulation_steps=2), 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((optax.sgd(0.1), "a", 1), "gradient_accumulation_steps"),
        ((optax.sgd(0.1), "a", 2.0), "gradient_accumulation_steps"),
        (("sgd", "a", 2), "must be an optax transformation"),
    ],
)
def test_what_is_no_chain_or_no_number_of_steps(arguments: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        optimizers.OptaxOptimizer(*arguments)
