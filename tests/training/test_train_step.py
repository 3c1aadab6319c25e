"""A train step of the user's own, several named optimizers, and which variables are trained."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import keras_dist as kd
from tests import layouts
from tests.networks import LOSS, Gan, Noisy, Plain, Tied, blobs, values_of

X, Y = blobs(32)


def built(factory: Any = Plain, name="one device", **options):
    if factory is Plain and not options:
        return layouts.plain_on(name)
    rules = {".*/kernel": (None, None)} if factory is Gan else layouts.RULES
    return layouts.model_on(name, factory, rules, **options)


class TestGan:
    """Two optimizers, each with its own gradients, in one step."""

    POINTS = np.random.default_rng(0).normal(2.0, 0.1, (100, 2)).astype("f4")

    @staticmethod
    def train_step_of(model):
        def train_step(state, batch, rngs):
            real, _, _ = batch
            noise = jax.random.normal(rngs.noise(), (real.shape[0], 3))

            def generator_loss(trainable):
                gan = model.merge(trainable, state.rest)
                return optax.sigmoid_binary_cross_entropy(gan.discriminator(gan.generator(noise)), 1.0).mean()

            def discriminator_loss(trainable):
                gan = model.merge(trainable, state.rest)
                on_real, on_fake = gan.discriminator(real), gan.discriminator(gan.generator(noise))
                return (
                    optax.sigmoid_binary_cross_entropy(on_real, 1.0) + optax.sigmoid_binary_cross_entropy(on_fake, 0.0)
                ).mean()

            d_loss, d_grads = jax.value_and_grad(discriminator_loss)(state.trainable)
            state = model.apply_gradients(state, d_grads, optimizer="discriminator")
            g_loss, g_grads = jax.value_and_grad(generator_loss)(state.trainable)
            state = model.apply_gradients(state, g_grads, optimizer="generator")
            return state, {"g_loss": g_loss, "d_loss": d_loss}

        return train_step

    @classmethod
    def trained(cls, name):
        model = built(Gan, name)
        model.compile(
            optimizer={"generator": optax.adam(0.01), "discriminator": "sgd"}, train_step=cls.train_step_of(model)
        )
        return model, model.fit(cls.POINTS, batch_size=25, epochs=2, verbose=0).history

    @pytest.mark.slow
    def test_the_numbers_are_the_same_on_every_mesh(self, sharded_gan):
        _, expected = self.trained("one device")
        _, found = sharded_gan
        assert list(found) == ["g_loss", "d_loss"]
        for key, losses in expected.items():
            np.testing.assert_allclose(found[key], losses, atol=1e-5)

    def test_each_optimizer_has_slots_for_its_own_variables_planned_and_placed(self, sharded_gan):
        model, _ = sharded_gan
        state = model.state
        assert set(state.slots) == {"generator", "discriminator"}
        adam = state.slots["generator"][0]
        assert set(adam.mu) == {"generator"}
        assert int(adam.count) == int(state.step)
        paths = {row.path for row in model.state_plan.rows if row.role == "slot"}
        assert any(path.startswith("generator/0/mu/generator/layers/0/kernel") for path in paths)
        kernel = adam.mu["generator"]["layers"][0]["kernel"]
        assert kernel.addressable_shards[0].data.size == kernel.size // 8

    @pytest.mark.slow
    def test_train_on_batch_runs_it_too_and_both_play(self, sharded_gan):
        model, _ = sharded_gan
        before, step = values_of(model), int(model.state.step)
        logs = model.train_on_batch(self.POINTS[:25], return_dict=True)
        assert set(logs) == {"g_loss", "d_loss"}
        assert int(model.state.step) == step + 1
        assert all(not np.array_equal(value, before[path]) for path, value in values_of(model).items())


@pytest.fixture(scope="module")
def sharded_gan():
    return TestGan.trained("fully data=8")


class TestOwnStep:
    @staticmethod
    def descent(model):
        def train_step(state, batch, rngs):
            x, y, _ = batch

            def loss_of(trainable):
                module = model.merge(trainable, state.rest)
                module.train()
                value = LOSS(y, module(x)).mean()
                return value, model.split(module)[1]

            (value, rest), grads = jax.value_and_grad(loss_of, has_aux=True)(state.trainable)
            return model.apply_gradients(state, grads).replace(rest=rest), {"loss": value}

        return train_step

    def test_one_that_does_what_fit_does_gives_the_same_numbers(self):
        ours, own = built(Noisy, "data=4,model=2"), built(Noisy, "data=4,model=2")
        ours.compile("adam", loss=LOSS)
        own.compile("adam", train_step=self.descent(own))
        histories = [m.fit(X[:30], Y[:30], batch_size=10, epochs=2, verbose=0).history for m in (ours, own)]
        np.testing.assert_allclose(histories[0]["loss"], histories[1]["loss"], atol=1e-6)
        assert int(own.state.step) == 6, "the step is counted for it"

    def test_what_it_logs_in_inner_dicts_is_logged_by_the_names_in_them(self):
        model = built()
        model.compile("sgd", train_step=lambda state, batch, rngs: (state, {"b": 1.0, "more": {"c": 2.0, "a": 3.0}}))
        assert model.fit(X, Y, verbose=0).history == {"b": [1.0], "c": [2.0], "a": [3.0]}

    def test_with_a_loss_beside_it_it_can_be_evaluated(self):
        model = built()
        model.compile("sgd", loss=LOSS, metrics=["accuracy"], train_step=self.descent(model))
        history = model.fit(X, Y, validation_data=(X, Y), verbose=0).history
        assert list(history) == ["loss", "val_loss", "val_accuracy"]

    def test_it_gets_weights_and_other_random_numbers_in_each_step(self):
        def train_step(state, batch, rngs):
            x, _, weight = batch
            return state, {"weight": weight.mean(), "random": jax.random.uniform(rngs.noise()), "rows": 1.0 * len(x)}

        model = built(name="data=4,model=2")
        model.compile("sgd", train_step=train_step)
        first = model.train_on_batch(X[:7], Y[:7], np.full(7, 3.0), return_dict=True)
        second = model.train_on_batch(X[:7], Y[:7], np.full(7, 3.0), return_dict=True)
        assert (first["weight"], first["rows"]) == pytest.approx((3.0, 7.0))
        assert first["random"] != second["random"]
        other = built()
        other.compile("sgd", train_step=train_step)
        assert other.train_on_batch(X[:7], Y[:7], np.full(7, 3.0), return_dict=True) == pytest.approx(first)

    @pytest.mark.parametrize(
        ("train_step", "message"),
        [
            (lambda state, batch, rngs: state, r"did not return \(state, logs\)"),
            (lambda state, batch, rngs: (state, 1.0), r"did not return \(state, logs\)"),
            (lambda state, batch, rngs: (state.replace(slots={}), {}), "another structure"),
            (
                lambda state, batch, rngs: (state.replace(trainable=jax.tree.map(jnp.float16, state.trainable)), {}),
                "shape or dtype of 'trainable/d1/bias'",
            ),
            (lambda state, batch, rngs: (state, {"a": None}), "logs 'a', which is not a scalar"),
            (lambda state, batch, rngs: (state, {"a": 1.0, "b": {"a": 2.0}}), "train_step logs a name twice"),
        ],
        ids=["no logs", "number", "structure", "dtype", "no scalar", "twice"],
    )
    def test_a_step_that_returns_something_else_is_refused(self, train_step, message):
        model = built()
        model.compile("adam", loss=LOSS, train_step=train_step)
        with pytest.raises(kd.errors.ModelError, match=message) as caught:
            model.fit(X, Y, verbose=0)
        assert caught.value.given and caught.value.fix
        assert np.isfinite(model.variables[0].numpy()).all(), "the model is usable"

    def test_errors_of_apply_gradients(self):
        def with_optimizer(name):
            return lambda state, batch, rngs: (model.apply_gradients(state, state.trainable, name), {})

        model = built()
        model.compile({"d1": "sgd", "d2": "sgd"}, train_step=with_optimizer("d3"))
        with pytest.raises(kd.errors.ModelError, match="unknown optimizer 'd3'"):
            model.train_on_batch(X)
        model.compile(
            {"d1": "sgd", "d2": "sgd"},
            train_step=lambda state, batch, rngs: (model.apply_gradients(state, {"d1": state.trainable["d1"]}), {}),
        )
        with pytest.raises(kd.errors.ModelError, match="gradients are missing"):
            model.train_on_batch(X)


class TestNamedOptimizers:
    @pytest.mark.parametrize("optimizer", [{"d1": "sgd", "d2": optax.sgd(0.0)}, {"a": ("sgd", "d1/.*")}])
    def test_each_updates_the_variables_of_its_name_or_rule(self, optimizer):
        model = built(name="data=4,model=2")
        model.compile(optimizer, loss=LOSS)
        before = values_of(model)
        model.fit(X, Y, verbose=0)
        changed = {path for path, value in values_of(model).items() if not np.array_equal(value, before[path])}
        assert changed == {"d1/bias", "d1/kernel"}

    @pytest.mark.slow
    def test_one_of_them_may_search_along_a_line(self):
        model = built(name="data=4,model=2")
        model.compile({"d1": optax.lbfgs(), "d2": "sgd"}, loss=LOSS)
        history = model.fit(X, Y, epochs=3, verbose=0).history["loss"]
        assert history[-1] < history[0]


class TestTrainable:
    FROZEN: ClassVar = {
        "d2/.*": {"d2/bias", "d2/kernel"},
        "d1/kernel|d2/bias": {"d1/kernel", "d2/bias"},
        ".*": {"d1/kernel", "d2/bias", "d2/kernel", "norm/bias", "norm/scale"},
        nnx.All(nnx.Param, nnx.PathContains("d1")): {"d1/kernel"},
        nnx.PathContains("d2"): {"d2/bias", "d2/kernel"},
    }

    @pytest.mark.first_cases(2)
    @pytest.mark.parametrize(("trainable", "expected"), FROZEN.items(), ids=map(str, FROZEN))
    def test_a_filter_or_expression_freezes_the_rest(self, trainable, expected):
        model = built(Noisy, "data=4,model=2", trainable=trainable)
        assert {v.path for v in model.trainable_variables} == expected
        model.compile("adam", loss=LOSS)
        before = values_of(model)
        model.train_on_batch(X, Y)
        changed = {path for path, value in values_of(model).items() if not np.array_equal(value, before[path])}
        assert changed == expected | {"norm/mean", "norm/var", "drop/rngs/count"}

    def test_frozen_parameters_have_no_slots_and_keep_their_layout(self):
        model = built(name="data=4,model=2", trainable="d2/.*")
        model.compile("adam", loss=LOSS)
        assert set(model.state.trainable) == {"d2"}
        assert set(model.state.rest) == {"d1"}
        assert not any("d1" in row.path for row in model.state_plan.rows if row.role == "slot")
        assert model.layout_plan.row("d1/kernel").axes == (None, "model")

    @pytest.mark.parametrize("rule", ["encoder/kernel", "tied_kernel"])
    def test_a_tied_weight_is_chosen_by_any_of_its_names(self, rule):
        model = kd.Model.from_nnx(Tied, trainable=rule)
        assert len(model.trainable_variables) == 1
