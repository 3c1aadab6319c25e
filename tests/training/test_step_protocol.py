"""Steps in the form of Keras run in the loop of the built-in ones, with all that belongs to it."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ModelError
from tests import layouts
from tests.soak import few

X = np.random.default_rng(0).normal(size=(22, 8)).astype("float32")
Y = np.random.default_rng(1).integers(0, 4, 22).astype("int32")


class Stepped(kd.Model):
    """Its steps are those of Keras, written out by the base."""

    def train_step(self, state: Any, data: Any) -> Any:
        return super().train_step(state, data)

    def test_step(self, state: Any, data: Any) -> Any:
        return super().test_step(state, data)

    def predict_step(self, state: Any, data: Any) -> Any:
        return super().predict_step(state, data)


def tagging(model_class: Any, dtype: Any = None) -> Any:
    """Statistics, Dropout's generators, a mask, a regularizer, a constraint."""
    layers = kd.layers
    inputs = kd.Input((8,))
    x = layers.Dense(16, activation="tanh", kernel_regularizer="l2", name="d1", dtype=dtype)(inputs)
    x = layers.Dropout(0.2, dtype=dtype)(layers.BatchNormalization(dtype=dtype)(x))
    return model_class(inputs, layers.Dense(4, bias_constraint="non_neg", name="d2", dtype=dtype)(x), dtype=dtype)


def trained(
    model_class: Any,
    name: str = "one device",
    make: Any = tagging,
    compiled: Any = None,
    rows: int = 22,
    **options: Any,
) -> Any:
    """A model, and what a training on so many rows gives; with a shorter last batch also what else it gives."""
    kd.set_random_seed(3)
    with layouts.on(name).scope():
        model = make(model_class)
    loss = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
    compiled = {"optimizer": kd.optimizers.Adam(0.01), "loss": loss, "metrics": ["accuracy"], **(compiled or {})}
    model.compile(**compiled)
    data = X[:rows], Y[:rows]
    found = model.fit(*data, **{"batch_size": 8, "epochs": 2, "verbose": 0, "seed": 7, **options}).history
    if rows % 8 == 0:
        return model, [found, model.get_weights()]
    evaluated = model.evaluate(*data, batch_size=8, verbose=0, return_dict=True)
    return model, [found, evaluated, model.predict(X, batch_size=8, verbose=0), model.get_weights()]


@functools.cache
def built_in(rows: int) -> Any:
    return trained(kd.Model, rows=rows)[1]


def assert_same(found: Any, expected: Any, **tolerance: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    tolerance = {"rtol": 2e-5, "atol": 2e-6, **tolerance}
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, **tolerance), found, expected)


@pytest.mark.parametrize("name", few(["data=8,model=1", "data=2,model=4"], "data=2,model=4"))
def test_they_give_what_the_built_in_steps_give(name: str) -> None:
    model, found = trained(Stepped, name)
    assert_same(found, built_in(22))
    assert model.get_layer("d1").kernel.layout.axes == (None, "model")


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "compiled", [{"steps_per_execution": 2, "donate": False}, {"check": True}], ids=["several steps", "checked"]
)
def test_how_steps_run_changes_no_number(compiled: Any) -> None:
    assert_same(trained(Stepped, compiled=compiled, rows=16)[1], built_in(16))


