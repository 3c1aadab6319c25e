"""What all optimizers share: an optax transformation, fixed once made, that can be written down."""

import copy
import json
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import keras_dist as kd
from keras_dist import errors, optimizers, saving

NAMES = [
    "Adadelta", "Adafactor", "Adagrad", "Adam", "Adam8bit", "AdamW", "AdamW8bit", "Adamax", "Ftrl", "Lamb", "Lion",
    "Muon", "Nadam", "RMSprop", "RowWiseAdagrad", "SGD", "ScheduleFreeAdamW",
]  # fmt: skip
PARAMS: Any = {"d": {"bias": jnp.array([0.5, -1.0]), "kernel": jnp.array([[1.0, 2.0], [3.0, -4.0]])}}
GRADS: Any = {"d": {"bias": jnp.array([1.0, 0.5]), "kernel": jnp.array([[0.1, -0.2], [0.3, 0.4]])}}
EVERYTHING: Any = {
    "weight_decay": 0.1,
    "clipnorm": 1.0,
    "use_ema": True,
    "ema_overwrite_frequency": 2,
    "gradient_accumulation_steps": 2,
    "loss_scale_factor": 8.0,
}


def make(name: str, *args: Any, **kwargs: Any) -> optimizers.Optimizer:
    return getattr(optimizers, name)(*args, **kwargs)


def after(transformation: Any, steps: int = 3, params: Any = PARAMS) -> Any:
    state, update = transformation.init(params), jax.jit(transformation.update)
    for _ in range(steps):
        updates, state = update(GRADS, state, params)
        params = optax.apply_updates(params, updates)
    return params


def assert_equal(one: Any, other: Any, **tolerance: Any) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, **{"rtol": 1e-6, **tolerance})


def test_all_have_a_test_here() -> None:
    exported = [getattr(optimizers, name) for name in optimizers.__all__]
    made = {cls.__name__ for cls in exported if isinstance(cls, type) and issubclass(cls, optimizers.Optimizer)}
    assert made == {*NAMES, "LossScaleOptimizer", "MultiOptimizer", "Optimizer"}  # in tests of their own


class TestTransformation:
    """It can be used wherever optax takes one."""

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
    def test_a_step_keeps_shapes_and_dtypes(self, name: str, dtype: Any) -> None:
        optimizer = make(name, **EVERYTHING)
        params, grads = (jax.tree.map(lambda leaf: leaf.astype(dtype), tree) for tree in (PARAMS, GRADS))
        state = optimizer.init(params)
        updates, new = jax.eval_shape(optimizer.update, grads, state, params)
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), updates) == jax.tree.map(
            lambda leaf: (leaf.shape, leaf.dtype), params
        )
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), new) == jax.tree.map(
            lambda leaf: (leaf.shape, leaf.dtype), state
        )

    def test_in_a_chain(self) -> None:
        assert_equal(after(optax.chain(optax.scale(2.0), make("SGD", 0.1))), after(make("SGD", 0.2)))

    def test_for_some_of_the_weights(self) -> None:
        labels = {"d": {"bias": "slow", "kernel": "fast"}}
        both = optax.multi_transform({"slow": make("SGD", 0.01), "fast": make("AdamW", 0.1)}, labels)
        found = after(both)["d"]
        assert_equal(found["bias"], after(make("SGD", 0.01))["d"]["bias"])
        assert_equal(found["kernel"], after(make("AdamW", 0.1))["d"]["kernel"])

    def test_any_pytree_of_weights(self) -> None:
        transformation = make("Muon", weight_decay=0.1, use_ema=True)
        params = [jnp.ones(3), (jnp.ones((2, 2)),)]
        updates, _ = transformation.update(params, transformation.init(params), params)
        assert jax.tree.structure(updates) == jax.tree.structure(params)

    def test_some_do_without_the_weights(self) -> None:
        optimizer = make("Adam")
        updates, _ = optimizer.update(GRADS, optimizer.init(PARAMS))
        assert_equal(updates, optimizer.update(GRADS, optimizer.init(PARAMS), PARAMS)[0])

    @pytest.mark.parametrize(
        "optimizer",
        [
            make("SGD", weight_decay=0.1),
            make("SGD", use_ema=True),
            make("Lamb"),
            make("Ftrl"),
            make("Adafactor"),
            make("Muon"),
        ],
        ids=repr,
    )
    def test_the_others_ask_for_them(self, optimizer: Any) -> None:
        with pytest.raises(errors.ModelError, match="needs the weights") as caught:
            optimizer.update(GRADS, optimizer.init(PARAMS))
        assert caught.value.fix

    def test_a_rate_of_its_own_kind(self) -> None:
        class Sign(optimizers.Optimizer):
            def transformation(self) -> Any:
                return optax.chain(optax.scale_by_sign(), optimizers.scale_by_rate())

        found = after(Sign(0.5, clipnorm=0.1), steps=1)
        assert_equal(found, jax.tree.map(lambda p, g: p - 0.5 * jnp.sign(g), PARAMS, GRADS))

    def test_one_without_a_rule_is_refused(self) -> None:
        with pytest.raises(errors.ModelError, match="defines no `transformation`") as caught:
            optimizers.Optimizer(0.1).init(PARAMS)
        assert "scale_by_rate" in caught.value.fix

    def test_scale_by_rate_alone_is_refused(self) -> None:
        with pytest.raises(errors.ModelError, match="needs the learning rate"):
            after(optimizers.scale_by_rate())


