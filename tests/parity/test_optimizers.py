"""Weights after a few steps, and rates of schedules, are those of Keras."""

from collections import ChainMap
from typing import Any

import jax
import numpy as np
import optax
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jax import lax

import keras_dist as kd
from keras_dist import optimizers
from tests.parity.compare import compare

TREES: list[dict[str, dict[str, tuple[int, ...]]]] = [
    {"conv": {"kernel": (2, 2, 3, 2)}, "dense": {"bias": (3,), "kernel": (4, 3)}},
    {"dense": {"kernel": (4, 3)}, "embedding": {"table": (2, 5)}},
    {"scale": {"gamma": ()}, "tall": {"kernel": (4, 3)}},
]
STEPS = 4


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda value: round(value, 4))


# Nearer to 1, `1 - beta_2 ** t` in float32 has too few digits to compare with
BETAS = {"beta_1": numbers(0.0, 0.99), "beta_2": numbers(0.5, 0.999), "epsilon": st.sampled_from([1e-7, 1e-3])}
ARGUMENTS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "SGD": {"momentum": numbers(0.0, 1.0), "nesterov": st.booleans()},
    "Adam": {**BETAS, "amsgrad": st.booleans()},
    "AdamW": {**BETAS, "amsgrad": st.booleans(), "weight_decay": numbers(0.0, 0.5)},
    "Adamax": BETAS,
    "Nadam": BETAS,
    "Lamb": BETAS,
    "RMSprop": {
        "rho": numbers(0.1, 0.99),
        "momentum": numbers(0.0, 0.99),
        "epsilon": st.sampled_from([1e-7, 1e-3]),
        "centered": st.booleans(),
    },
    "Adagrad": {"initial_accumulator_value": numbers(0.0, 1.0), "epsilon": st.sampled_from([1e-7, 1e-3])},
    "Adadelta": {"rho": numbers(0.1, 0.99), "epsilon": st.sampled_from([1e-7, 1e-3])},
    "Adafactor": {
        "beta_2_decay": numbers(-1.0, -0.1),
        "epsilon_2": numbers(0.0, 0.1),
        "clip_threshold": numbers(0.1, 2.0),
        "relative_step": st.booleans(),
    },
    "Ftrl": {
        "learning_rate_power": numbers(-0.9, -0.1),
        "initial_accumulator_value": numbers(0.01, 1.0),
        "l1_regularization_strength": numbers(0.0, 0.5),
        "l2_regularization_strength": numbers(0.0, 0.5),
        "l2_shrinkage_regularization_strength": numbers(0.0, 0.5),
        "beta": numbers(0.0, 0.5),
    },
    "Lion": {"beta_1": numbers(0.1, 0.99), "beta_2": numbers(0.1, 0.99)},
    "ScheduleFreeAdamW": {**BETAS, "beta_1": numbers(0.5, 1.0), "warmup_steps": st.integers(0, 3)},
    "Muon": {
        "adam_beta_1": numbers(0.0, 0.99),
        "adam_beta_2": numbers(0.5, 0.999),
        "adam_weight_decay": st.none() | numbers(0.0, 0.5),
        "weight_decay": st.none() | numbers(0.0, 0.5),
        "exclude_layers": st.sampled_from([None, ["dense"], ["t.ll"]]),
        "exclude_embeddings": st.booleans(),
        "adam_lr_ratio": numbers(0.1, 1.0),
        "momentum": numbers(0.0, 0.99),
        "nesterov": st.booleans(),
        "ns_steps": st.integers(1, 5),
        "rms_rate": st.none() | numbers(0.1, 1.0),
    },
}
CLIPS = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"clipnorm": numbers(0.01, 2.0)}),
    st.fixed_dictionaries({"clipvalue": numbers(0.01, 2.0)}),
    st.fixed_dictionaries({"global_clipnorm": numbers(0.01, 2.0)}),
)
AVERAGES = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {
            "use_ema": st.just(True),
            "ema_momentum": numbers(0.0, 1.0),
            "ema_overwrite_frequency": st.none() | st.integers(1, 4),
        }
    ),
)
DECAYS = st.none() | numbers(0.0, 0.5)


def common_arguments(name: str) -> st.SearchStrategy[dict[str, Any]]:
    others = {"loss_scale_factor": st.none() | numbers(0.5, 100.0)}
    if "weight_decay" not in ARGUMENTS[name]:
        others["weight_decay"] = DECAYS
    return st.builds(lambda *parts: dict(ChainMap(*parts)), CLIPS, AVERAGES, st.fixed_dictionaries(others))


