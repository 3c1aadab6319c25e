"""Mixed precision of `flax.nnx` modules: half precision arithmetic on float32 parameters, as in a loop by hand."""

import functools
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import errors, layers, mixed_precision
from keras_dist.layers.base import module_precision
from keras_dist.planner.tracing import trace_step

BF16, F32 = np.dtype(jnp.bfloat16), np.dtype("float32")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 8)).astype("float32")
Y = RNG.integers(0, 4, 32)
LOSS = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
KEEP = r"norm/.*|router/.*"


@pytest.fixture(autouse=True)
def first_warnings() -> Iterator[None]:
    module_precision._warn_once.cache_clear()
    yield
    mixed_precision.set_dtype_policy("float32")


class Net(nnx.Module):
    """A norm, a router and two layers, which cast nothing."""

    def __init__(self, rngs: nnx.Rngs, **options: Any) -> None:
        self.d1 = nnx.Linear(8, 16, rngs=rngs)
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.router = nnx.Linear(16, 4, rngs=rngs, **options)
        self.d2 = nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        h = self.norm(self.d1(x))
        return self.d2(self.cast(jax.nn.gelu(h))) * jax.nn.softmax(self.router(h).astype(F32))

    def cast(self, x: Any) -> Any:
        return x


class ByHand(Net):
    """The same with the casts that keeping the norm in float32 takes."""

    def cast(self, x: Any) -> Any:
        return x.astype(BF16)