class TestOrder:
    """Of clipping, decay, the step and averages."""

    def test_decay_is_not_clipped_and_not_scaled(self) -> None:
        found = after(make("SGD", 0.5, weight_decay=0.1, clipvalue=1e-6), steps=1)
        assert_equal(found, jax.tree.map(lambda p: p * 0.95, PARAMS), rtol=1e-5)

    def test_gradients_are_unscaled_before_they_are_clipped(self) -> None:
        scaled = make("SGD", 1.0, clipvalue=0.1, loss_scale_factor=10.0)
        assert_equal(after(scaled, steps=1), jax.tree.map(lambda p, g: p - jnp.clip(g / 10, -0.1, 0.1), PARAMS, GRADS))
        assert scaled.scale_loss(2.0) == 20.0
        assert make("SGD").scale_loss(2.0) == 2.0

    def test_the_mean_is_clipped_and_not_what_it_is_of(self) -> None:
        found = after(make("SGD", 1.0, clipvalue=0.15, gradient_accumulation_steps=2), steps=2)
        assert_equal(found, jax.tree.map(lambda p, g: p - jnp.clip(g, -0.15, 0.15), PARAMS, GRADS))

    def test_nothing_moves_until_enough_gradients_have_come(self) -> None:
        accumulating = make("Adam", gradient_accumulation_steps=3, weight_decay=0.1)
        assert_equal(after(accumulating, steps=2), PARAMS)
        assert_equal(after(accumulating, steps=5), after(make("Adam", weight_decay=0.1), steps=1))

    @pytest.mark.parametrize("clip", [{"clipnorm": 0.1}, {"global_clipnorm": 0.1}])
    def test_gradients_of_zero_stay_zero(self, clip: Any) -> None:
        optimizer = make("SGD", **clip)
        zeros = jax.tree.map(jnp.zeros_like, GRADS)
        assert_equal(optimizer.update(zeros, optimizer.init(PARAMS), PARAMS)[0], zeros)

    def test_without_steps_or_an_average_it_ends_with_the_weights(self) -> None:
        optimizer = make("SGD", use_ema=True)
        assert_equal(optimizer.finalize(optimizer.init(PARAMS), PARAMS), PARAMS)
        assert make("SGD").finalize(make("SGD").init(PARAMS), PARAMS) is PARAMS


