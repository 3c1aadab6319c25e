"""Schedules of one's own, inside and outside of optimizers, and what is refused."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import keras_dist as kd
from keras_dist import errors, optimizers, saving
from keras_dist.optimizers import schedules

ALL: list[Any] = [
    schedules.ExponentialDecay(0.5, 3, 0.9, staircase=True),
    schedules.InverseTimeDecay(0.5, 3, 0.9),
    schedules.PiecewiseConstantDecay([2, 4], [0.5, 0.25, 0.125]),
    schedules.PolynomialDecay(0.5, 5, cycle=True),
    schedules.CosineDecay(0.5, 5, warmup_target=1.0, warmup_steps=2),
    schedules.CosineDecayRestarts(0.5, 3, t_mul=1.5),
]


class Halving(schedules.LearningRateSchedule):
    """One of somebody's own."""

    def __init__(self, first: float) -> None:
        self.first = first

    def __call__(self, step: Any) -> Any:
        return self.first * 0.5**step


def rates(schedule: Any, steps: int = 8) -> list[float]:
    """The lengths of the steps of gradient descent along a gradient of 1."""
    optimizer, found = optimizers.SGD(schedule), []
    state = optimizer.init(jnp.ones(()))
    for _ in range(steps):
        update, state = jax.jit(optimizer.update)(jnp.ones(()), state)
        found.append(-float(update))
    return found


def test_all_are_here() -> None:
    classes = {type(schedule).__name__ for schedule in ALL}
    assert {*classes, "LearningRateSchedule", "serialize", "deserialize"} == set(schedules.__all__)


@pytest.mark.parametrize(
    "schedule", [*ALL, Halving(0.5), optax.cosine_decay_schedule(0.5, 5), lambda step: 0.1 / (1 + step)]
)
def test_each_step_has_its_rate(schedule: Any) -> None:
    np.testing.assert_allclose(rates(schedule), [float(schedule(step)) for step in range(8)], rtol=1e-5)


def test_the_rate_of_the_next_step_is_in_the_state() -> None:
    optimizer = optimizers.SGD(Halving(0.5))
    state = optimizer.init(jnp.ones(()))
    assert isinstance(state, optimizers.ScheduledRateState)
    assert state.learning_rate.dtype == jnp.float32
    _, after = optimizer.update(jnp.ones(()), state)
    assert (float(state.learning_rate), float(after.learning_rate)) == (0.5, 0.25)


def test_a_schedule_begins_anew_where_the_iterations_are_set() -> None:
    model = kd.Sequential([kd.Input((1,)), kd.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(optimizers.SGD(Halving(0.5)), "mse")
    x = np.ones((1, 1), "f4")
    model.fit(x, x, epochs=3, verbose=0)
    assert float(model.optimizer.learning_rate) == 0.5 / 2**3
    model.optimizer.iterations.assign(0)
    assert float(model.optimizer.learning_rate) == 0.5
    model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
    model.train_on_batch(x, x)
    assert model.get_weights()[0].item() == 1.0  # a gradient of -2


@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: type(schedule).__name__)
def test_there_and_back(schedule: Any) -> None:
    config = json.loads(json.dumps(schedules.serialize(schedule)))
    for read in (schedules.deserialize, saving.deserialize_keras_object):
        assert type(read(config)) is type(schedule)
        assert read(config).get_config() == schedule.get_config()
    assert schedules.deserialize({"class_name": config["class_name"], "config": config["config"]}) is not None


@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: type(schedule).__name__)
def test_many_steps_at_once(schedule: Any) -> None:
    found = jax.jit(jax.vmap(schedule))(np.arange(8))
    np.testing.assert_allclose(found, [schedule(step) for step in range(8)], rtol=1e-5)


def test_integers_are_rates_too() -> None:
    schedule = schedules.CosineDecay(0, 4, warmup_target=1, warmup_steps=4)
    np.testing.assert_allclose(rates(schedule, 4), [0, 0.25, 0.5, 0.75])


@pytest.mark.parametrize("t_mul", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "compiled"])
def test_restarts_are_in_time(t_mul: float, transform: Any) -> None:
    schedule = transform(schedules.CosineDecayRestarts(0.5, 4, t_mul, m_mul=0.5))
    restarts = np.cumsum([0, *(4 * t_mul**n for n in range(3))])
    np.testing.assert_allclose([schedule(step) for step in restarts], 0.5 * 0.5 ** np.arange(4), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("ExponentialDecay", (0.1, 0, 0.5), "`decay_steps` must be a finite number"),
        ("ExponentialDecay", ("a", 1, 0.5), "`initial_learning_rate` must be a finite number"),
        ("InverseTimeDecay", (0.1, -1, 0.5), "`decay_steps` must be a finite number"),
        ("PolynomialDecay", (0.1, 0), "`decay_steps` must be a finite number"),
        ("CosineDecay", (0.1, 0), "`decay_steps` must be a finite number"),
        ("CosineDecay", (0.1, 5, 0.0, "x", None, 3), "`warmup_steps` without `warmup_target`"),
        ("CosineDecayRestarts", (0.1, 0), "`first_decay_steps` must be a finite number"),
        ("CosineDecayRestarts", (0.1, 1, 0.5), "`t_mul` must be a finite number"),
        ("PiecewiseConstantDecay", ([1, 2], [0.1, 0.2]), "`boundaries` and `values` do not fit"),
        ("PiecewiseConstantDecay", ([2, 1], [0.1, 0.2, 0.3]), "`boundaries` must be in increasing order"),
    ],
)
def test_nonsense_is_refused_by_name(name: str, arguments: Any, message: str) -> None:
    with pytest.raises(errors.ModelError, match=message) as caught:
        getattr(schedules, name)(*arguments)
    assert caught.value.given and caught.value.fix


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (lambda step: jnp.ones(2), "must return a number"),
        (lambda step: "fast", "must return a number"),
        (lambda step: None, "must return a number"),
        (schedules.LearningRateSchedule(), "LearningRateSchedule defines no `__call__`"),
    ],
)
def test_a_schedule_that_gives_no_rate_is_refused(schedule: Any, message: str) -> None:
    with pytest.raises(errors.ModelError, match=message) as caught:
        optimizers.SGD(schedule).init(jnp.ones(()))
    assert caught.value.given and caught.value.fix


def test_a_schedule_that_asks_for_the_value_of_a_traced_step_is_told_how_to_go_without() -> None:
    optimizer = optimizers.SGD(lambda step: 0.1 if step < 3 else 0.01)
    with pytest.raises(errors.ModelError, match="`step`, which is traced") as caught:
        jax.jit(optimizer.init)(jnp.ones(()))
    assert "jnp.where" in caught.value.fix


def test_schedules_count_batches_and_iterations_count_updates():
    model = kd.Sequential([kd.Input((2,)), kd.layers.Dense(1)])
    model.compile(optimizers.SGD(lambda step: 1e-3 * (step + 1), gradient_accumulation_steps=2), "mse")
    model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=2, verbose=0)
    assert int(model.optimizer.iterations) == 2
    assert float(model.optimizer.learning_rate) == pytest.approx(5e-3)
