"""What `compile` chose as a config of plain values, and back."""

import json

import numpy as np
import optax
import pytest

import keras_dist as kd
from keras_dist import layers, losses, metrics, models, optimizers, saving
from keras_dist.errors import ConfigError

X = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")


def chain():
    x = kd.Input((8,), name="x")
    return kd.Model(x, layers.Dense(3)(layers.Dense(16, "relu", name="d1")(x)), name="chain"), X


@saving.register_keras_serializable("tests")
def cubed(y_true, y_pred):
    return abs(y_true - y_pred) ** 3


def largest_error(y_true, y_pred):
    return abs(y_true - y_pred).max(-1)


@pytest.fixture(scope="module")
def made():
    """A model and what its config makes, with the same weights."""
    model, _ = chain()
    again = models.model_from_json(model.to_json())
    again.set_weights(model.get_weights())
    return model, again


@pytest.mark.parametrize(
    "arguments",
    [
        {"optimizer": "adam", "loss": "mse"},
        {"optimizer": optimizers.Adam(optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)), "loss": losses.Huber(2.0)},
        {"loss": "mse", "metrics": [metrics.MeanSquaredError(name="m")], "weighted_metrics": ["mae"]},
        {"loss": "mse", "run_eagerly": True, "donate": False},
        {"loss": "mse", "jit_compile": True, "steps_per_execution": 2, "remat": "dots_saveable"},
        {
            "optimizer": {"all": (optimizers.SGD(0.5, momentum=0.9), ".*")},
            "loss": {"dense": cubed},
            "loss_weights": {"dense": 2.0},
            "metrics": ["mae", "mse"],
        },
    ],
)
def test_it_comes_back(arguments, made):
    model, again = made
    model.compile(**arguments)
    config = model.get_compile_config()
    again.compile_from_config(json.loads(json.dumps(config)))
    assert again.get_compile_config() == config
    flags = {name: value for name, value in arguments.items() if isinstance(value, bool | int)}
    assert config.items() >= flags.items()
    if "loss_weights" in arguments:  # what goes into the step, and how it is read: once is enough
        y = np.ones((4, 3), "float32")
        one, other = (m.fit(X, y, epochs=2, verbose=0, shuffle=False).history for m in made)
        assert one == other


@pytest.mark.parametrize(
    "arguments",
    [
        {"optimizer": optax.sgd(0.1)},
        {"loss": lambda y, p: (y - p) ** 2},
        {"metrics": [largest_error]},
        {"train_step": lambda state, batch, rngs: (state, {})},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_what_is_not_registered_is_refused(arguments):
    model = kd.Sequential([layers.Dense(1)])
    model.compile(**{"optimizer": "sgd", "loss": "mse"} | arguments)
    name = next(iter(arguments))
    with pytest.raises(ConfigError, match=f"get_compile_config: `{name}` cannot be serialized") as caught:
        model.get_compile_config()
    assert "register_keras_serializable" in caught.value.fix