class TestExclusion:
    """Of weights from weight decay."""

    @pytest.mark.parametrize("arguments", [{"var_names": ["bia."]}, {"var_list": ["d/bias"]}, {"var_names": ["^d/b"]}])
    def test_by_path(self, arguments: Any) -> None:
        decayed = make("SGD", 0.5, weight_decay=0.1)
        decayed.exclude_from_weight_decay(**arguments)
        zeros = jax.tree.map(jnp.zeros_like, GRADS)
        updates = decayed.update(zeros, decayed.init(PARAMS), PARAMS)[0]["d"]
        np.testing.assert_array_equal(updates["bias"], 0)
        np.testing.assert_allclose(updates["kernel"], -0.05 * PARAMS["d"]["kernel"], rtol=1e-5)

    def test_by_variable(self) -> None:
        class Variable:
            path = "d/kernel"

        optimizer = make("SGD", 0.5, weight_decay=0.1)
        optimizer.exclude_from_weight_decay([Variable()])
        assert optimizer.decay_of("d/kernel", None) is None
        assert optimizer.decay_of("d/kernel2", None) == 0.1

    def test_both_kinds_of_muon(self) -> None:
        optimizer: Any = make("Muon", weight_decay=None, adam_weight_decay=0.2)
        optimizer.exclude_from_weight_decay(var_names=["gamma"])
        matrix, vector = jnp.ones((2, 2)), jnp.ones(2)
        found = [optimizer.decay_of(*args) for args in (("kernel", matrix), ("bias", vector), ("gamma", vector))]
        assert found == [None, 0.2, None]

    def test_too_late_is_refused(self) -> None:
        optimizer = make("SGD", weight_decay=0.1)
        optimizer.init(PARAMS)
        with pytest.raises(errors.ModelError, match="comes too late") as caught:
            optimizer.exclude_from_weight_decay(var_names=["bias"])
        assert "compile" in caught.value.fix

    @pytest.mark.parametrize(
        "arguments", [{"var_names": "bias"}, {"var_names": [3]}, {"var_names": ["("]}, {"var_list": [jnp.ones(2)]}]
    )
    def test_what_is_no_variable_or_name_is_refused(self, arguments: Any) -> None:
        with pytest.raises(errors.ModelError, match=f"`{next(iter(arguments))}`") as caught:
            make("SGD", weight_decay=0.1).exclude_from_weight_decay(**arguments)
        assert caught.value.given and caught.value.fix


class TestArguments:
    """What is refused."""

    @pytest.mark.parametrize(
        ("name", "arguments", "message"),
        [
            ("SGD", {"clipnorm": 1.0, "clipvalue": 1.0}, "`clipnorm` and `clipvalue` cannot be used together"),
            ("Adam", {"global_clipnorm": 1.0, "clipvalue": 1.0}, "`clipvalue` and `global_clipnorm` cannot be used"),
            ("Adam", {"clipnorm": 0.0}, "`clipnorm` must be a finite number"),
            ("Adam", {"use_ema": True, "ema_momentum": 1.5}, "`ema_momentum` must be a finite number"),
            ("Adam", {"ema_overwrite_frequency": 0}, "`ema_overwrite_frequency` must be an integer"),
            ("Adam", {"gradient_accumulation_steps": 1}, "`gradient_accumulation_steps` must be an integer"),
            ("Adam", {"loss_scale_factor": -1.0}, "`loss_scale_factor` must be a finite number"),
            ("Adam", {"weight_decay": "0.1"}, "`weight_decay` must be a finite number"),
            ("Adam", {"learning_rate": "fast"}, "`learning_rate` must be a finite number"),
            ("Adam", {"learning_rate": lambda a, b: 0.1}, "`learning_rate` cannot be called with a step"),
            ("SGD", {"learning_rate": -1}, "`learning_rate` is negative"),
            ("SGD", {"decay": 0.5}, r"(?s)no argument 'decay'.*InverseTimeDecay\(rate,"),
            ("Adam", {"learning_rate": optimizers.schedules.CosineDecay}, "`learning_rate` cannot be called with"),
            ("Adam", {"beta_1": 1.0}, "`beta_1` must be a finite number"),
            ("Adam", {"beta_2": -0.1}, "`beta_2` must be a finite number"),
            ("Adam", {"epsilon": -1e-7}, "`epsilon` must be a finite number"),
            ("AdamW", {"weight_decay": None}, "`weight_decay` must be a number"),
            ("SGD", {"momentum": 1.1}, "`momentum` must be a finite number"),
            ("RMSprop", {"rho": 2}, "`rho` must be a finite number"),
            ("Lion", {"beta_1": 0}, "`beta_1` must be a finite number"),
            ("Ftrl", {"learning_rate_power": 0.5}, "`learning_rate_power` must be a finite number"),
            ("Ftrl", {"l1_regularization_strength": -0.5}, "`l1_regularization_strength` must be a finite number"),
            ("Ftrl", {"initial_accumulator_value": -0.1}, "`initial_accumulator_value` must be a finite number"),
            ("Adafactor", {"clip_threshold": 0}, "`clip_threshold` must be a finite number"),
            ("Muon", {"exclude_layers": "head"}, "`exclude_layers` must be a list of regular expressions"),
            ("Muon", {"ns_steps": 0}, "`ns_steps` must be an integer"),
            ("Adam", {"lr": 0.1}, "`Adam` has no argument 'lr'(.|\n)*; or learning_rate="),
            ("Adam", {"beta1": 0.1}, "`Adam` has no argument 'beta1' .did you mean 'beta_1'"),
            ("SGD", {"zzz": 0.1}, "`SGD` has no argument 'zzz'\n"),
        ],
    )
    def test_nonsense_is_refused_by_name(self, name: str, arguments: Any, message: str) -> None:
        with pytest.raises(errors.ModelError, match=message) as caught:
            make(name, **arguments)
        assert caught.value.given and caught.value.fix

    def test_a_mesh_is_that_of_the_variables(self) -> None:
        mesh, other = kd.DeviceMesh({"batch": 8}), kd.DeviceMesh({"data": 8})
        variable = kd.Variable(np.ones(8), layout=kd.TensorLayout(["batch"], mesh))
        optimizer = make("Adam", 0.01, mesh=other)
        assert "mesh" not in optimizer.get_config()
        with pytest.raises(errors.ModelError, match="'adam' has another mesh than the variables"):
            optimizer.build([variable])
        for own in (mesh, mesh.backend_mesh, None):
            make("Adam", 0.01, mesh=own).build([variable])
        with pytest.raises(errors.ModelError, match="`mesh` must be a DeviceMesh"):
            make("Adam", 0.01, mesh="batch")

    def test_rates_of_other_kinds_of_number(self) -> None:
        for rate in (1, np.float32(0.5), np.float64(0.5), jnp.float32(0.5)):
            assert float(make("SGD", rate).init(PARAMS).learning_rate) == float(rate)

    @pytest.mark.parametrize("name", ["momentum", "clipnorm"])
    def test_it_is_fixed_once_made(self, name: str) -> None:
        optimizer = make("SGD", 0.5)
        with pytest.raises(errors.ModelError, match=f"`{name}` of the optimizer 'sgd' cannot be changed") as caught:
            setattr(optimizer, name, 0.1)
        assert name in caught.value.fix

    def test_its_rate_may_be_set_while_its_state_is_in_no_other_hands(self) -> None:
        optimizer = make("SGD", 0.5)
        optimizer.learning_rate = 0.25
        assert optimizer.learning_rate == optimizer.get_config()["learning_rate"] == 0.25
        assert float(optimizer.init(PARAMS).learning_rate) == 0.25
        with pytest.raises(errors.ModelError, match="`learning_rate` of the optimizer 'sgd' cannot be changed"):
            optimizer.learning_rate = 0.1


