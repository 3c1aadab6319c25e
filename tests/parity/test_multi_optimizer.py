"""Several optimizers in one, schedule-free steps, and averages that take the weights' place, as in Keras."""

from typing import Any

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ModelError
from tests import layouts

X = np.random.default_rng(0).normal(size=(22, 6)).astype("float32")
Y = np.random.default_rng(1).normal(size=(22, 2)).astype("float32")
AVERAGED = {"use_ema": True, "ema_momentum": 0.5}


def by_map(keras: Any) -> Any:
    o = keras.optimizers
    chosen = o.OptimizerMap(o.SGD(0.1, momentum=0.9), {".*head/kernel": o.Adam(0.01, **AVERAGED)})
    return o.MultiOptimizer(chosen)


def by_function(keras: Any) -> Any:
    body, head = keras.optimizers.AdamW(0.01, clipnorm=0.1), keras.optimizers.SGD(0.1)
    return keras.optimizers.MultiOptimizer(lambda variable: body if "body" in variable.path else head, 4.0)


def schedule_free(keras: Any) -> Any:
    common = {"warmup_steps": 3, "weight_decay": 0.1, "gradient_accumulation_steps": 2}
    return keras.optimizers.ScheduleFreeAdamW(0.05, **common, **AVERAGED)


def averaged(keras: Any) -> Any:
    return keras.optimizers.SGD(0.1, **AVERAGED)


def trained(keras: Any, optimizer: Any, callbacks: Any = ()) -> Any:
    layers = [keras.Input((6,)), keras.layers.Dense(4, name="body"), keras.layers.Dense(2, name="head")]
    model = keras.Sequential(layers)
    rng = np.random.default_rng(5)
    model.set_weights([rng.normal(size=weight.shape) for weight in model.get_weights()])
    model.compile(optimizer(keras), loss="mse")
    options: dict[str, Any] = {"epochs": 2, "verbose": 0, "shuffle": False, "validation_data": (X[:11], Y[:11])}
    history = model.fit(X, Y, batch_size=11, callbacks=list(callbacks), **options).history
    return model, history, model.get_weights()


def assert_same(found: Any, expected: Any) -> None:
    for name in expected[1]:
        np.testing.assert_allclose(found[1][name], expected[1][name], rtol=2e-5)
    for one, other in zip(found[2], expected[2], strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", [by_map, by_function, schedule_free])
def test_steps_are_those_of_keras(keras, optimizer: Any) -> None:
    with layouts.on("data=4,model=2", {"body/kernel": (None, "model")}).scope():
        found = trained(kd, optimizer)
    assert_same(found, trained(keras, optimizer))


@pytest.mark.parametrize(("optimizer", "swap_on_epoch"), [(by_map, True), (averaged, False)])
def test_averages_take_the_place_of_weights_as_in_keras(keras, optimizer: Any, swap_on_epoch: bool) -> None:
    with layouts.on("data=2,model=4", {}).scope():
        found = trained(kd, optimizer, [kd.callbacks.SwapEMAWeights(swap_on_epoch)])
    assert_same(found, trained(keras, optimizer, [keras.callbacks.SwapEMAWeights(swap_on_epoch)]))


def test_each_optimizer_is_read_and_set_by_itself() -> None:
    model, *_ = trained(kd, by_function)
    several = model.optimizer
    assert [one.name for one in several.optimizers] == ["adamw", "sgd"] and int(several.iterations) == 4
    assert [int(one.iterations) for one in several.optimizers] == [4, 4]
    several.optimizers[1].learning_rate = 0.0
    before = model.get_weights()
    model.fit(X, Y, batch_size=11, verbose=0)
    after = model.get_weights()
    np.testing.assert_array_equal(before[2], after[2])
    assert not np.allclose(before[0], after[0])
    with pytest.raises(AttributeError, match="learning_rate"):
        _ = several.learning_rate


def test_it_is_written_down_with_all_of_them() -> None:
    again = kd.optimizers.deserialize(kd.optimizers.serialize(by_map(kd)))
    adam, sgd = again.optimizers
    assert (adam.name, adam.use_ema, float(adam.learning_rate)) == ("adam", True, 0.01)
    assert (sgd.name, sgd.momentum) == ("sgd", 0.9)


@pytest.mark.parametrize("optimizer", [by_map, schedule_free])
def test_loops_of_ones_own_give_the_same(keras, optimizer: Any) -> None:
    found = []
    for library in (kd, keras):
        model = library.Sequential([library.Input((6,)), library.layers.Dense(4, name="body")])
        model.set_weights([np.ones((6, 4)), np.ones(4)])
        own = optimizer(library)
        steps = own.iterations
        own.build(model.trainable_variables)
        state = [variable.value for variable in own.variables], [v.value for v in model.trainable_variables]
        for _ in range(3):
            weights, slots = own.stateless_apply(state[0], [0.1 * value for value in state[1]], state[1])
            state = slots, weights
        found.append([np.asarray(value) for value in state[1]])
        own.apply([np.ones((6, 4), "float32"), np.ones(4, "float32")], model.trainable_variables)
        found[-1] += model.get_weights()
        assert int(np.asarray(own.iterations)) == (0 if optimizer is schedule_free else 1)
        assert library is keras or optimizer is schedule_free or int(steps) == 1
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_one_of_several_is_refused() -> None:
    o = kd.optimizers
    with pytest.raises(ModelError, match="cannot be used inside of a MultiOptimizer"):
        o.OptimizerMap(o.SGD(), {"a": o.LossScaleOptimizer(o.SGD())})
    twice = o.OptimizerMap(o.SGD(), {"a/.*": o.Adam(), ".*/b": o.Lion()})
    with pytest.raises(ModelError, match="Multiple optimizers assigned to variable 'a/b'"):
        _ = twice["a/b"]
    with pytest.raises(ModelError, match="already exists"):
        twice["a/.*"] = o.SGD()
    with pytest.raises(ModelError, match=r"'\(' is not a regular expression"):
        twice["("] = o.SGD()
    with pytest.raises(ModelError, match=r"`optimizer_map` cannot be called as optimizer_map\(variable\)"):
        o.MultiOptimizer({"a": o.SGD()})


def test_predict_gives_the_weights_back_and_averages_must_be_there() -> None:
    model, _, before = trained(kd, averaged)
    model.optimizer.averaged()[0][1].assign(np.zeros((6, 4)))
    plain = model.predict(X, verbose=0)
    swapped = model.predict(X, verbose=0, callbacks=[kd.callbacks.SwapEMAWeights()])
    assert not np.allclose(plain, swapped)
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
    model.compile("sgd", "mse")
    with pytest.raises(ModelError, match="no optimizer of the model keeps averages"):
        model.evaluate(X, Y, verbose=0, callbacks=[kd.callbacks.SwapEMAWeights()])
