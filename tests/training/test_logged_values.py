"""`compile(report=...)`: gradient norm, learning rate, tokens and examples a second."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import keras_dist as kd
from keras_dist import layers, optimizers
from keras_dist.errors import ModelError
from keras_dist.training.throughput import EpochClock
from tests.soak import few

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(20, 4)).astype("float32")
Y = RANDOM.normal(size=(20, 3)).astype("float32")
KERNEL = RANDOM.normal(size=(4, 3)).astype("float32")


def model_on(devices: int = 1) -> kd.Model:
    with kd.DataParallel(devices=jax.devices()[:devices]).scope():
        model = kd.Sequential([kd.Input((4,)), layers.Dense(3, use_bias=False, name="d1")])
    model.set_weights([KERNEL])
    return model


def norm_of(rows: Any) -> float:
    error = X[rows] @ KERNEL - Y[rows]
    return float(np.linalg.norm(2 * X[rows].T @ error / error.size))


def reported(optimizer: Any, name: str, devices: int = 1, epochs: int = 1) -> list[float]:
    model = model_on(devices)
    model.compile(optimizer, "mse", report=[name])
    history = model.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0).history
    return history[name]


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    ("optimizer", "devices"),
    [
        (lambda: optimizers.SGD(0.0, global_clipnorm=1e-3), 4),
        (lambda: optimizers.SGD(0.0, loss_scale_factor=128.0), 1),
        (lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.0), initial_scale=64.0), 4),
        (lambda: optimizers.LossScaleOptimizer(optax.sgd(0.0), initial_scale=64.0), 1),
        (lambda: optax.chain(optax.clip_by_global_norm(1e-3), optax.sgd(0.0)), 1),
        (lambda: optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.SGD(0.0), {})), 1),
    ],
)
def test_the_norm_is_of_the_unscaled_gradient_before_clipping(optimizer: Any, devices: int) -> None:
    expected = np.mean([norm_of(slice(0, 8)), norm_of(slice(8, 16)), norm_of(slice(16, 20))])
    np.testing.assert_allclose(reported(optimizer(), "gradient_norm", devices), [expected], rtol=1e-5)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: optimizers.SGD(0.0, gradient_accumulation_steps=3),
        lambda: optimizers.OptaxOptimizer(optax.sgd(0.0), gradient_accumulation_steps=3),
        lambda: optimizers.LossScaleOptimizer(
            optimizers.OptaxOptimizer(optax.sgd(0.0), gradient_accumulation_steps=3), initial_scale=64.0
        ),
    ],
)
def test_of_accumulated_gradients_it_is_the_norm_of_their_mean(optimizer: Any) -> None:
    np.testing.assert_allclose(reported(optimizer(), "gradient_norm"), [norm_of(slice(0, 20))], rtol=1e-5)
    model = model_on()
    model.compile(optimizer(), "mse", report="gradient_norm")
    assert np.isnan(model.train_on_batch(X, Y, return_dict=True)["gradient_norm"])  # no update yet


def test_an_epoch_without_an_update_has_no_norm() -> None:
    found = reported(optimizers.SGD(0.0, gradient_accumulation_steps=5), "gradient_norm", epochs=2)
    np.testing.assert_allclose(found, [np.nan, norm_of(np.r_[0:20, 0:16])], rtol=1e-5)


@pytest.mark.filterwarnings("ignore:the loss is nan")
def test_a_skipped_step_has_no_norm() -> None:
    model = model_on()
    model.compile(optimizers.LossScaleOptimizer(optimizers.SGD(0.0)), "mse", report=["gradient_norm"])
    bad = X.copy()
    bad[:8] = np.inf
    found = model.fit(bad, Y, batch_size=8, shuffle=False, verbose=0).history["gradient_norm"]
    np.testing.assert_allclose(found, [np.mean([norm_of(slice(8, 16)), norm_of(slice(16, 20))])], rtol=1e-5)


SCHEDULE = optax.linear_schedule(1.0, 0.0, 10)


@pytest.mark.first_cases(3)
@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (lambda: optimizers.SGD(0.25), 0.25),
        (lambda: optimizers.Adam(SCHEDULE), 0.8),
        (lambda: optimizers.LossScaleOptimizer(optimizers.Adam(SCHEDULE)), 0.8),
        (lambda: optax.inject_hyperparams(optax.adam)(learning_rate=SCHEDULE), 0.8),
        (lambda: optax.inject_hyperparams(optax.adam)(learning_rate=0.5), 0.5),
        (lambda: optimizers.with_learning_rate(optax.scale_by_adam(), 0.125), 0.125),
        (lambda: optax.chain(optax.clip(1.0), optimizers.SGD(SCHEDULE)), 0.8),
        (lambda: optimizers.LossScaleOptimizer(optax.inject_hyperparams(optax.adamw)(learning_rate=SCHEDULE)), 0.8),
    ],
)
def test_the_rate_of_the_last_step(optimizer: Any, expected: float) -> None:
    np.testing.assert_allclose(reported(optimizer(), "learning_rate"), [expected], rtol=1e-6)


@pytest.mark.parametrize("optimizer", [lambda: optax.adam(1e-3), lambda: optax.adamw(SCHEDULE)])
def test_a_rate_that_is_not_known(optimizer: Any) -> None:
    with pytest.raises(ModelError, match=r"optax\.inject_hyperparams\(optax\.adamw\)\(learning_rate="):
        reported(optimizer(), "learning_rate")


def test_several_optimizers_have_several_rates_and_one_norm() -> None:
    model = kd.Sequential([kd.Input((4,)), layers.Dense(3, name="a"), layers.Dense(3, name="b")])
    model.compile(
        {"a": optimizers.SGD(0.25), "b": optax.inject_hyperparams(optax.sgd)(learning_rate=SCHEDULE)},
        "mse",
        report=["learning_rate", "gradient_norm"],
    )
    found = model.train_on_batch(X, Y, return_dict=True)
    assert found["a_learning_rate"] == 0.25
    assert found["b_learning_rate"] == 1.0
    assert found["gradient_norm"] > 0
    several = optimizers.OptimizerMap(optimizers.SGD(0.1), {"a/.*": optimizers.SGD(0.2)})
    model.compile(optimizers.MultiOptimizer(several), "mse", report="learning_rate")
    with pytest.raises(ModelError, match="a dict of optimizers by name"):
        model.train_on_batch(X, Y)


@pytest.fixture
def one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EpochClock, "seconds", lambda self: 0.5)


@pytest.mark.usefixtures("one_second")
@pytest.mark.parametrize("devices", few([1, 8], 8))
def test_tokens_are_values_of_the_loss_that_have_a_weight(devices: int) -> None:
    with kd.DataParallel(devices=jax.devices()[:devices]).scope():
        model = kd.Sequential([kd.Input((5,), dtype="int32"), layers.Embedding(7, 4), layers.Dense(7)])
    ids = RANDOM.integers(0, 7, (6, 5))
    weights = np.zeros((6, 5), "float32")
    weights[:4, :3] = 0.5
    loss = kd.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    model.compile("sgd", loss, report=["tokens_per_second", "examples_per_second"])
    history = model.fit(ids, ids, batch_size=4, sample_weight=weights, epochs=2, verbose=0).history
    assert history["tokens_per_second"] == [24.0, 24.0]
    assert history["examples_per_second"] == [12.0, 12.0]
    assert "tokens_per_second" not in model.evaluate(ids, ids, verbose=0, return_dict=True)
    assert model.train_on_batch(ids, ids, return_dict=True)["tokens_per_second"] == 60.0


@pytest.mark.slow
@pytest.mark.usefixtures("one_second")
def test_a_resumed_epoch_has_rates_of_its_own_rows_and_the_norm_of_all_updates(tmp_path: Any) -> None:
    class Stop(kd.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 1:
                raise KeyError("stop")

    def fit(directory: Any, *callbacks: Any) -> Any:
        model = model_on()
        model.compile("sgd", "mse", report=["gradient_norm", "learning_rate", "examples_per_second"])
        backup = kd.callbacks.BackupAndRestore(directory, save_freq=1, delete_checkpoint=False)
        return model.fit(X, Y, batch_size=5, shuffle=False, verbose=0, callbacks=[backup, *callbacks]).history

    with pytest.raises(KeyError, match="stop"):
        fit(tmp_path / "a", Stop())
    resumed, whole = fit(tmp_path / "a"), fit(tmp_path / "b")
    assert resumed["gradient_norm"] == whole["gradient_norm"]
    assert resumed["learning_rate"] == whole["learning_rate"]
    assert whole["examples_per_second"] == [40.0]
    assert resumed["examples_per_second"] == [30.0]  # the last state was saved before the stop: 3 of 4 batches


def test_a_loss_without_values_has_no_tokens() -> None:
    model = model_on()
    model.compile("sgd", lambda y, p: jnp.mean((y - p) ** 2), report="tokens_per_second")
    with pytest.raises(ModelError, match="return a value for each token"):
        model.fit(X, Y, verbose=0)


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (["gradnorm"], r"'gradient_norm', 'learning_rate', 'tokens_per_second', 'examples_per_second'"),
        ("gradient_nrm", "did you mean 'gradient_norm'"),
        ([3], "unknown name"),
        (3, "must be a list of names"),
    ],
)
def test_unknown_names(report: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        model_on().compile("sgd", "mse", report=report)


def test_a_train_step_of_ones_own_logs_itself() -> None:
    with pytest.raises(ModelError, match="`report` goes with the train step of `compile`"):
        model_on().compile("sgd", "mse", train_step=lambda state, batch, rngs: (state, {}), report=["learning_rate"])
