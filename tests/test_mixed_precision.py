"""Half precision arithmetic on float32 weights."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import errors, layers, mixed_precision, optimizers

X = np.random.default_rng(0).normal(size=(40, 8)).astype("float32")
Y = np.tanh(X[:, :3])


@pytest.fixture(autouse=True)
def float32_afterwards() -> Iterator[None]:
    yield
    mixed_precision.set_dtype_policy("float32")


class Spy(layers.Layer):
    """Notes what its weights look like while it is called."""

    def __init__(self, inner: Any = None, cast: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inner, self.cast = inner, cast

    def build(self, input_shape: Any) -> None:
        self.w = self.add_weight((), "ones", name="w", autocast=self.cast)
        self.whole = self.add_weight((), "zeros", dtype="int32", trainable=False, name="whole")

    def call(self, inputs: Any) -> Any:
        seen[self.name] = (inputs.dtype, self.w[...].dtype, self.w.dtype, (self.w + 0).dtype, self.whole[...].dtype)
        return inputs if self.inner is None else self.inner(inputs)


seen: dict[str, Any] = {}


class TestPolicy:
    @pytest.mark.parametrize(
        ("name", "compute", "variable"),
        [
            ("mixed_bfloat16", "bfloat16", "float32"),
            ("mixed_float16", "float16", "float32"),
            ("bfloat16", "bfloat16", "bfloat16"),
            ("float32", "float32", "float32"),
        ],
    )
    def test_a_layer_takes_a_policy_or_its_name(self, name: str, compute: str, variable: str) -> None:
        policy = mixed_precision.Policy(name)
        assert policy == mixed_precision.get({"class_name": "DTypePolicy", "config": policy.get_config()})
        assert policy.from_config(policy.get_config()) == policy
        for given in (name, policy):
            layer = layers.Dense(2, dtype=given)
            assert (layer.dtype_policy, layer.compute_dtype, layer.input_dtype) == (policy, compute, compute)
            assert (layer.dtype, layer.variable_dtype) == (variable, variable)
            assert layers.Dense.from_config(layer.get_config()).dtype_policy == policy

    def test_the_global_one_is_for_layers_that_are_made_later_without_their_own(self) -> None:
        before = layers.Dense(2)
        mixed_precision.set_global_policy("mixed_bfloat16")
        assert mixed_precision.global_policy().name == "mixed_bfloat16" == mixed_precision.DTypePolicy().name
        assert [layer.compute_dtype for layer in (before, layers.Dense(2), layers.Dense(2, dtype="float32"))] == [
            "float32", "bfloat16", "float32",
        ]  # fmt: skip
        assert kd.Input((3,)).dtype == "float32"

    def test_it_is_fixed_once_the_layer_is_built(self) -> None:
        layer = layers.Dense(2)
        layer.dtype_policy = "mixed_bfloat16"
        assert layer(X).dtype == jnp.bfloat16
        with pytest.raises(errors.ModelError, match="it is built") as caught:
            layer.dtype_policy = "float32"
        assert "dtype=..." in str(caught.value)

    def test_what_is_none_is_refused(self) -> None:
        with pytest.raises(errors.ModelError, match="mixed_float64") as caught:
            layers.Dense(2, dtype="mixed_float64", name="d1")
        assert "mixed_bfloat16" in str(caught.value) and "'d1'" in "".join(caught.value.__notes__)
        with pytest.raises(TypeError, match="dtype=64"):
            mixed_precision.DTypePolicy(64)
        with pytest.raises(errors.ModelError, match="`policy` must be a `DTypePolicy`"):
            mixed_precision.set_dtype_policy(None)
        with pytest.raises(errors.ModelError, match="mixed_float64"):
            mixed_precision.set_dtype_policy("mixed_float64")
        assert mixed_precision.dtype_policy().name == "float32"


class TestCasting:
    """What a layer reads while it is called: Keras's `AutocastScope`."""

    def test_inputs_and_float_weights_are_cast_and_weights_keep_their_values(self) -> None:
        layer = Spy(name="spy", dtype="mixed_bfloat16")
        assert layer(X).dtype == jnp.bfloat16
        assert seen["spy"] == (*[jnp.bfloat16] * 4, jnp.int32)
        assert layer.w.dtype == layer.w[...].dtype == layer.weights[0].dtype == jnp.float32

    def test_a_layer_without_autocast_and_a_weight_without_it_are_as_they_are(self) -> None:
        Spy(name="layer", dtype="mixed_bfloat16", autocast=False)(X)
        Spy(name="weight", dtype="mixed_bfloat16", cast=False)(X)
        assert seen["layer"][:2] == (jnp.float32, jnp.float32)
        assert seen["weight"][:2] == (jnp.bfloat16, jnp.float32)

    def test_each_layer_inside_another_computes_in_its_own_dtype(self) -> None:
        Spy(
            Spy(Spy(name="in", dtype="mixed_float16"), name="mid", dtype="float32"), name="out", dtype="mixed_bfloat16"
        )(X)
        assert [seen[name][:2] for name in ("out", "mid", "in")] == [
            (dtype, dtype) for dtype in (jnp.bfloat16, jnp.float32, jnp.float16)
        ]

    def test_what_call_assigns_is_kept_in_the_dtype_of_the_weight(self) -> None:
        class Count(layers.Layer):
            def build(self, input_shape: Any) -> None:
                self.sum = self.add_weight((), "zeros", trainable=False, name="sum")
                self.last = self.add_weight((), "zeros", trainable=False, name="last")

            def call(self, inputs: Any) -> Any:
                self.sum.assign(jnp.float32(1.001))
                self.last[...] = inputs[0, 0]
                return inputs

        layer = Count(dtype="mixed_bfloat16")
        layer(X)
        assert float(layer.sum[...]) == np.float32(1.001)
        assert layer.last[...].dtype == jnp.float32
        assert float(layer.last[...]) == float(jnp.bfloat16(X[0, 0]))