def weights_and_gradients(tree: Any, seed: int) -> tuple[Any, list[Any]]:
    random = np.random.default_rng(seed)

    def draw() -> Any:
        return jax.tree.map(
            lambda shape: random.normal(size=shape).astype(np.float32), tree, is_leaf=lambda x: isinstance(x, tuple)
        )

    return draw(), [draw() for _ in range(STEPS)]


def check(keras: Any, mine: Any, kerass: Any, weights: Any, gradients: list[Any], rates: Any = None) -> None:
    """After each step the weights are the same, as they are and finalized."""
    variables = [
        keras.Variable(jax.device_put(value), name="_".join(key.key for key in path))
        for path, value in jax.tree_util.tree_leaves_with_path(weights)
    ]
    kerass.build(variables)

    def ours(weights: Any, state: Any, grads: Any, rate: Any) -> Any:
        state = state if rate is None else state._replace(learning_rate=rate)
        updates, state = mine.update(grads, state, weights)
        weights = optax.apply_updates(weights, updates)
        return (weights, state), (weights, mine.finalize(state, weights))

    def theirs(values: Any, state: Any, grads: Any, rate: Any) -> Any:
        mapping = zip([*variables, *kerass.variables], [*values, *state], strict=True)
        with keras.StatelessScope(list(mapping)):
            if rate is not None:
                kerass.learning_rate = rate
            kerass.apply(jax.tree.leaves(grads), variables)
            found = tuple([variable.value for variable in several] for several in (variables, kerass.variables))
            kerass.finalize_variable_values(variables)
            return found, (found[0], [variable.value for variable in variables])

    def both(weights: Any, kerass: Any, gradients: Any, rates: Any) -> Any:
        def step(states: Any, given: Any) -> Any:
            mine, found = ours(*states[0], *given)
            kerass, expected = theirs(*states[1], *given)
            return (mine, kerass), (found, expected)

        states = (weights, mine.init(weights)), (jax.tree.leaves(weights), kerass)
        return lax.scan(step, states, (gradients, rates))[1]

    stacked = jax.tree.map(lambda *several: np.stack(several), *gradients)
    rates = None if rates is None else np.array(rates, "float32")
    compare(both, weights, [v.value for v in kerass.variables], stacked, rates, note=f"{mine.get_config()}")


@pytest.mark.parametrize("name", ARGUMENTS)
@given(data=st.data())
def test_weights_after_some_steps(keras, name, data):
    arguments = data.draw(st.fixed_dictionaries(ARGUMENTS[name])) | data.draw(common_arguments(name))
    arguments["learning_rate"] = data.draw(numbers(0.001, 0.1))
    weights, gradients = weights_and_gradients(data.draw(st.sampled_from(TREES)), data.draw(st.integers(0, 2**32)))
    new_rate = data.draw(st.none() | numbers(0.001, 0.1))
    mine, kerass = getattr(optimizers, name)(**arguments), getattr(keras.optimizers, name)(**arguments)
    if excluded := data.draw(st.sampled_from([None, ["bias"], ["ker.*l", "gamma"]])):
        mine.exclude_from_weight_decay(var_names=excluded)
        kerass.exclude_from_weight_decay(var_names=excluded)
    rates = new_rate and [arguments["learning_rate"]] * (STEPS // 2) + [new_rate] * (STEPS // 2)
    check(keras, mine, kerass, weights, gradients, rates)


@pytest.mark.parametrize(("place", "name"), [*enumerate(ARGUMENTS)])
def test_accumulated_gradients(keras, place, name):
    arguments = {
        "learning_rate": 0.05,
        "gradient_accumulation_steps": 2 + place % 2,
        "weight_decay": 0.1,
        ("clipnorm", "clipvalue", "global_clipnorm")[place % 3]: 0.7,
        "loss_scale_factor": 4.0,
        "use_ema": True,
        "ema_momentum": 0.6,
        "ema_overwrite_frequency": (None, 1, 2, None, 2)[place % 5],
    }
    weights, gradients = weights_and_gradients(TREES[0], place)
    mine, kerass = getattr(optimizers, name)(**arguments), getattr(keras.optimizers, name)(**arguments)
    check(keras, mine, kerass, weights, gradients)


SCHEDULES: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "ExponentialDecay": {
        "initial_learning_rate": numbers(0.001, 1.0),
        "decay_steps": st.integers(1, 50),
        "decay_rate": numbers(0.1, 1.0),
        "staircase": st.booleans(),
    },
    "InverseTimeDecay": {
        "initial_learning_rate": numbers(0.001, 1.0),
        "decay_steps": st.integers(1, 50),
        "decay_rate": numbers(0.1, 1.0),
        "staircase": st.booleans(),
    },
    "PolynomialDecay": {
        "initial_learning_rate": numbers(0.001, 1.0),
        "decay_steps": st.integers(1, 50),
        "end_learning_rate": numbers(0.0, 1.0),
        "power": numbers(0.5, 3.0),
        "cycle": st.booleans(),
    },
    "CosineDecay": {
        "initial_learning_rate": numbers(0.001, 1.0),
        "decay_steps": st.integers(1, 50),
        "alpha": numbers(0.0, 1.0),
    },
    "CosineDecayRestarts": {
        "initial_learning_rate": numbers(0.001, 1.0),
        "first_decay_steps": st.integers(1, 50),
        "t_mul": st.just(1.0) | numbers(1.1, 3.0),
        "m_mul": numbers(0.5, 1.5),
        "alpha": numbers(0.0, 1.0),
    },
}


