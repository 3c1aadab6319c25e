"""`Model.enable_lora` and `merge_lora`: numbers of hand-written JAX, layouts, slots, errors, and resuming."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import LayoutError, ModelError

TOLERANCE = 1e-5
RANK, ALPHA = 2, 4.0
RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 3, 8)).astype("float32")
Y = RNG.normal(size=(16, 3, 5)).astype("float32")


def attention() -> kd.Model:
    """Projections as in attention, with the heads as a separate dim, a frozen norm, and a head."""
    inputs = kd.Input((3, 8), name="x")
    hidden = layers.EinsumDense("abc,cde->abde", (None, 4, 2), bias_axes="de", name="query")(inputs)
    hidden = layers.EinsumDense("abde,dec->abc", (None, 8), name="output")(hidden)
    hidden = layers.LayerNormalization(name="norm")(hidden)
    return kd.Model(inputs, layers.Dense(5, name="head")(hidden))


def sharded() -> kd.Distribution:
    rules = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    rules["query/kernel"], rules["output/kernel"] = (None, "model", None), ("model", None, None)
    return kd.ModelParallel(rules, "data")


def made(distribution: kd.Distribution | None = None, make=attention) -> kd.Model:
    kd.utils.set_random_seed(1)
    with (distribution or kd.DataParallel(devices=kd.list_devices()[:1])).scope():
        return make()


def adapted(distribution: kd.Distribution | None = None, **options) -> kd.Model:
    model = made(distribution)
    model.enable_lora(RANK, "query|output|head", alpha=ALPHA, **options)
    return model


def with_updates(model: kd.Model) -> kd.Model:
    """Give the factors B values, since zeros compute nothing."""
    for weight in model.trainable_weights:
        if weight.name.endswith("_b"):
            weight.assign(np.sin(np.arange(weight.size)).reshape(weight.shape))
    return model


def by_hand(values: dict[str, jax.Array], factors: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """The same network, as PEFT computes it: each matrix has a product of two matrices beside it."""

    def project(name: str, x: jax.Array) -> jax.Array:
        kernel = values[f"{name}/kernel"].reshape(8, -1)
        first, second = (factors[f"{name}/lora_kernel_{one}"] for one in "ab")
        return x @ kernel + ALPHA / RANK * (x @ first.reshape(8, RANK)) @ second.reshape(RANK, -1)

    hidden = project("query", x) + values["query/bias"].reshape(-1)
    hidden = project("output", hidden)
    mean, variance = hidden.mean(-1, keepdims=True), hidden.var(-1, keepdims=True)
    hidden = (hidden - mean) / jnp.sqrt(variance + 1e-3) * values["norm/gamma"] + values["norm/beta"]
    return project("head", hidden) + values["head/bias"]


def test_a_model_is_trained_as_hand_written_jax_trains_it():
    model = adapted(sharded())
    values = {weight.path: jnp.asarray(weight.numpy()) for weight in model.weights}
    names = [weight.path for weight in model.trainable_weights]
    factors = {name: values.pop(name) for name in names}
    frozen = {weight.path: weight.numpy() for weight in model.non_trainable_weights}
    model.compile(kd.optimizers.SGD(0.1), "mse")
    found = model.fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"]

    @jax.value_and_grad
    def loss(factors, x, y):
        return jnp.mean((by_hand(values, factors, x) - y) ** 2)

    for value in found:
        losses = []
        for begin in (0, 8):
            one, grads = loss(factors, X[begin : begin + 8], Y[begin : begin + 8])
            factors = jax.tree.map(lambda factor, grad: factor - 0.1 * grad, factors, grads)
            losses.append(one)
        np.testing.assert_allclose(value, np.mean(losses), rtol=TOLERANCE)
    for weight in model.trainable_weights:
        np.testing.assert_allclose(weight.numpy(), factors[weight.path], atol=TOLERANCE, err_msg=weight.path)
    assert frozen.keys() == {"query/kernel", "query/bias", "output/kernel", "norm/gamma", "norm/beta"} | {
        "head/kernel",
        "head/bias",
    }
    for weight in model.non_trainable_weights:
        np.testing.assert_array_equal(weight.numpy(), frozen[weight.path])


def test_the_factors_alone_are_trained_and_have_slots_and_follow_the_weights():
    model = made(sharded())
    before = {row.path: (row.role, row.axes) for row in model.layout_plan.rows}
    model.enable_lora(RANK, "query|output|head", alpha=ALPHA)
    model.compile("adam", "mse")
    rows = {row.path: row for row in model.layout_plan.rows}
    assert {path: (rows[path].role, rows[path].axes) for path in before} == before
    sizes = {"query": (8, 8), "output": (8, 8), "head": (8, 5)}
    wanted = sum((inputs + outputs) * RANK * 4 for inputs, outputs in sizes.values())
    assert sum(weight.size * 4 for weight in model.trainable_weights) == wanted
    trained = [rows[weight.path] for weight in model.trainable_weights]
    assert sum(row.nbytes for row in trained) == wanted
    assert rows["query/lora_kernel_a"].axes == (None, None)
    assert rows["query/lora_kernel_b"].axes == (None, "model", None)
    assert rows["output/lora_kernel_a"].axes == ("model", None, None)
    assert rows["output/lora_kernel_b"].axes == (None, None)
    slots = [row for row in model._built.cell.state_plan.rows if "/mu/" in row.path or "/nu/" in row.path]
    assert len(slots) == 2 * len(trained) == 12
    assert sum(row.nbytes for row in slots) == 2 * wanted
    assert sum(row.nbytes_per_device for row in slots) == 2 * sum(row.nbytes_per_device for row in trained)


def test_a_frozen_weight_is_gathered_as_a_parameter_under_fsdp():
    model = made(kd.FullySharded(kd.DeviceMesh("data=8"), min_size_bytes=0))
    model.enable_lora(RANK, "query")
    row = next(row for row in model.layout_plan.rows if row.path == "query/kernel")
    assert "data" in row.axes and row.compute_axes == (None, None, None)
    model.compile("sgd", "mse")
    assert np.isfinite(model.fit(X, Y, batch_size=16, verbose=0).history["loss"][0])


@pytest.mark.slow
def test_a_merged_model_is_the_adapted_one_and_trains_as_before():
    distribution = sharded()
    plain = made(distribution)
    model = with_updates(adapted(distribution))
    model.compile("adam", "mse")
    expected = model.predict(X, verbose=0)
    values = {weight.path: jnp.asarray(weight.numpy()) for weight in model.weights}
    np.testing.assert_allclose(expected, by_hand(values, values, X), atol=TOLERANCE)
    assert np.abs(expected - plain.predict(X, verbose=0)).max() > 0.1
    layouts = {row.path: row.axes for row in model.layout_plan.rows}
    model.merge_lora()
    np.testing.assert_allclose(model.predict(X, verbose=0), expected, atol=TOLERANCE)
    assert [weight.path for weight in model.trainable_weights] == [weight.path for weight in plain.trainable_weights]
    assert [weight.path for weight in model.weights] == [weight.path for weight in plain.weights]
    assert {row.path: row.axes for row in model.layout_plan.rows} == {
        path: layouts[path] for path in (weight.path for weight in model.weights)
    }
    assert model.get_config() == plain.get_config() | {"name": model.name}
    before = model.get_weights()
    model.fit(X, Y, batch_size=8, verbose=0)
    assert all(np.abs(weight.numpy() - value).max() > 0 for weight, value in zip(model.weights, before, strict=True))
    with pytest.warns(UserWarning, match="starts again"):
        model.enable_lora(3, "head")
    assert len(model.trainable_weights) == 2
    with pytest.raises(ModelError, match="has adapters already"):
        model.enable_lora(3, "query")


def test_merging_moves_nothing_to_the_host(monkeypatch):
    model = with_updates(adapted(sharded()))
    expected = model.predict(X, verbose=0)
    for name in ("numpy", "__array__"):
        monkeypatch.setattr(kd.Variable, name, lambda *_: pytest.fail("a weight was gathered"))
    with jax.transfer_guard_device_to_host("disallow_explicit"):
        model.merge_lora()
    np.testing.assert_allclose(model.predict(X, verbose=0), expected, atol=TOLERANCE)
    assert model.get_layer("query").kernel.layout.axes == (None, "model", None)


def test_updates_of_single_layers_are_merged():
    model = made()
    model.get_layer("query").enable_lora(2)
    with_updates(model)
    expected = model.predict(X, verbose=0)
    model.merge_lora()
    np.testing.assert_allclose(model.predict(X, verbose=0), expected, atol=TOLERANCE)
    assert model.get_layer("query").get_config().get("lora_rank") is None
    with pytest.raises(ModelError, match="no adapters"):
        model.merge_lora()


def one_input() -> kd.Model:
    return kd.Sequential([kd.Input((1,)), layers.Dense(1, use_bias=False, name="d")])


def test_dropout_drops_inputs_of_the_factors_in_training_alone():
    model = made(make=one_input)
    model.enable_lora(1, "d", dropout=0.75)
    model.set_weights([[[2.0]], [[3.0]], [[5.0]]])
    x = np.ones((64, 1), "float32")
    np.testing.assert_allclose(model(x), 17.0)
    found = np.asarray(model(x, training=True))
    assert set(np.unique(found)) == {2.0, 2.0 + 4 * 15}
    assert 4 < (found > 2).sum() < 32
    assert (np.asarray(model(x, training=True)) != found).any()
    kept = model.get_config()
    assert not any("lora_dropout" in str(one) for one in kept["layers"])
    model.merge_lora()
    np.testing.assert_allclose(model(x, training=True), 17.0)


def stacked() -> kd.Model:
    return kd.Sequential(
        [kd.Input((5,), dtype="int32"), layers.Embedding(7, 4, name="table"), layers.Conv1D(3, 2, name="c")]
    )


def test_one_error_lists_what_patterns_miss_and_what_cannot_be_adapted():
    model = made()
    model.get_layer("head").trainable = False
    weights = model.trainable_weights
    with pytest.raises(ModelError) as caught:
        model.enable_lora(2, ["querry", "norm|output", "head"])
    text = str(caught.value)
    assert "'querry' matches none; the nearest path is 'query'" in text
    assert "'norm': LayerNormalization has no weight that LoRA adapts" in text
    assert "'head': its `trainable` is False" in text
    assert "'output'" not in text.split("fix:")[0]
    assert model.trainable_weights == weights
    for bad, name in (
        ({"rank": 0}, "rank"),
        ({"layers": []}, "layers"),
        ({"alpha": 0}, "alpha"),
        ({"dropout": 1}, "dropout"),
    ):
        with pytest.raises(ModelError, match=f"`{name}`"):
            model.enable_lora(**{"rank": 2, "layers": "query", **bad})
    with pytest.raises(ModelError, match="not a regular expression"):
        model.enable_lora(2, "(")


def test_weights_that_cannot_be_frozen_or_adapted_here_are_errors():
    def with_module():
        return kd.Sequential([kd.Input((8,)), nnx.Linear(8, 8, rngs=nnx.Rngs(0)), layers.Dense(3, name="head")])

    model = made(make=with_module)
    with pytest.raises(ModelError, match="cannot freeze weights of flax modules in layers"):
        model.enable_lora(2, "head")
    model.layers[0].trainable = False
    model.enable_lora(2, "head")
    assert {weight.path for weight in model.trainable_weights} == {"head/lora_kernel_a", "head/lora_kernel_b"}
    model = made()
    model._record.keras_model = object()
    with pytest.raises(ModelError, match="Keras's layers have their own adapters"):
        model.enable_lora(2, "head")


def test_all_layers_are_adapted_or_none():
    distribution = sharded()
    distribution.layout_map["head/lora_kernel_b"] = ("model", None)
    with pytest.warns(kd.errors.LayoutWarning):
        model = made(distribution)
    model.compile("adam", "mse")
    weights, trained = model.weights, model.trainable_weights
    with pytest.raises(LayoutError, match="cannot shard dim 0 of 'head/lora_kernel_b'"):
        model.enable_lora(3, "query|head")
    assert (model.weights, model.trainable_weights) == (weights, trained)
    assert model.get_layer("query").lora_rank is None
    model.fit(X, Y, batch_size=8, verbose=0)
    with pytest.warns(UserWarning, match="starts again"):
        model.enable_lora(4, "query|head")
    assert len(model.trainable_weights) == 4
    kd.Model(model.inputs, model.outputs)
    with pytest.raises(ModelError, match="cannot change the weights of the model now"):
        model.merge_lora()


@pytest.mark.slow
def test_a_model_with_adapters_is_saved_copied_and_loaded(tmp_path):
    model = with_updates(adapted(sharded(), dropout=0.25))
    model.compile("adam", "mse")
    model.fit(X, Y, batch_size=8, verbose=0)
    expected = model.predict(X, verbose=0)
    model.save(tmp_path / "model")
    again = kd.models.load_model(tmp_path / "model")
    for one in (again, copy.copy(model)):
        np.testing.assert_allclose(one.predict(X, verbose=0), expected, atol=TOLERANCE)
        assert [weight.path for weight in one.trainable_weights] == [weight.path for weight in model.trainable_weights]
    found = [one.fit(X, Y, batch_size=8, shuffle=False, verbose=0).history["loss"] for one in (model, again)]
    np.testing.assert_allclose(*found, rtol=TOLERANCE)
    with pytest.raises(ModelError, match="files of Keras cannot hold adapters"):
        model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "merged.safetensors")
    plain = made()
    plain.load_weights(tmp_path / "merged.safetensors")
    np.testing.assert_allclose(plain.predict(X, verbose=0), model.predict(X, verbose=0), atol=TOLERANCE)


def test_a_reset_of_a_trained_optimizer_is_a_warning_that_names_the_way_out():
    model = made()
    model.compile("adam", "mse")
    model.fit(X, Y, batch_size=8, verbose=0)
    with pytest.warns(UserWarning, match=r"'adam' starts again .* after 2 steps.*iterations\.assign\(2\)"):
        model.enable_lora(RANK, "query")
    model.optimizer.iterations.assign(2)
    model.fit(X, Y, batch_size=8, verbose=0)
    assert int(model.optimizer.iterations) == 4
    model.merge_lora()
    with pytest.warns(UserWarning, match=r"fit: .* starts again .* since merge_lora; .*iterations\.assign"):
        model.fit(X, Y, batch_size=8, verbose=0)
    model.fit(X, Y, batch_size=8, verbose=0)
    with pytest.warns(UserWarning, match="after 4 steps"):
        model.enable_lora(RANK, "query")
    model.fit(X, Y, batch_size=8, verbose=0)
    model.merge_lora()
    model.optimizer.iterations.assign(2)
    model.fit(X, Y, batch_size=8, verbose=0)


def test_a_merge_is_remembered_until_training_or_compile():
    model = adapted()
    model.compile("adam", "mse")
    model.fit(X, Y, batch_size=8, verbose=0)
    model.merge_lora()
    model.enable_lora(RANK, "head")
    with pytest.warns(UserWarning, match="since merge_lora"):
        model.fit(X, Y, batch_size=8, verbose=0)
    model.merge_lora()
    model.compile("adam", "mse")
    model.fit(X, Y, batch_size=8, verbose=0)


def test_a_clone_has_the_same_adapters():
    model = adapted(sharded(), dropout=0.25, rank_pattern={"head": 1})
    model.compile("adam", "mse")
    clone = kd.models.clone_model(model)
    trained = [(weight.path, weight.shape) for weight in model.trainable_weights]
    assert [(weight.path, weight.shape) for weight in clone.trainable_weights] == trained
    clone.fit(X, Y, batch_size=8, verbose=0)
    clone.set_weights(with_updates(model).get_weights())
    np.testing.assert_allclose(clone(X), model(X), atol=TOLERANCE)
