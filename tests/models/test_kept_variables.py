"""Layers keep their variables: one object before, while and after a model trains, for users of Keras and of NNX."""

import gc
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import dtensor, layers
from keras_dist.errors import ModelError
from keras_dist.variables.lending import Lendable
from tests.layouts import on
from tests.networks import Plain, blobs

X, Y = np.random.default_rng(0).normal(size=(24, 8)).astype("float32"), np.arange(24) % 3
RULES = {"d1/kernel": (None, "model")}


def network() -> kd.Sequential:
    stack = [layers.Dense(16, "relu", name="d1"), layers.BatchNormalization(), layers.Dropout(0.5, seed=1)]
    return kd.Sequential([kd.Input((8,)), *stack, layers.Dense(3, name="d2")])


@pytest.fixture
def model() -> Any:
    kd.set_random_seed(0)
    with on("data=2,model=4", RULES).scope():
        found = network()
    found.compile("adam", "sparse_categorical_crossentropy")
    return found


class Watch(kd.callbacks.Callback):
    """What the kernel of a layer is in each way to read it, after each batch."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer, self.sums, self.held = layer, [], []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.sums.append(readings(self.layer))
        self.held.append((self.layer.kernel.value, self.layer.kernel.numpy()))


def readings(layer: Any) -> list[float]:
    state, kernel = nnx.to_pure_dict(nnx.state(layer, nnx.Param)), layer.kernel
    found = [
        kernel.numpy(),
        layer.get_weights()[0],
        state["kernel"],
        kernel[...],
        kernel.value,
        jax.tree.leaves(kernel)[0],
    ]
    return [float(np.sum(np.asarray(value), dtype=np.float64)) for value in found]


def test_a_weight_is_one_object_whatever_the_model_does(model, tmp_path) -> None:
    layer = model.get_layer("d1")
    kernel, weights = layer.kernel, model.weights
    watch = Watch(layer)
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[watch])
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.safetensors")
    model.load_weights(tmp_path / "model.safetensors")
    model.redistribute(on("data=8", {}))
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.train_on_batch(X, Y)
    assert kernel is layer.kernel is model.weights[0] is dict(nnx.iter_graph(model))[("_members", "d1", "kernel")]
    assert all(one is other for one, other in zip(model.weights, weights, strict=True))
    assert kernel.path == "d1/kernel" and kernel.layout.device_mesh == model.layout_plan.mesh
    assert len(jax.tree.leaves(nnx.state(model, nnx.Param))) == len(model.trainable_weights) == 6


def test_every_way_to_read_it_gives_the_current_value_also_while_it_is_lent(model) -> None:
    watch = Watch(model.get_layer("d1"))
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[watch])
    assert len(watch.sums) == 6 and all(len(set(sums)) == 1 for sums in watch.sums)
    assert len({sums[0] for sums in watch.sums}) == 6, "each step changes it"
    assert readings(model.get_layer("d1")) == [watch.sums[-1][0]] * 6
    for array, before in watch.held:
        np.testing.assert_array_equal(array, before, "what was read stays as it was")


def test_the_functions_of_nnx_work_on_a_built_model(model) -> None:
    def loss_of(model: Any) -> Any:
        return jnp.mean((model(X) - jax.nn.one_hot(Y, 3)) ** 2)

    first = float(loss_of(model))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any) -> Any:
        loss, grads = nnx.value_and_grad(loss_of)(model)
        optimizer.update(model, grads)
        return loss

    losses = [float(step(model, optimizer)) for _ in range(20)]
    assert losses[0] == pytest.approx(first, rel=1e-5)
    assert float(loss_of(model)) < 0.8 * first
    merged = nnx.merge(*nnx.split(model))
    np.testing.assert_allclose(merged(X), model(X), rtol=1e-5, atol=1.2e-7)  # an ulp of 1, for sums of terms of 1
    before = model.get_weights()[0]
    model.fit(X, Y, verbose=0)
    assert np.any(model.get_weights()[0] != before), "fit goes on from what the loop has left"


def test_a_model_of_layers_is_a_module_for_from_nnx(model) -> None:
    again = kd.Model.from_nnx(model, call=lambda module, x, training, rngs: module(x, training=training))
    np.testing.assert_allclose(again.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5)
    before = model.get_weights()
    again.compile("sgd", "sparse_categorical_crossentropy")
    again.fit(X, Y, verbose=0)
    np.testing.assert_equal(model.get_weights(), before, "the module that was given stays as it was")


def test_values_set_through_nnx_count(model) -> None:
    kernel = model.get_layer("d1").kernel
    given = jnp.ones((8, 16))
    kernel[...] = given
    np.testing.assert_array_equal(model.get_weights()[0], np.ones((8, 16)))
    nnx.update(model.get_layer("d1"), nnx.State({"bias": nnx.Param(jnp.full(16, 2.0))}))
    model.train_on_batch(X, Y)
    assert not given.is_deleted(), "it was copied"
    assert kernel.layout.axes == (None, "model") == tuple(kernel.value.sharding.spec)
    np.testing.assert_allclose(model.get_layer("d1").bias.numpy(), 2.0, atol=0.1)
    nnx.update(model.get_layer("d1"), nnx.State({"kernel": nnx.Param(np.full((8, 16), 2.0))}))  # of NumPy's
    assert kernel.dtype == np.float32
    np.testing.assert_array_equal(model.get_weights()[0], np.full((8, 16), 2.0))
    with pytest.raises(ModelError, match="cannot assign to 'd1/kernel': the shape differs"):
        nnx.update(model.get_layer("d1"), nnx.State({"kernel": nnx.Param(jnp.zeros((3, 3)))}))
    assert kernel.shape == (8, 16)


def test_a_factorys_module_is_the_models() -> None:
    model = kd.Model.from_nnx(Plain, seed=0)
    model.compile("sgd", "sparse_categorical_crossentropy")
    module = model.module
    assert module is model.module
    held = module.d1.kernel[...]
    before, seen = np.array(held), []
    watch = kd.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(np.array(module.d1.kernel[...]))
    )
    model.fit(*blobs(16), batch_size=8, verbose=0, callbacks=[watch])
    np.testing.assert_array_equal(held, before)
    assert np.any(seen[0] != before) and np.any(seen[1] != seen[0])
    np.testing.assert_array_equal(seen[1], module.d1.kernel[...])


def test_models_with_a_layer_in_common_have_one_set_of_arrays(model) -> None:
    shared = model.get_layer("d1")
    with model.distribution.scope():
        other = kd.Sequential([kd.Input((8,)), shared, layers.Dense(2)], name="other")
    assert other.weights[0] is shared.kernel is model.weights[0]
    other.compile("sgd", "sparse_categorical_crossentropy")
    other.fit(X, Y % 2, verbose=0)
    np.testing.assert_array_equal(model.get_weights()[0], other.get_weights()[0])
    before = other.predict(X, verbose=0)
    model.fit(X, Y, verbose=0)
    assert np.any(other.predict(X, verbose=0) != before)
    np.testing.assert_array_equal(model.get_weights()[0], other.get_weights()[0])


def test_what_another_training_has_borrowed_is_read_and_not_trained(model) -> None:
    with model.distribution.scope():
        other = kd.Sequential([kd.Input((8,)), model.get_layer("d1"), layers.Dense(2)], name="other")
    other.compile("sgd", "sparse_categorical_crossentropy")
    found: list[Any] = []

    def look() -> None:
        found.append(other.predict(X, verbose=0).shape)
        with pytest.raises(ModelError, match="model 'other' cannot train now: model 'sequential' is training") as told:
            other.train_on_batch(X, Y % 2)
        assert "'d1/bias'" in told.value.given
        found.append(np.array_equal(other.get_weights()[0], model.get_weights()[0]))

    def run(batch: int, logs: Any) -> None:
        look()
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    model.fit(X, Y, verbose=0, callbacks=[kd.callbacks.LambdaCallback(on_train_batch_end=run)])
    assert found == [(24, 2), True] * 2
    other.train_on_batch(X, Y % 2)


def test_models_with_a_layer_in_common_stay_on_one_mesh(model) -> None:
    with model.distribution.scope():
        other = kd.Sequential([kd.Input((8,)), model.get_layer("d1"), layers.Dense(2)], name="other")
    with pytest.raises(ModelError, match="model 'sequential' cannot move: model 'other' has some of its layers"):
        model.redistribute(on("data=8", {}))
    del other
    gc.collect()
    model.redistribute(on("data=8", {}))
    assert model.weights[0].value.sharding.spec == jax.sharding.PartitionSpec(None, None)


def test_layers_that_are_made_in_build_and_again_in_lists_are_the_users() -> None:
    class Block(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.first = layers.Dense(4)
            self.all = []

        def build(self, shape: Any) -> None:
            self.late = layers.Dense(4)
            self.alias = self.first
            self.all = [self.first, self.late]

        def call(self, x: Any) -> Any:
            for layer in self.all:
                x = layer(x)
            return self.alias(x)

    block = Block()
    first = block.first
    model = kd.Sequential([kd.Input((4,)), block])
    assert block.first is first is block.alias is block.all[0] and block.late is block.all[1]
    assert len(model.weights) == 4
    assert model.weights[2] is block.late.kernel is block.all[1].kernel
    model.compile("sgd", "mse")
    before = block.late.kernel.numpy()
    model.fit(X[:, :4], X[:, :4], verbose=0)
    assert np.any(block.late.kernel.numpy() != before)


def test_what_an_optimizer_ends_with_is_lent_on(model) -> None:
    model.compile(kd.optimizers.SGD(0.0, use_ema=True), "sparse_categorical_crossentropy")
    kernel, found = model.get_layer("d1").kernel, []

    def end(logs: Any) -> None:
        model.train_on_batch(X, Y)
        found.append(kernel.numpy())
        kernel.assign(np.full((8, 16), 3.0))

    model.fit(X, Y, verbose=0, callbacks=[kd.callbacks.LambdaCallback(on_train_end=end)])
    assert np.isfinite(found[0]).all()
    np.testing.assert_array_equal(kernel.numpy(), np.full((8, 16), 3.0))


def test_a_thread_that_reads_while_arrays_change_hands_gets_one_that_lives(model, monkeypatch) -> None:
    kernel, keep, found = model.get_layer("d1").kernel, Lendable.keep, []
    model.fit(X, Y, verbose=0)

    def read() -> None:
        found.append(kernel.value)

    def watched(self: Any, array: Any) -> None:
        if self is kernel and threading.current_thread() is threading.main_thread():
            threads.append(threading.Thread(target=read))
            threads[-1].start()
            threads[-1].join(0.05)  # it waits until all have changed hands
        keep(self, array)

    threads: list[threading.Thread] = []
    monkeypatch.setattr(Lendable, "keep", watched)
    for _ in range(3):
        model.train_on_batch(X, Y)
    for thread in threads:
        thread.join()
    assert len(found) >= 3 and not any(array.is_deleted() for array in found)


def test_a_variable_with_a_structure_of_arrays_is_refused() -> None:
    class Pair(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.pair = nnx.Param({"a": jnp.ones(4), "b": jnp.zeros(4)})

        def call(self, x: Any) -> Any:
            pair = self.pair.get_value()
            return x * pair["a"] + pair["b"]

    with pytest.raises(ModelError, match="variable 'pair/pair' of a layer must contain one array"):
        kd.Sequential([kd.Input((4,)), Pair(), layers.Dense(4)])


def test_what_was_read_of_a_foreign_module_survives_a_function() -> None:
    model = kd.Model.from_nnx(lambda rngs: nnx.Linear(4, 4, rngs=rngs), seed=0)
    weight = next(weight for weight in model.weights if weight.shape == (4, 4))
    held = model.module.kernel[...]
    before = np.array(held)

    @dtensor.function
    def add(x: Any) -> Any:
        weight.assign_add(jnp.ones((4, 4)))
        return model(x)

    add(X[:, :4])
    add(X[:, :4])
    np.testing.assert_array_equal(held, before)
    np.testing.assert_allclose(weight.numpy(), before + 2, rtol=1e-6)
    np.testing.assert_allclose(model.module.kernel[...], before + 2, rtol=1e-6)


def test_what_a_callback_writes_into_a_foreign_variable_counts() -> None:
    class Around(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nnx.Linear(8, 8, rngs=nnx.Rngs(0))

        def call(self, x: Any) -> Any:
            return self.inner(x)

    layer = Around()
    model = kd.Sequential([kd.Input((8,)), layer])
    model.compile(kd.optimizers.SGD(0.0), "mse")

    def write(batch: int, logs: Any) -> None:
        if batch == 0:
            layer.inner.kernel[...] = jnp.full((8, 8), 7.0)

    model.fit(X, X, batch_size=8, verbose=0, callbacks=[kd.callbacks.LambdaCallback(on_train_batch_end=write)])
    np.testing.assert_array_equal(layer.inner.kernel[...], np.full((8, 8), 7.0))
    np.testing.assert_array_equal(model.get_weights()[0], np.full((8, 8), 7.0))


def test_weights_of_a_model_are_not_taken_away(model) -> None:
    with pytest.raises(ModelError, match="`kernel` of layer 'd1' cannot be taken away"):
        del model.get_layer("d1").kernel


def test_attributes_are_those_that_building_has_left() -> None:
    class Noting(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.width, self.last, self.table = None, "none", None

        def build(self, shape: Any) -> None:
            self.width = shape[-1]
            self.table = jnp.arange(4.0)

        def call(self, x: Any) -> Any:
            self.last = x.shape
            return x * self.width + self.table

    layer = Noting()
    kd.Sequential([kd.Input((4,)), layer, layers.Dense(2)])
    assert layer.width == 4 and layer.built
    np.testing.assert_array_equal(layer.table, np.arange(4.0))
    assert layer.last == "none", "the shapes of a trace are nobody's matter"


def test_values_that_would_become_infinite_are_refused(model) -> None:
    kernel = model.get_layer("d1").kernel
    before = kernel.numpy()
    with pytest.raises(ModelError, match="cannot assign to 'd1/kernel': a value exceeds the range of float32") as told:
        kernel.assign(np.full((8, 16), 1e300))
    assert "1e+300" in told.value.given
    with pytest.raises(ModelError, match="exceeds the range"):
        model.set_weights([np.zeros((8, 16)), *[np.full(weight.shape, 1e300) for weight in model.weights[1:]]])
    np.testing.assert_array_equal(kernel.numpy(), before)
    kernel.assign(np.full((8, 16), np.inf))
    assert np.isinf(kernel.numpy()).all()


def test_a_variable_keeps_its_layout_when_its_model_is_deleted():
    mesh = kd.DeviceMesh("data=4,model=2")
    layout_map = kd.LayoutMap(mesh)
    layout_map["dense/kernel"] = (None, "model")
    with kd.ModelParallel(layout_map=layout_map).scope():
        model = kd.Sequential([kd.Input((4,)), kd.layers.Dense(2)])
        model.build()
    weights = model.weights
    kernel, bias = (weight.layout for weight in weights)
    del model
    gc.collect()
    assert not weights[0].keepers
    assert [weight.layout for weight in weights] == [kernel, bias]
    assert kernel == kd.TensorLayout((None, "model"), mesh)


def test_factors_of_lora_that_cannot_be_made_leave_a_layer_of_no_model_as_it_was():
    layer = layers.Dense(4, name="d1")
    layer.build((None, 3))
    weights = layer.trainable_weights
    with pytest.raises(ZeroDivisionError):
        layer.enable_lora(2, b_initializer=lambda shape, dtype=None: 1 / 0)
    assert layer.lora_rank is None and layer.trainable_weights == weights and not hasattr(layer, "lora_kernel_a")
    assert layer.get_config().get("lora_rank") is None
    layer.enable_lora(2)
    model = kd.Sequential([kd.Input((3,)), layer])
    assert [weight.path for weight in model.trainable_weights] == ["d1/bias", "d1/lora_kernel_a", "d1/lora_kernel_b"]


class Noted(kd.initializers.Initializer):
    """Notes that values were drawn."""

    def __init__(self, calls):
        self.calls = calls

    def __call__(self, shape, dtype=None, key=None):
        self.calls.append(shape)
        return kd.initializers.GlorotUniform()(shape, dtype, key)


@pytest.mark.parametrize("name", ["m.weights.h5", "m.weights.safetensors", "m.orbax"])
@pytest.mark.parametrize("compiles", ["before", "after", "twice"])
def test_weights_that_a_file_has_are_not_drawn(name, compiles, tmp_path):
    x, calls = np.ones((16, 8), np.float32), []

    def made():
        layer = kd.layers.Dense(8, kernel_initializer=Noted(calls))
        with kd.FullySharded(kd.DeviceMesh("data=8")).scope():
            return kd.Sequential([kd.Input((8,)), layer, kd.layers.BatchNormalization()])

    def fitted(model):
        return model.fit(x, x, batch_size=8, epochs=2, verbose=0).history["loss"]

    saved = made()
    saved.save_weights(tmp_path / name)
    saved.compile("adam", "mse")
    expected, model = fitted(saved), made()
    calls.clear()
    if compiles != "after":
        model.compile("adam", "mse")
    model.load_weights(tmp_path / name)
    if compiles != "before":
        model.compile("adam", "mse")
    assert fitted(model) == expected and calls == []