def network(policy: str) -> kd.Sequential:
    kd.set_random_seed(0)
    return kd.Sequential(
        [
            kd.Input((8,)),
            layers.Dense(16, activation="relu", name="d1", dtype=policy),
            layers.BatchNormalization(dtype=policy),
            layers.Dense(3, name="d2", dtype=policy),
        ],
        dtype=policy,
    )


class TestTraining:
    def test_on_a_mesh_it_learns_on_float32_weights_and_slots(self) -> None:
        mesh = kd.DeviceMesh({"data": 4, "model": 2})
        rules = kd.LayoutMap(mesh)
        rules["d1/kernel"] = (None, "model")
        with kd.ModelParallel(layout_map=rules, batch_dim_name="data").scope():
            model = network("mixed_bfloat16")
            model.compile(optimizers.Adam(0.03), "mse", metrics=["mae"])
            before = model.evaluate(X, Y, batch_size=40, verbose=0, return_dict=True)
            model.fit(X, Y, epochs=16, batch_size=40, verbose=0)
        after = model.evaluate(X, Y, batch_size=40, verbose=0, return_dict=True)
        assert after["loss"] < 0.5 * before["loss"] and after["mae"] < before["mae"]
        assert {weight.dtype for weight in model.weights} == {np.dtype("float32")}
        assert {slot.dtype for slot in model.optimizer.variables} == {np.dtype("float32"), np.dtype("int32")}
        assert model.predict(X, batch_size=40, verbose=0).dtype == jnp.bfloat16
        assert any(np.any(weight.numpy() != weight.numpy().astype(jnp.bfloat16)) for weight in model.weights)

    def test_matrices_are_multiplied_in_half_precision_and_sums_over_devices_are_float32(self) -> None:
        with kd.DataParallel().scope():
            model = network("mixed_bfloat16")
        model.compile("sgd", "mse")
        lowered = model.lower_train_step(X[:16], Y[:16])
        products = [line for line in lowered.as_text().splitlines() if "stablehlo.dot_general" in line]
        assert len(products) >= 4 and all("f32" not in line.rpartition(":")[2] for line in products)
        text = lowered.compile().as_text()
        sums = [line.split(" all-reduce")[0] for line in text.splitlines() if " all-reduce(" in line]
        assert sums and all("f32[" in line and "bf16[" not in line for line in sums)