class TestConfig:
    """Writing down and reading."""

    @pytest.mark.parametrize("name", NAMES)
    def test_there_and_back(self, name: str) -> None:
        optimizer = make(name, 0.25, **EVERYTHING)
        config = json.loads(json.dumps(optimizers.serialize(optimizer)))
        for read in (optimizers.deserialize, optimizers.get, saving.deserialize_keras_object):
            found = read(config)
            assert type(found) is type(optimizer)
            assert found.get_config() == optimizer.get_config()
            assert {**vars(found), "_arguments": None} == {**vars(optimizer), "_arguments": None}

    def test_with_a_schedule(self) -> None:
        optimizer = make("SGD", optimizers.schedules.CosineDecay(0.5, 10, warmup_target=1.0, warmup_steps=3))
        found = optimizers.deserialize(json.loads(json.dumps(optimizers.serialize(optimizer))))
        assert_equal(after(found), after(optimizer))

    @pytest.mark.parametrize("class_name", ["adamw", "AdamW", "ADAMW"])
    def test_names_in_any_case(self, class_name: str) -> None:
        assert type(optimizers.get({"class_name": class_name, "config": {"epsilon": 0.1}})) is optimizers.AdamW

    def test_one_of_ones_own(self) -> None:
        class Mine(optimizers.SGD):
            pass

        config = optimizers.serialize(Mine(0.5))
        with pytest.raises(errors.ConfigError, match="Mine"):
            optimizers.deserialize(config)
        assert type(optimizers.deserialize(config, {"Mine": Mine})) is Mine

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
    def test_copies(self, duplicate: Any) -> None:
        optimizer = make("Adam", 0.5, weight_decay=0.1)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        assert_equal(after(duplicate(optimizer)), after(optimizer))
        assert duplicate(optimizer).get_config() == optimizer.get_config()


@pytest.mark.parametrize("identifier", [optax.adam(0.1), optimizers.Adam])
def test_a_rate_goes_with_a_name(identifier: Any) -> None:
    with pytest.raises(errors.ModelError, match="`learning_rate` goes with the name"):
        optimizers.get(identifier, 0.1)


def test_a_rate_may_be_a_callable_without_arguments() -> None:
    assert_equal(after(make("SGD", lambda: 0.25)), after(make("SGD", 0.25)))