@pytest.mark.parametrize("name", SCHEDULES)
@given(data=st.data(), step=st.integers(0, 200))
def test_rates_of_schedules(keras, name, data, step):
    arguments = data.draw(st.fixed_dictionaries(SCHEDULES[name]))
    assume(name != "CosineDecayRestarts" or not is_near_a_restart(step, **arguments))
    check_schedule(keras, name, arguments, step)


def is_near_a_restart(step: int, first_decay_steps: int, t_mul: float, **others: Any) -> bool:
    """Whether rounding errors decide if Keras restarts at `step`."""
    periods = step / first_decay_steps
    restarts = periods if t_mul == 1 else np.log(1 - periods * (1 - t_mul)) / np.log(t_mul)
    return t_mul != 1 and abs(restarts - round(restarts)) < 1e-4


@given(data=st.data(), step=st.integers(0, 200))
def test_rates_after_a_warmup(keras, data, step):
    arguments = data.draw(st.fixed_dictionaries(SCHEDULES["CosineDecay"]))
    arguments |= {"warmup_target": data.draw(numbers(0.001, 1.0)), "warmup_steps": data.draw(st.integers(0, 100))}
    check_schedule(keras, "CosineDecay", arguments, step)


@given(
    boundaries=st.lists(st.integers(0, 100), min_size=1, max_size=4, unique=True).map(sorted),
    values=st.lists(numbers(0.0, 1.0), min_size=5, max_size=5),
    step=st.integers(0, 110),
)
def test_rates_between_boundaries(keras, boundaries, values, step):
    arguments = {"boundaries": boundaries, "values": values[: len(boundaries) + 1]}
    check_schedule(keras, "PiecewiseConstantDecay", arguments, step)


def check_schedule(keras: Any, name: str, arguments: dict[str, Any], step: int) -> None:
    mine = getattr(optimizers.schedules, name)(**arguments)
    kerass = getattr(keras.optimizers.schedules, name)(**arguments)
    compare(lambda step: (mine(step), kerass(step)), np.int32(step), note=f"{arguments}")


@pytest.mark.parametrize("accumulation", [None, 2])
def test_a_schedule_counts_the_steps_that_keras_counts(keras, accumulation):
    arguments = {"decay_steps": 2, "decay_rate": 0.5, "initial_learning_rate": 0.5}
    weights, gradients = weights_and_gradients(TREES[0], seed=1)
    mine, kerass = (
        library.SGD(
            library.schedules.ExponentialDecay(**arguments), momentum=0.9, gradient_accumulation_steps=accumulation
        )
        for library in (optimizers, keras.optimizers)
    )
    check(keras, mine, kerass, weights, gradients)


def test_gradients_applied_between_steps(keras):
    found = []
    for module in (optimizers, keras.optimizers):
        variable = (kd if module is optimizers else keras).Variable(np.ones(2, "float32"))
        optimizer = module.Adam(0.1)
        for grad in ([1.0, 2.0], [0.5, -3.0]):
            optimizer.apply_gradients([(np.array(grad, "float32"), variable)])
        optimizer.apply([np.ones(2, "float32")])
        found.append((np.asarray(variable.value), int(np.asarray(optimizer.iterations))))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    assert found[0][1] == found[1][1] == 3
