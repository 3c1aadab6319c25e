"""`enable_lora` and `merge_lora` of models of `flax.nnx` modules, whose kernels have the updates added."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist.errors import ModelError
from tests.soak import few

TOLERANCE = 1e-5
RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 8)).astype("float32")
Y = RNG.normal(size=(16, 3)).astype("float32")


class Network(nnx.Module):
    """A stack of layers in a loop, projections with heads, a bare matrix, and a head."""

    def __init__(self, rngs):
        make = nnx.vmap(lambda rngs: nnx.Linear(8, 8, rngs=rngs))
        self.blocks = make(rngs.split(2))
        self.query = nnx.LinearGeneral(8, (4, 2), rngs=rngs)
        self.output = nnx.Einsum("bhd,hdk->bk", (4, 2, 8), (8,), rngs=rngs)
        self.matrix = nnx.Param(jax.random.normal(rngs.params(), (8, 8)) / 3)
        self.heads = nnx.List([nnx.Linear(8, 3, rngs=rngs)])

    def __call__(self, x):
        run = nnx.scan(lambda x, block: jnp.tanh(block(x)), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        x = self.output(self.query(run(x, self.blocks))) @ self.matrix[...]
        return self.heads[0](x)


CHOSEN = ["blocks|query", "output/kernel", "matrix", "heads/0"]


def made(distribution=None, **options):
    with (distribution or kd.DataParallel(devices=kd.list_devices()[:1])).scope():
        return kd.Model.from_nnx(Network, seed=0, **options)


def sharded():
    rules = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    rules["query/kernel"], rules["output/kernel"] = (None, "model", None), ("model", None, None)
    rules["blocks/kernel"] = (None, None, "model")
    return kd.ModelParallel(rules, "data")


def fully_sharded():
    return kd.FullySharded(kd.DeviceMesh("data=8"), min_size_bytes=0)


def adapted(distribution=None, **options):
    model = made(distribution, **options)
    model.enable_lora(2, CHOSEN, alpha=4)
    return model


def by_hand(values, x):
    def kernel(path, inputs, outputs):
        first, second = (
            values[f"lora/{path}/{one}"].reshape(shape)
            for one, shape in zip("ab", ((inputs, 2), (2, outputs)), strict=True)
        )
        return values[path].reshape(inputs, outputs) + 2 * first @ second

    for block in range(2):
        first, second = values["lora/blocks/kernel/a"][block], values["lora/blocks/kernel/b"][block]
        x = jnp.tanh(x @ (values["blocks/kernel"][block] + 2 * first @ second) + values["blocks/bias"][block])
    x = x @ kernel("query/kernel", 8, 8) + values["query/bias"].reshape(-1)
    x = x @ kernel("output/kernel", 8, 8) + values["output/bias"]
    return x @ kernel("matrix", 8, 8) @ kernel("heads/0/kernel", 8, 3) + values["heads/0/bias"]


@pytest.mark.slow
@pytest.mark.parametrize("distribution", few([sharded, fully_sharded], sharded))
def test_a_module_is_trained_as_hand_written_jax_trains_it(distribution):
    model = adapted(distribution())
    values = {variable.path: jnp.asarray(variable.numpy()) for variable in model.variables}
    factors = {path: value for path, value in values.items() if path.startswith("lora/")}
    assert [weight.path for weight in model.trainable_weights] == list(factors)
    model.compile(kd.optimizers.SGD(0.1), "mse")
    slots = [row.path for row in model._built.cell.state_plan.rows if "/mu/" in row.path]
    assert not [path for path in slots if "lora/" not in path]
    found = model.fit(X, Y, batch_size=16, epochs=3, shuffle=False, verbose=0).history["loss"]
    loss = jax.value_and_grad(lambda factors: jnp.mean((by_hand(values | factors, X) - Y) ** 2))
    for value in found:
        expected, grads = loss(factors)
        np.testing.assert_allclose(value, expected, rtol=TOLERANCE)
        factors = jax.tree.map(lambda factor, grad: factor - 0.1 * grad, factors, grads)
    for variable in model.variables:
        wanted = factors.get(variable.path, values[variable.path])
        np.testing.assert_allclose(variable.numpy(), wanted, atol=TOLERANCE, err_msg=variable.path)
    expected = by_hand(values | factors, X)
    np.testing.assert_allclose(model.predict(X, verbose=0), expected, atol=TOLERANCE)
    np.testing.assert_allclose(model(X), expected, atol=TOLERANCE)
    model.merge_lora()
    np.testing.assert_allclose(model.predict(X, verbose=0), expected, atol=TOLERANCE)
    np.testing.assert_allclose(model.module(jnp.asarray(X)), expected, atol=TOLERANCE)
    assert {weight.path for weight in model.trainable_weights} == values.keys() - factors.keys()
    model.compile("adam", "mse")  # without a warning that the optimizer starts again
    assert np.isfinite(model.fit(X, Y, verbose=0).history["loss"][0])


def test_factors_are_sharded_as_the_kernels():
    rows = {row.path: row.axes for row in adapted(sharded()).layout_plan.rows}
    assert rows["lora/query/kernel/b"] == (None, "model", None)
    assert rows["lora/output/kernel/a"] == ("model", None, None)
    assert rows["lora/blocks/kernel/a"] == (None, None, None)
    assert rows["lora/blocks/kernel/b"] == (None, None, "model")


def test_variables_that_were_trained_before_are_trained_again():
    model = made(trainable="heads/.*")
    bias = next(variable for variable in model.variables if variable.path == "heads/0/bias")
    assert bias.trainable
    model.enable_lora(2, "query")
    assert not bias.trainable
    assert {weight.path for weight in model.trainable_weights} == {"lora/query/kernel/a", "lora/query/kernel/b"}
    model.merge_lora()
    assert bias.trainable
    assert {weight.path for weight in model.trainable_weights} == {"heads/0/bias", "heads/0/kernel"}


@pytest.mark.slow
def test_mixed_precision_adds_updates_in_float32():
    model = adapted(dtype="mixed_bfloat16")
    model.compile("adam", "mse")
    losses = model.fit(X, Y, batch_size=16, epochs=2, verbose=0).history["loss"]
    plain = adapted()
    plain.compile("adam", "mse")
    np.testing.assert_allclose(losses, plain.fit(X, Y, batch_size=16, epochs=2, verbose=0).history["loss"], rtol=0.05)
    assert {str(variable.dtype) for variable in model.variables} == {"float32"}


def test_it_is_saved_and_loaded(tmp_path):
    model = adapted()
    model.compile("adam", "mse")
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model")
    again = kd.models.load_model(tmp_path / "model", factory=Network)
    np.testing.assert_allclose(again.predict(X, verbose=0), model.predict(X, verbose=0), atol=TOLERANCE)
    model.save_weights(tmp_path / "merged.safetensors")
    plain = made()
    plain.load_weights(tmp_path / "merged.safetensors")
    np.testing.assert_allclose(plain.predict(X, verbose=0), model.predict(X, verbose=0), atol=TOLERANCE)


class WithName(nnx.Module):
    def __init__(self, rngs):
        self.lora = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.lora(x)


def test_errors_name_the_way_out():
    model = made()
    with pytest.raises(ModelError, match="`dropout` is not available"):
        model.enable_lora(2, "query", dropout=0.1)
    with pytest.raises(ModelError) as caught:
        model.enable_lora(2, ["qurey", "heads/0/bias", "query/.*"])
    assert "'qurey' matches none; the nearest path is 'query'" in str(caught.value)
    assert "'heads/0/bias': 'bias' of Linear has shape (3,)" in str(caught.value)
    assert "'query/bias': 'bias' of LinearGeneral has shape (4, 2)" in str(caught.value)
    assert not hasattr(model.module, "lora")
    named = kd.Model.from_nnx(WithName)
    with pytest.raises(ModelError, match="the name of the factors is taken"):
        named.enable_lora(2, "lora")
    with pytest.raises(ModelError, match="no adapters"):
        model.merge_lora()
