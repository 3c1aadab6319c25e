"""Steps that override Keras's give what they give in Keras, on any mesh, with a shorter last batch."""

from typing import Any

import jax
import numpy as np
import pytest

import keras_dist as kd
from tests import layouts

ROWS = 22
X = np.random.default_rng(0).normal(size=(ROWS, 8)).astype("float32")
Y = np.random.default_rng(1).normal(size=(ROWS, 4)).astype("float32")
W = np.random.default_rng(2).uniform(0.5, 2, ROWS).astype("float32")


def graph(keras: Any) -> tuple[Any, Any]:
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(16, activation="tanh", kernel_regularizer="l2", name="d1")(inputs)
    hidden = keras.layers.BatchNormalization(name="norm")(hidden)
    return inputs, keras.layers.Dense(4, kernel_constraint="max_norm", name="d2")(hidden)


def own_steps(keras: Any) -> Any:
    """Nothing of `compile` but the optimizer: own metrics, gradients clipped by hand, a test and a predict step."""

    class Own(keras.Model):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.tracker = keras.metrics.Mean(name="loss")
            self.mae = keras.metrics.MeanAbsoluteError(name="mae")
            self.loss_fn = keras.losses.Huber()

        @property
        def metrics(self) -> list[Any]:
            return [self.tracker, self.mae]

        def loss_of(self, trainable: Any, others: Any, data: Any, training: bool) -> Any:
            x, y, weights = data
            y_pred, others, losses = self.stateless_call(trainable, others, x, training=training, return_losses=True)
            return self.loss_fn(y, y_pred, weights) + sum(losses), (y_pred, others)

        def measured(self, variables: Any, loss: Any, y: Any, y_pred: Any) -> Any:
            count = len(self.tracker.variables)
            tracked = self.tracker.stateless_update_state(variables[:count], loss, len(y))
            error = self.mae.stateless_update_state(variables[count:], y, y_pred)
            logs = {"loss": self.tracker.stateless_result(tracked), "mae": self.mae.stateless_result(error)}
            return logs, tracked + error

        def train_step(self, state: Any, data: Any) -> Any:
            trainable, others, slots, measured = state
            differentiated = jax.value_and_grad(self.loss_of, has_aux=True)
            (loss, (y_pred, others)), grads = differentiated(trainable, others, data, True)
            grads = [jax.numpy.clip(grad, -0.1, 0.1) for grad in grads]
            trainable, slots = self.optimizer.stateless_apply(slots, grads, trainable)
            logs, measured = self.measured(measured, loss, data[1], y_pred)
            return logs, (trainable, others, slots, measured)

        def test_step(self, state: Any, data: Any) -> Any:
            trainable, others, measured = state
            loss, (y_pred, others) = self.loss_of(trainable, others, data, False)
            logs, measured = self.measured(measured, loss, data[1], y_pred)
            return logs, (trainable, others, measured)

        def predict_step(self, state: Any, data: Any) -> Any:
            outputs, others = self.stateless_call(*state, data, training=False)
            return {"doubled": 2 * outputs, "inputs": data}, others

    model = Own(*graph(keras))
    model.compile(optimizer=keras.optimizers.AdamW(0.01, weight_decay=0.1, use_ema=True, ema_momentum=0.5))
    return model


def compiled_metrics(keras: Any) -> Any:
    """The loop over `self.metrics` of the guide, beside a loss and metrics of `compile`."""

    class Guided(keras.Model):
        def compute_loss_and_updates(self, trainable: Any, others: Any, data: Any) -> Any:
            x, y, weights = data
            y_pred, others = self.stateless_call(trainable, others, x, training=True)
            return self.compute_loss(x, y, y_pred, weights), (y_pred, others)

        def train_step(self, state: Any, data: Any) -> Any:
            trainable, others, slots, measured = state
            differentiated = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
            (loss, (y_pred, others)), grads = differentiated(trainable, others, data)
            trainable, slots = self.optimizer.stateless_apply(slots, grads, trainable)
            after: list[Any] = []
            logs: dict[str, Any] = {}
            for metric in self.metrics:
                these = measured[len(after) : len(after) + len(metric.variables)]
                given = (loss,) if metric.name == "loss" else (data[1], y_pred)
                these = metric.stateless_update_state(these, *given)
                logs[metric.name] = metric.stateless_result(these)  # of compile_metrics a dict
                after += these
            return logs, (trainable, others, slots, after)

    inputs = keras.Input((8,))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(16, activation="tanh", name="d1")(inputs))
    model = Guided(inputs, keras.layers.Dense(4, name="d2")(hidden))
    optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.9), momentum=0.9)
    model.compile(optimizer=optimizer, loss="huber", metrics=["mae", keras.metrics.R2Score()])
    return model


def hooks(keras: Any) -> Any:
    """`compute_loss`, `compute_metrics` and `train_step` around those of the base."""

    class Hooked(keras.Model):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.raw = keras.metrics.Mean(name="raw")
            self.largest = keras.metrics.MeanSquaredError(name="second")

        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
        ) -> Any:
            loss = super().compute_loss(x, y, y_pred, sample_weight, training)
            self.raw.update_state(loss - sum(self.losses))
            return 2 * loss

        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            logs = super().compute_metrics(x, y, y_pred, sample_weight)
            self.largest.update_state(y, y_pred)
            return {**logs, "second": self.largest.result()}

        def train_step(self, state: Any, data: Any) -> Any:
            logs, (trainable, *others) = super().train_step(state, data)
            return logs, ([0.99 * value for value in trainable], *others)

    model = Hooked(*graph(keras))
    model.compile(optimizer=keras.optimizers.RMSprop(0.01), loss="mse", metrics=["mae"], weighted_metrics=["mse"])
    return model


CASES = {"own steps": own_steps, "compiled metrics": compiled_metrics, "hooks": hooks}
_REFERENCES: dict[str, Any] = {}


def trained(model: Any, case: str) -> dict[str, Any]:
    """What two epochs, an evaluation and a prediction give."""
    rng = np.random.default_rng(5)
    model.set_weights([rng.uniform(0.1, 0.5, weight.shape) for weight in model.get_weights()])
    options = {"batch_size": 8, "verbose": 0, "sample_weight": W}
    found: dict[str, Any] = {"history": model.fit(X, Y, epochs=2, shuffle=False, **options).history}
    if case != "compiled metrics":  # Keras calls `compute_loss_and_updates` of the user's with arguments of its own
        found["evaluated"] = model.evaluate(X, Y, return_dict=True, **options)
    found["predicted"] = model.predict(X, batch_size=8, verbose=0)
    return found | {"weights": model.get_weights(), "steps": int(np.asarray(model.optimizer.iterations))}


def reference(keras: Any, case: str) -> dict[str, Any]:
    if case not in _REFERENCES:
        _REFERENCES[case] = trained(CASES[case](keras), case)
    return _REFERENCES[case]


@pytest.mark.parametrize(
    ("case", "name"), [("own steps", "fully data=8"), *((case, "data=4,model=2") for case in CASES)]
)
def test_the_numbers_are_those_of_keras(keras, case: str, name: str) -> None:
    with layouts.on(name).scope():
        model = CASES[case](kd)
    found, expected = trained(model, case), reference(keras, case)
    assert found.keys() == expected.keys() and list(found["history"]) == list(expected["history"])
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6), found, expected)