class Normalised(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.d1 = nnx.Linear(8, 4, rngs=rngs)
        self.bn = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.bn(self.d1(x))


def on(mesh: str | None) -> Any:
    return kd.DataParallel(devices=["cpu:0"]) if mesh is None else kd.DataParallel(kd.DeviceMesh(mesh))


def model_of(factory: Any = Net, policy: Any = "mixed_bfloat16", distribution: Any = None, **options: Any) -> Any:
    with (distribution or on(None)).scope():
        return kd.Model.from_nnx(factory, seed=3, dtype=policy, **options)


def compiled(*args: Any, optimizer: Any = None, loss: Any = LOSS, **kwargs: Any) -> Any:
    model = model_of(*args, **kwargs)
    model.compile(optax.adam(0.01) if optimizer is None else optimizer, loss)
    return model


def products(lowered: Any) -> list[str]:
    """The element types of the results of matrix products."""
    lines = [line for line in lowered.as_text().splitlines() if "stablehlo.dot_general" in line]
    return [line.rpartition("x")[2].rstrip(">") for line in lines]


def train_by_hand(module: nnx.Module, keep: Any, compute: Any, mesh: str | None) -> tuple[list[float], dict[str, Any]]:
    """Train on float32 masters that are cast in the step, for 6 steps."""
    graphdef, params, rest = nnx.split(module, nnx.Param, ...)
    names = ["/".join(map(str, path)) for path, _ in nnx.to_flat_state(params)]
    optimizer = optax.adam(0.01)
    device_mesh = jax.sharding.Mesh(jax.devices()[: 1 if mesh is None else 8], "data")
    rows = jax.sharding.NamedSharding(device_mesh, jax.sharding.PartitionSpec("data"))
    whole = jax.sharding.NamedSharding(device_mesh, jax.sharding.PartitionSpec())

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        leaves, tree = jax.tree.flatten(params)
        narrow = [leaf if name in keep else leaf.astype(compute) for name, leaf in zip(names, leaves, strict=True)]
        logits = nnx.merge(graphdef, tree.unflatten(narrow), rest)(x.astype(compute))
        return optax.softmax_cross_entropy_with_integer_labels(logits.astype(F32), y).mean()

    @functools.partial(jax.jit, in_shardings=(whole, whole, rows, rows))
    def step(params: Any, slots: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        updates, slots = optimizer.update(grads, slots, params)
        return optax.apply_updates(params, updates), slots, loss

    slots, losses = optimizer.init(params), []
    for _ in range(3):
        for start in (0, 16):
            params, slots, loss = step(params, slots, X[start : start + 16], Y[start : start + 16])
            losses.append(float(loss))
    return losses, dict(zip(names, map(np.asarray, jax.tree.leaves(params)), strict=True))


class TestSteps:
    @pytest.mark.slow
    @pytest.mark.parametrize(("mesh", "keep"), [(None, None), ("batch=8", KEEP)])
    def test_the_numbers_are_those_of_a_loop_that_casts_by_hand(self, mesh: str | None, keep: str | None) -> None:
        model = compiled(Net, kd.DTypePolicy("mixed_bfloat16", keep=keep), on(mesh))
        kept = {"norm/bias", "norm/scale", "router/bias", "router/kernel"} if keep else set()
        module = (ByHand if keep else Net)(nnx.Rngs(0))
        nnx.update(module, nnx.state(model.module))
        expected, after = train_by_hand(module, kept, BF16, mesh)
        losses = [model.train_on_batch(X[start : start + 16], Y[start : start + 16]) for start in (0, 16) * 3]
        np.testing.assert_allclose(losses, expected, rtol=2e-6)
        for variable in model.variables:
            np.testing.assert_allclose(variable.numpy(), after[variable.path], atol=2e-5, err_msg=variable.path)
        assert np.any(after["d1/kernel"] != after["d1/kernel"].astype(BF16))

    @pytest.mark.first_cases(1)
    @pytest.mark.parametrize(("policy", "name"), [("mixed_bfloat16", "bf16"), ("mixed_float16", "f16")])
    def test_matrices_are_multiplied_in_half_precision_on_float32_weights(self, policy: str, name: str) -> None:
        model = compiled(policy=policy, optimizer="adam")
        found = products(model.lower_train_step(X[:16], Y[:16]))
        assert len(found) == 8 and set(found) == {name}
        assert {variable.dtype for variable in model.variables} == {F32}
        model.fit(X, Y, verbose=0)
        assert {slot.dtype.name for slot in model.optimizer.variables} <= {"float32", "int32"}
        assert {leaf.dtype for leaf in jax.tree.leaves(model.state.trainable)} == {F32}
        outputs = model.predict(X, verbose=0)
        assert outputs.dtype == F32 == model(X).dtype
        np.testing.assert_array_equal(outputs, model.predict_on_batch(X))
        assert {variable.dtype for variable in jax.tree.leaves(nnx.state(model.module))} == {F32}

    def test_what_is_kept_is_multiplied_in_float32(self) -> None:
        model = compiled(policy=kd.DTypePolicy("mixed_bfloat16", keep=KEEP))
        found = products(model.lower_train_step(X[:16], Y[:16]))
        assert sorted(found) == ["bf16"] * 5 + ["f32"] * 3

    def test_the_current_policy_counts_and_the_model_keeps_it(self) -> None:
        mixed_precision.set_dtype_policy("mixed_bfloat16")
        model = compiled(policy=None)
        mixed_precision.set_dtype_policy("float32")
        model.compile("sgd", LOSS)  # anew
        assert model.dtype_policy.name == "mixed_bfloat16"
        assert set(products(model.lower_train_step(X[:16], Y[:16]))) == {"bf16"}
        assert set(products(compiled(policy=None).lower_train_step(X[:16], Y[:16]))) == {"f32"}

    def test_a_call_of_another_method_and_the_planner_see_it(self) -> None:
        seen = []

        def head(module: Any, x: Any, training: bool, rngs: Any) -> Any:
            seen.append((x.dtype, module.d1.kernel[...].dtype))
            return module.d1(x)

        model = model_of()
        assert model.predict(X, verbose=0, call=head).dtype == np.float32
        assert seen == [(BF16, BF16)]
        mixed_precision.set_dtype_policy("mixed_bfloat16")
        for given in (Net, compiled()):
            program = trace_step(given, (X, Y), on(None), "sgd", LOSS)
            assert set(products(program.lowered)) == {"bf16"}

    def test_weights_are_gathered_in_half_precision(self) -> None:
        model = compiled(distribution=kd.FullySharded(kd.DeviceMesh("data=8")))
        text = model.lower_train_step(X[:16], Y[:16]).as_text()
        gathered = [line for line in text.splitlines() if "sharding_constraint" in line and "8x16x" in line]
        forward = [line for line in gathered if "8x16xbf16" in line]
        assert forward and forward[0] == gathered[0]

    def test_statistics_are_float32(self) -> None:
        with pytest.warns(UserWarning, match="'bn' .BatchNorm returns float32"):
            model = compiled(Normalised)
            model.fit(X, Y, verbose=0)
        mean = next(variable.numpy() for variable in model.variables if variable.path == "bn/mean")
        assert mean.dtype == np.float32 and np.any(mean != mean.astype(BF16))


class TestPolicy:
    def test_it_is_a_value_and_a_config(self) -> None:
        policy = kd.DTypePolicy("mixed_bfloat16", keep=KEEP)
        assert policy != kd.DTypePolicy("mixed_bfloat16") and KEEP in repr(policy)
        for identifier in (policy, policy.get_config(), policy.identifier, kd.dtype_policies.serialize(policy)):
            assert mixed_precision.get(identifier) == policy
        assert kd.DTypePolicy.from_config(policy.get_config()) == policy
        assert kd.DTypePolicy("mixed_bfloat16").get_config() == {"name": "mixed_bfloat16"}

    def test_what_cannot_be_kept_is_refused(self) -> None:
        with pytest.raises(errors.ModelError, match="not a regular expression"):
            kd.DTypePolicy("mixed_bfloat16", keep="(")
        with pytest.raises(errors.ModelError, match="is for mixed policies"):
            kd.DTypePolicy("float32", keep="norm/.*")
        with pytest.raises(TypeError, match="keep=3"):
            kd.DTypePolicy("mixed_bfloat16", keep=3)  # type: ignore[arg-type]
        with pytest.raises(errors.ModelError, match="layer 'd' is not one") as caught:
            layers.Dense(2, name="d", dtype=kd.DTypePolicy("mixed_bfloat16", keep="norm/.*"))
        assert 'dtype="float32"' in caught.value.fix

    def test_a_saved_model_has_it(self, tmp_path: pathlib.Path) -> None:
        policy = kd.DTypePolicy("mixed_bfloat16", keep=KEEP)
        model = compiled(policy=policy, optimizer="adam")
        model.save(tmp_path / "model")
        loaded = kd.models.load_model(tmp_path / "model", factory=Net)
        assert loaded.dtype_policy == policy and mixed_precision.dtype_policy().name == "float32"
        assert sorted(products(loaded.lower_train_step(X[:16], Y[:16]))) == ["bf16"] * 5 + ["f32"] * 3
        np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))


@kd.saving.register_keras_serializable("test_module_precision")
class Block(layers.NNXLayer):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(Net(nnx.Rngs(0)), **kwargs)


class TestAmongLayers:
    def test_a_module_computes_under_the_policy_of_its_layer(self, tmp_path: pathlib.Path) -> None:
        policy = kd.DTypePolicy("mixed_bfloat16", keep=KEEP)
        inputs = kd.Input((8,))
        plain = kd.Model(inputs, Block(dtype="mixed_bfloat16")(inputs))
        model = kd.Model(inputs, Block(dtype=policy, name="block")(inputs))
        for one, expected in ((plain, ["bf16"] * 8), (model, ["bf16"] * 5 + ["f32"] * 3)):
            one.compile("adam", LOSS)
            assert sorted(products(one.lower_train_step(X[:16], Y[:16]))) == expected
            one.fit(X, Y, verbose=0)
            assert {weight.dtype.name for weight in one.weights} == {"float32"}
        assert model.get_layer("block").get_config()["dtype"] == policy.get_config()
        for place in ("model", "model.keras"):
            model.save(tmp_path / place)
            loaded = kd.models.load_model(tmp_path / place)
            assert loaded.get_layer("block").dtype_policy == policy
            np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))