@pytest.mark.slow
def test_what_optimizers_do_beside_their_step_they_do_here_too() -> None:
    found = []
    for model_class in (Stepped, kd.Model):
        common = {"use_ema": True, "ema_momentum": 0.6, "gradient_accumulation_steps": 2}
        optimizer = kd.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.1, loss_scale_factor=8.0, **common)
        options = {"class_weight": {0: 3.0, 2: 0.2}, "validation_split": 0.5, "batch_size": 4}
        found.append(trained(model_class, "data=2,model=4", compiled={"optimizer": optimizer}, rows=16, **options)[1])
    assert_same(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_model_in_half_precision_scales_its_loss() -> None:
    def half(model_class: Any) -> Any:
        return tagging(model_class, "mixed_float16")

    model, found = trained(Stepped, make=half, rows=16)
    assert isinstance(model.optimizer, kd.optimizers.LossScaleOptimizer)
    assert_same(found, trained(kd.Model, make=half, rows=16)[1], rtol=1e-2, atol=1e-3)


class Unscaled(kd.Model):
    def train_step(self, state: Any, data: Any) -> Any:
        trainable, others, slots, measured = state
        grads = jax.grad(lambda values: jnp.mean(self.stateless_call(values, others, data[0])[0] ** 2))(trainable)
        trainable, slots = self.optimizer.stateless_apply(slots, grads, trainable)
        return {"steps": self.optimizer.iterations + 0}, (trainable, others, slots, measured)


def test_gradients_that_would_be_scaled_back_for_nothing_are_refused() -> None:
    model = tagging(Unscaled)
    model.compile(kd.optimizers.SGD(0.1, loss_scale_factor=8.0))
    with pytest.raises(ModelError, match="gradients of a loss that is not scaled") as caught:
        model.fit(X, Y, verbose=0)
    assert "auto_scale_loss=False" in caught.value.fix
    model.compile(kd.optimizers.SGD(0.1))
    # the variables of the optimizer are those of the step while it runs; the last step logs
    assert model.fit(X, Y, batch_size=8, epochs=2, verbose=0).history == {"steps": [2.0, 5.0]}
    assert int(model.optimizer.iterations) == 6


def test_masks_reach_the_loss() -> None:
    tokens = np.random.default_rng(2).integers(0, 4, (22, 5)).astype("int32")

    def make(model_class: Any) -> Any:
        inputs = kd.Input((5,), dtype="int32")
        x = kd.layers.Embedding(4, 8, mask_zero=True)(inputs)
        return model_class(inputs, kd.layers.Dense(4)(x))

    losses = []
    for model_class in (Stepped, kd.Model):
        kd.set_random_seed(1)
        model = make(model_class)
        model.compile("sgd", kd.losses.SparseCategoricalCrossentropy(from_logits=True))
        losses.append(model.fit(tokens, tokens, batch_size=22, epochs=2, verbose=0).history["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


class Adversaries(kd.Model):
    """Two optimizers, each with its own gradients, on data without targets."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = kd.layers.Dense(8, name="generator")
        self.critic = kd.layers.Dense(1, name="critic")

    def call(self, inputs: Any) -> Any:
        return self.critic(self.generator(inputs))

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, others, slots, measured = state

        def loss_of(values: Any) -> Any:
            return jnp.mean(self.stateless_call(values, others, data, training=True)[0] ** 2)

        loss, grads = jax.value_and_grad(loss_of)(trainable)
        first = len(self.optimizers["critic"].variables)  # by name
        critic, slots_of_critic = self.optimizers["critic"].stateless_apply(slots[:first], grads[2:], trainable[2:])
        made, slots_of_made = self.optimizers["generator"].stateless_apply(slots[first:], grads[:2], trainable[:2])
        return {"loss": loss}, ([*made, *critic], others, [*slots_of_critic, *slots_of_made], measured)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", ["one device", "data=4,model=2"])
def test_several_optimizers_on_inputs_alone(name: str) -> None:
    kd.set_random_seed(0)
    with layouts.on(name, {}).scope():
        model = Adversaries()
        model.build((None, 8))
    model.compile({"generator": kd.optimizers.SGD(0.0), "critic": kd.optimizers.SGD(0.1)})
    before = model.get_weights()
    losses = model.fit(X, batch_size=22, epochs=4, verbose=0).history["loss"]
    after = model.get_weights()
    assert losses[-1] < losses[0]
    np.testing.assert_array_equal(before[0], after[0])
    assert not np.allclose(before[2], after[2])


def of_tensorflow(self: Any, data: Any) -> Any:
    return {"loss": 0.0}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", ["train_step", "test_step", "predict_step"])
def test_the_form_of_other_backends_is_refused_and_that_of_jax_shown(name: str) -> None:
    model = tagging(type("Other", (kd.Model,), {name: of_tensorflow}))
    with pytest.raises(ModelError, match=rf"Other\.{name} does not have the form of Keras on JAX") as caught:
        model.compile("sgd", "mse")
    assert f"{name}(self, state, data)" in str(caught.value) and "stateless_call" in str(caught.value)


@pytest.mark.first_cases(4)
@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda self, state, data: state, "did not return what Keras expects"),
        (lambda self, state, data: (0.0, state), "did not return what Keras expects"),
        (lambda self, state, data: ({}, state[:3]), "did not return what Keras expects"),
        (lambda self, state, data: ({}, ([], *state[1:])), r"must return a list of \d+ trainable_variables"),
        (lambda self, state, data: ({}, (*state[:3], [])), r"must return a list of \d+ metrics_variables"),
        (lambda self, state, data: ({}, ([v[:1] for v in state[0]], *state[1:])), "the same shape and dtype"),
        (lambda self, state, data: ({"a": None}, state), r"must log numbers or arrays[^$]*logs\['a'\] = None"),
        (lambda self, state, data: ({1: 2.0}, state), r"must log numbers or arrays[^$]*logs\[1\] = 2.0"),
        (lambda self, state, data: ({"a": 1.0, "b": {"a": 2.0}}, state), "train_step logs a name twice[^$]*'a'"),
    ],
)
def test_what_is_no_state_is_refused(step: Any, message: str) -> None:
    model = tagging(type("Wrong", (kd.Model,), {"train_step": step}))
    model.compile("sgd", "mse")
    with pytest.raises(ModelError, match=message):
        model.fit(X, np.zeros((22, 4)), verbose=0)


def test_what_is_frozen_after_compile_asks_for_another_compile() -> None:
    model = tagging(Stepped)
    model.compile("sgd", "mse")
    model.get_layer("d1").trainable = False
    with pytest.warns(UserWarning, match="set after compile"), pytest.raises(ModelError, match="call compile again"):
        model.fit(X, np.zeros((22, 4)), verbose=0)
    model.compile("sgd", "mse")
    before = model.get_layer("d1").get_weights()
    model.fit(X, np.zeros((22, 4)), verbose=0)
    np.testing.assert_array_equal(before[0], model.get_layer("d1").get_weights()[0])


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_what_a_test_step_changes_is_kept(steps_per_execution: int) -> None:
    class Adapting(kd.Sequential):
        def test_step(self, state: Any, data: Any) -> Any:
            logs, (trainable, others, measured) = super().test_step(state, data)
            others = [value + 1 if value.ndim else value for value in others]
            return logs, ([trainable[0] * 2, *trainable[1:]], others, measured)

    with layouts.on("data=2,model=4").scope():
        norm = kd.layers.BatchNormalization()
        model = Adapting([kd.Input((8,)), kd.layers.Dense(4, name="d1"), norm, kd.layers.Dense(4, name="d2")])
    model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    kernel, mean = model.get_layer("d1").kernel.numpy(), norm.moving_mean.numpy()
    model.evaluate(X[:16], np.zeros((16, 4)), batch_size=8, verbose=0)
    np.testing.assert_allclose(model.get_layer("d1").kernel.numpy(), 4 * kernel, rtol=1e-6)
    np.testing.assert_allclose(norm.moving_mean.numpy(), mean + 2)
    assert len(model._built.step_runner._steps["test"].changed) == 3, "no more are copied"
    assert model.get_layer("d1").kernel.layout.axes == (None, "model")


def test_own_metrics_are_reset_with_each_epoch_and_tell_the_last_one() -> None:
    class Counting(kd.Sequential):
        def __init__(self, layers: Any) -> None:
            super().__init__(layers)
            self.rows = kd.metrics.Sum("rows")

        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            self.rows.update_state(jnp.ones(len(x)))
            return super().compute_metrics(x, y, y_pred, sample_weight)

    with layouts.on("data=8,model=1", {}).scope():
        model = Counting([kd.Input((8,)), kd.layers.Dense(4)])
    assert not model.compiled
    model.compile("sgd", "mse", metrics=["mae"])
    assert model.compiled and model.metrics_names == ["loss", "compile_metrics", "rows"]
    history = model.fit(X, np.zeros((22, 4)), batch_size=8, epochs=2, verbose=0).history
    assert list(history) == ["loss", "mae", "rows"] and history["rows"] == [22.0, 22.0]
    assert float(model.rows.result()) == 22
    assert model.get_metrics_result()["mae"] == pytest.approx(history["mae"][-1])
    model.reset_metrics()
    assert float(model.rows.result()) == 0
    assert model.train_on_batch(X, np.zeros((22, 4)), return_dict=True)["rows"] == 22
    assert model.test_on_batch(X[:3], np.zeros((3, 4)), return_dict=True)["rows"] == 3
