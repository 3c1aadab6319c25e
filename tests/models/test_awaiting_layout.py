"""Models under `AutoParallel` before the search: variables are listed without arrays, and values wait for `fit`."""

import jax
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from keras_dist._unstable.flax_internals import raw_value
from keras_dist.errors import DistributionError


def is_deferred(variable):
    return isinstance(raw_value.__get__(variable), jax.ShapeDtypeStruct)


def sequential():
    """A statistic, a frozen layer and random state."""
    hidden = [layers.Dense(8, name="d1", trainable=False), layers.BatchNormalization(name="bn")]
    return kd.Sequential([kd.Input((4,)), *hidden, layers.Dropout(0.1, name="drop"), layers.Dense(8, name="d2")])


def functional():
    """A layer that is called twice, and a model with random state as a layer."""
    inputs, shared = kd.Input((4,)), layers.Dense(4, name="shared")
    inner = kd.Sequential([kd.Input((4,)), layers.Dense(4, name="d"), layers.GaussianNoise(0.1)], name="inner")
    return kd.Model(inputs, layers.Dense(8, name="head")(inner(shared(shared(inputs)))))


def auto():
    return kd.AutoParallel(kd.DeviceMesh((2, 4), ("data", "model")), "memory").scope()


def made(make):
    kd.set_random_seed(1)
    with auto():
        return make()


def fitted(model):
    model.compile("sgd", "mse")
    x = np.linspace(0, 1, 32, dtype=np.float32).reshape(8, 4)
    model.fit(x, np.ones((8, 8), np.float32), verbose=0, shuffle=False)
    return model


LISTS = (
    "weights",
    "variables",
    "trainable_weights",
    "non_trainable_weights",
    "trainable_variables",
    "non_trainable_variables",
)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("make", [sequential, functional])
def test_variables_are_the_same_objects_before_and_after_fit(make):
    model = made(make)
    before = {name: getattr(model, name) for name in LISTS}
    told = [(one.path, one.shape, one.dtype, one.trainable) for one in model.weights]
    count = model.count_params()
    assert all(map(is_deferred, before["variables"])) and before["trainable_weights"]
    for read in (model.get_weights, before["weights"][0].numpy, lambda: before["variables"][-1] + 1):
        with pytest.raises(DistributionError, match="AutoParallel has no layout yet"):
            read()
    fitted(model)
    for name, variables in before.items():
        assert [*map(id, variables)] == [*map(id, getattr(model, name))], name
    assert told == [(one.path, one.shape, one.dtype, one.trainable) for one in model.weights]
    assert count == model.count_params() == sum(value.size for value in model.get_weights())
    layouts = [tuple(row.axes) for row in model.layout_plan.rows if row.path == "d1/kernel"]
    assert [tuple(one.layout.axes) for one in model.weights if one.path == "d1/kernel"] == layouts
    assert any(not one.value.sharding.is_fully_replicated for one in before["weights"])
    for one, other in zip(model.get_weights(), fitted(made(make)).get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)  # nobody has looked at the other before `fit`


def test_nothing_creates_values_before_the_search():
    model = made(sequential)
    kernel = model.weights[0]
    layer, x = model.layers[0], np.ones((8, 4), np.float32)
    tries = {
        "value": lambda: kernel.value,
        "asarray": lambda: np.asarray(kernel),
        "read": lambda: kernel[...],
        "layer": lambda: layer(x),
        "layer.get_weights": layer.get_weights,
        "model": lambda: model(x),
        "layout_plan": lambda: model.layout_plan,
    }
    for name, attempt in tries.items():
        with pytest.raises(DistributionError, match="AutoParallel has no layout yet") as caught:
            attempt()
        assert "call fit" in caught.value.fix and "distribution.search" in caught.value.fix, name
    assert all(map(is_deferred, model.variables)) and "value=deferred" in repr(kernel)
    lines: list[str] = []
    model.summary(print_fn=lines.append)
    assert all(text in "".join(lines) for text in ("AutoParallel has no layout yet", "d1/kernel", "d2/bias", "8 x 8"))


@pytest.mark.slow
def test_values_that_are_assigned_before_the_search_are_initial_values():
    inner = [layers.Dense(8), layers.Dropout(0.1)]
    model = made(lambda: kd.Sequential([kd.Input((4,)), kd.Sequential(inner), layers.Dense(8)]))
    assert model.count_params() == 4 * 8 + 8 + 8 * 8 + 8
    model.weights[0].assign(np.full((4, 8), 2.0))
    model.trainable = False
    fitted(model)
    assert [weight.shape for weight in model.weights] == [(4, 8), (8,), (8, 8), (8,)]
    np.testing.assert_array_equal(model.weights[0], np.full((4, 8), 2.0))


def network(rngs):
    return nnx.Sequential(nnx.Linear(4, 8, rngs=rngs), nnx.Dropout(0.1, rngs=rngs), nnx.Linear(8, 8, rngs=rngs))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("source", [lambda: network, lambda: network(nnx.Rngs(0))], ids=["factory", "module"])
def test_parameters_of_modules_are_counted(source):
    model = made(lambda: kd.Model.from_nnx(source(), seed=0))
    assert model.count_params() == 4 * 8 + 8 + 8 * 8 + 8
    with pytest.raises(DistributionError, match="AutoParallel has no layout yet") as caught:
        _ = model.trainable_weights
    assert "call fit" in caught.value.fix and "distribution.search" in caught.value.fix
    assert fitted(model).count_params() == 112