class TestLossScale:
    """The scale of a float16 model's loss."""

    def test_compile_puts_the_optimizer_into_one_under_mixed_float16_alone(self) -> None:
        for policy, scaled, expected in (
            ("mixed_float16", False, optimizers.SGD),
            ("mixed_bfloat16", True, optimizers.SGD),
            ("mixed_float16", True, optimizers.LossScaleOptimizer),
        ):
            model = kd.Sequential([kd.Input((2,)), layers.Dense(1, dtype=policy)], dtype=policy)
            inner = optimizers.SGD(0.1)
            model.compile(inner, "mse", auto_scale_loss=scaled)
            assert type(model.optimizer) is expected
            assert inner in (model.optimizer, getattr(model.optimizer, "inner_optimizer", None))
            inner.learning_rate = 0.5
            assert model.optimizer.learning_rate == 0.5
        assert model.get_compile_config()["auto_scale_loss"] is True

    def test_a_step_with_infinite_gradients_is_skipped_and_halves_the_scale(self) -> None:
        model = network("mixed_float16")
        model.compile(optimizers.LossScaleOptimizer(optimizers.SGD(0.1), 2.0**15, 2), "mse")
        before = model.trainable_weights[0].numpy()
        scale, finite, _, rate = model.optimizer.variables[:4]
        model.train_on_batch(X, Y * 60000)  # overflows on the way back
        assert (float(scale.numpy()), int(finite.numpy()), float(rate.numpy())) == (2.0**14, 0, np.float32(0.1))
        np.testing.assert_array_equal(model.trainable_weights[0].numpy(), before)
        model.optimizer.learning_rate = 0.05
        for expected in (2.0**14, 2.0**15):  # doubled by every second finite step
            model.train_on_batch(X, Y)
            assert float(scale.numpy()) == expected
        assert np.any(model.trainable_weights[0].numpy() != before)
        assert model.optimizer.get_config()["inner_optimizer"]["config"]["learning_rate"] == pytest.approx(0.05)

    def test_small_gradients_do_not_vanish(self) -> None:
        found = {}
        model = network("mixed_float16")
        for scaled in (True, False):
            model.compile(optimizers.SGD(1.0), lambda y, p: 1e-7 * jnp.mean(p * y, -1), auto_scale_loss=scaled)
            before = model.get_layer("d2").kernel.numpy()
            model.train_on_batch(X, Y)
            found[scaled] = float(np.max(np.abs(model.get_layer("d2").kernel.numpy() - before)))
        assert found[True] > 0 == found[False]

    def test_what_belongs_to_the_inner_optimizer_is_refused(self) -> None:
        with pytest.raises(errors.ModelError, match="clipnorm"):
            optimizers.LossScaleOptimizer(optimizers.SGD(), clipnorm=1.0)
        with pytest.raises(errors.ModelError, match="inner_optimizer"):
            optimizers.LossScaleOptimizer("sgd")
        with pytest.raises(errors.ModelError, match="needs its state"):
            optimizers.LossScaleOptimizer(optimizers.SGD()).scale_loss(1.0)

    def test_several_optimizers_share_a_scale_that_is_given(self) -> None:
        model = network("mixed_float16")
        with pytest.raises(errors.ModelError, match="several optimizers"):
            model.compile({"d1": "sgd", "d2": "adam"}, "mse")
        scaled: Any = {name: optimizers.SGD(0.1, loss_scale_factor=8.0) for name in ("d1", "d2")}
        model.compile(scaled, "mse")
        model.train_on_batch(X, Y)
        scaled["d1"] = optimizers.LossScaleOptimizer(optimizers.SGD())
        with pytest.raises(errors.ModelError, match="scales the loss"):
            model.compile(scaled, "mse", auto_scale_loss=False)
