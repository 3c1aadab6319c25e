"""Weights between the first call of a layer on symbolic tensors and its model: variables without arrays."""

import copy
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers, ops
from keras_dist._unstable.flax_internals import raw_value


def is_deferred(variable):
    return isinstance(raw_value.__get__(variable), jax.ShapeDtypeStruct)


class Block(layers.Layer):
    """A weight, a layer made in `build`, and a model that `call` builds."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = kd.Sequential([layers.Dense(5), layers.Dropout(0.5)])

    def build(self, input_shape):
        self.width = input_shape[-1]
        self.scale = self.add_weight((self.width,), "random_normal", name="scale")
        self.late = layers.Dense(3)

    def call(self, inputs):
        return self.late(self.inner(inputs * self.scale))


class OwnShape(layers.Layer):
    """A layer with its own `compute_output_shape`."""

    def build(self, input_shape):
        self.scale = self.add_weight((input_shape[-1],), "random_normal", name="scale")

    def call(self, inputs):
        return inputs * self.scale

    def compute_output_shape(self, input_shape):
        return input_shape


def called(layer, shape=(4,)):
    inputs = kd.Input(shape)
    return inputs, layer(inputs)


def test_a_weight_is_one_object_from_the_symbolic_call_on():
    dense = layers.Dense(3)
    inputs, outputs = called(dense)
    kernel = dense.kernel
    assert dense.built and is_deferred(kernel)
    assert any(node is kernel for _, node in nnx.iter_graph(dense))
    model = kd.Model(inputs, outputs)
    assert dense.kernel is kernel and model.weights[0] is kernel and is_deferred(kernel)
    model.compile("sgd", "mse")
    before = kernel.numpy()
    assert not is_deferred(kernel)
    model.fit(np.ones((8, 4), "float32"), np.ones((8, 3), "float32"), verbose=0)
    assert dense.kernel is kernel and not np.array_equal(kernel.numpy(), before)


def test_what_is_known_without_an_array_creates_none():
    dense = layers.Dense(3, kernel_layout=(None, "model"), dtype="bfloat16", name="d")
    called(dense)
    assert [(weight.shape, weight.dtype, weight.path) for weight in dense.weights] == [
        ((4, 3), "bfloat16", "kernel"),
        ((3,), "bfloat16", "bias"),
    ]
    assert "value=deferred" in repr(dense.kernel) and dense.kernel.layout == (None, "model")
    assert dense.count_params() == 15 and dense.trainable_weights[0] is dense.kernel
    dense(kd.Input((4,)))
    copied = copy.deepcopy(dense)
    assert is_deferred(copied.kernel) and copied.kernel is not dense.kernel and is_deferred(dense.kernel)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "make", [Block, lambda: layers.LSTM(2, recurrent_dropout=0.5), OwnShape], ids=["block", "lstm", "own_shape"]
)
def test_initial_values_do_not_depend_on_whether_someone_has_looked(make):
    def values(*, looks):
        kd.set_random_seed(1)
        layer = make()
        inputs, hidden = called(layer, (3, 4))
        if looks:
            assert layer.weights and all(map(is_deferred, layer.weights))
            repr(layer.variables)
        return kd.Model(inputs, layers.Dense(2)(hidden)).get_weights()

    for one, other in zip(values(looks=False), values(looks=True), strict=True):
        np.testing.assert_array_equal(one, other)


def test_sublayers_that_building_makes_are_there_too():
    block = Block()
    inputs, outputs = called(block)
    late, kernel = block.late, block.inner.layers[0].kernel
    assert kernel.shape == (4, 5) and is_deferred(late.kernel) and block.width == 4
    model = kd.Model(inputs, outputs)
    assert block.late is late and block.inner.layers[0].kernel is kernel
    assert [weight.path for weight in model.weights][:2] == ["block/scale", "block/inner/dense/kernel"]


@pytest.mark.parametrize("make", [Block, OwnShape])
def test_values_that_are_read_or_set_before_are_kept(make):
    layer = make()
    inputs, outputs = called(layer)
    scale = layer.scale
    before = scale.numpy()
    layer.weights[-1].assign(np.full(layer.weights[-1].shape, 0.25))
    x = np.ones((2, 4), "float32")
    expected = layer(x)
    model = kd.Model(inputs, outputs)
    assert layer.scale is scale
    np.testing.assert_array_equal(model.weights[-1].numpy().ravel()[0], 0.25)
    np.testing.assert_array_equal(scale.numpy(), before if make is Block else np.full(4, 0.25))
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-6)


def test_a_call_on_arrays_creates_them():
    block = Block()
    called(block, (None, 4))
    scale = block.scale
    outputs = block(np.ones((2, 7, 4), "float32"))
    assert outputs.shape == (2, 7, 3) and block.scale is scale and not is_deferred(scale)


def test_a_weight_is_tied_to_an_output():
    embedding = layers.Embedding(7, 4)
    inputs = kd.Input((5,), dtype="int32")
    hidden = embedding(inputs)
    weight: Any = embedding.embeddings
    logits = ops.matmul(hidden, ops.transpose(weight))
    table = embedding.embeddings.numpy()
    model = kd.Model(inputs, logits)
    tokens = np.arange(5)[None]
    np.testing.assert_allclose(model.predict(tokens, verbose=0), table[tokens] @ table.T, rtol=1e-5)


def test_a_part_of_a_layer_in_a_model_keeps_the_other_weights():
    block = Block()
    inputs, outputs = called(block)
    late: Any = block.late
    given: list[Any] = [kd.Input((5,)), late]
    part = kd.Sequential(given)
    assert part.weights[0] is block.late.kernel and is_deferred(block.scale)
    model = kd.Model(inputs, outputs)
    assert {id(weight) for weight in part.weights} < {id(weight) for weight in model.weights}


def test_a_compiled_function_reads_values_that_are_created_outside_of_it():
    dense = layers.Dense(3)
    called(dense)
    outputs = jax.jit(lambda x: x @ dense.kernel[...])(np.ones((2, 4), "float32"))
    np.testing.assert_allclose(outputs, np.ones((2, 4)) @ dense.kernel.numpy(), rtol=1e-6)


def test_unknown_dims_reach_build_as_none():
    seen = []

    class Sized(layers.Layer):
        def build(self, input_shape):
            seen.append(input_shape)

        def call(self, inputs):
            return inputs

    class Outer(kd.Model):
        def __init__(self):
            super().__init__()
            self.sized = Sized()

        def call(self, inputs):
            return self.sized(inputs)

    called(Sized(), (None, 4))
    Outer().build((None, None, 4))
    assert seen == [(None, None, 4)] * 2


class Rotary(layers.Layer):
    def build(self, input_shape):
        self.table = jnp.arange(input_shape[-1], dtype="float32")
        self.scale = self.add_weight((input_shape[-1],), "zeros", name="scale")
        self.scale.assign(np.full(input_shape[-1], 2.0))

    def call(self, x):
        return x * self.scale + self.table


def test_a_layer_may_make_arrays_and_assign_values_in_build():
    layer, inputs = Rotary(), kd.Input((4,))
    outputs = layer(inputs)
    scale = layer.scale
    assert is_deferred(scale) and not isinstance(layer.table, jax.core.Tracer)
    model = kd.Model(inputs, outputs)
    assert model.weights[0] is scale
    np.testing.assert_array_equal(model.predict(np.ones((2, 4), "float32"), verbose=0)[0], [2, 3, 4, 5])


@pytest.mark.parametrize("has_array", [False, True])
def test_no_value_is_assigned_in_a_trace_whose_next_run_would_not_assign_it(has_array):
    dense = layers.Dense(2)
    dense.build((None, 3))
    if has_array:
        dense.kernel.numpy()
    with pytest.raises(kd.errors.ModelError, match="'kernel' is assigned inside of a function that JAX traces"):
        jax.jit(lambda: dense.kernel.assign(np.ones((3, 2))))()


def test_options_that_are_set_after_the_first_call_change_no_weights():
    layer, inputs = layers.Dense(3), kd.Input((4,))
    outputs = layer(inputs)
    layer.units = 5
    assert kd.Model(inputs, outputs).weights[0].shape == (4, 3)


def test_arrays_of_another_size_do_not_replace_the_weights():
    layer, inputs = layers.Dense(3), kd.Input((4,))
    outputs = layer(inputs)
    with pytest.raises(kd.errors.ModelError, match="the input of layer 'dense' does not fit"):
        layer(np.ones((2, 7), "float32"))
    assert kd.Model(inputs, outputs).weights[0].shape == (4, 3)


def test_a_variable_can_be_assigned_to_another_layer_before_the_model():
    one, other, inputs = layers.Dense(4), layers.Dense(4), kd.Input((4,))
    outputs = other(one(inputs))
    other.kernel = one.kernel
    model = kd.Model(inputs, outputs)
    model.compile("sgd", "mse")
    model.fit(np.ones((8, 4), "float32"), np.ones((8, 4), "float32"), verbose=0)
    assert one.kernel in [weight for weight in model.weights if weight is one.kernel]


def test_a_model_of_a_module_may_be_an_attribute_of_a_layer():
    class Student(layers.Dense):
        def __init__(self, teacher):
            super().__init__(3)
            self.teacher = teacher

    inputs, teacher = kd.Input((4,)), kd.Model.from_nnx(lambda rngs: nnx.Linear(4, 3, rngs=rngs), seed=0)
    layer = Student(teacher)
    model = kd.Model(inputs, layer(inputs))
    assert len(model.trainable_weights) == len(jax.tree.leaves(nnx.state(model, nnx.Param))) == 2
    model.compile("sgd", "mse")
    x = np.ones((8, 4), "float32")
    model.fit(x, teacher.predict(x, verbose=0), verbose=0)


@pytest.mark.parametrize("is_in_model", [False, True])
def test_values_that_a_thread_sets_while_arrays_are_created_are_kept(is_in_model):
    def ones(shape, dtype):
        setter = threading.Thread(target=lambda: [weight.assign(np.full(weight.shape, 7)) for weight in dense.weights])
        setter.start()
        setter.join(10)
        return np.ones(shape, dtype)

    dense = layers.Dense(3, kernel_initializer=ones)
    inputs, outputs = called(dense)
    model = kd.Model(inputs, outputs) if is_in_model else None
    np.testing.assert_array_equal(dense.kernel, np.full((4, 3), 7))
    np.testing.assert_array_equal(dense.bias, np.full(3, 7))
    assert all(weight.initial is None for weight in dense.weights)  # no second copy of the values is held
    del model


@pytest.mark.parametrize("is_in_model", [False, True])
def test_arrays_that_are_assigned_before_creation_stay_the_users(is_in_model):
    dense = layers.Dense(3)
    inputs, outputs = called(dense)
    model = kd.Model(inputs, outputs) if is_in_model else dense
    value = jnp.full((4, 3), 2, "float32")
    dense.kernel.assign(value)
    value.delete()  # as donation does
    np.testing.assert_array_equal(model.get_weights()[0], np.full((4, 3), 2))


def test_initializers_run_in_order_and_may_read_other_weights():
    calls, scale = [], layers.Dense(4, name="scale")
    inputs, hidden = called(scale)

    def transposed(shape, dtype):
        calls.append(transposed)
        return scale.kernel.value.T

    def counted(shape, dtype, key):
        calls.append(counted)
        return jnp.full(shape, len(calls), dtype)

    for initializer in (transposed, counted):
        hidden = layers.Dense(4, kernel_initializer=initializer)(hidden)
    first, _, second, _, third, _ = kd.Model(inputs, hidden).get_weights()
    np.testing.assert_array_equal(second, first.T)
    np.testing.assert_array_equal(third, np.full((4, 4), 2))
    assert calls == [transposed, counted]


def test_an_error_of_an_initializer_names_the_weight_and_leaves_the_model_as_it_was():
    def fails(shape, dtype):
        if is_broken:
            raise ValueError("no")
        return np.ones(shape, dtype)

    is_broken = True
    model = kd.Sequential([kd.Input((4,)), layers.Dense(3), layers.Dense(2, kernel_initializer=fails, name="late")])
    model.layers[0].kernel.assign(np.ones((4, 3)))
    with pytest.raises(ValueError, match="no") as caught:
        model.get_weights()
    assert "in the initializer of 'kernel' in layer 'late'" in caught.value.__notes__
    is_broken = False
    np.testing.assert_array_equal(model.predict(np.ones((1, 4)), verbose=0), [[12, 12]])


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("is_planned", [False, True])
def test_a_deep_copy_has_the_value_of_the_original_in_every_model(is_planned, looks):
    dense = layers.Dense(3)
    inputs, outputs = called(dense)
    model = kd.Model(inputs, outputs) if is_planned else None
    if is_planned:
        assert all(map(is_deferred, model.weights))
    copied = copy.deepcopy(dense)
    again = copy.copy(copied)
    before = np.array(copied.kernel) if looks else None
    kernels = [kd.Model(*called(layer)).get_weights()[0] for layer in (again, copied)]
    kernels += [kernels[0] if before is None else before, np.array(dense.kernel)]
    for kernel in kernels[1:]:
        np.testing.assert_array_equal(kernel, kernels[0])


def test_values_that_are_assigned_in_a_planned_model_go_into_shards_at_once(monkeypatch):
    rules = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    rules[".*kernel"] = (None, "model")
    with kd.ModelParallel(rules).scope():
        model = kd.Sequential([kd.Input((4,)), layers.Dense(8, kernel_initializer=np.ones((4, 8), "float32"))])
    kernel, bias = model.weights
    # makes a whole array on one device
    monkeypatch.setattr(kd.initializers.initializer.FromArray, "__call__", None)
    np.testing.assert_array_equal(kernel, np.ones((4, 8)))
    monkeypatch.undo()
    with kd.ModelParallel(rules).scope():
        model = kd.Sequential([kd.Input((4,)), layers.Dense(8)])
    kernel, bias = model.weights
    returned = kernel.assign(np.full((4, 8), 3.0))
    assert is_deferred(bias) and not is_deferred(kernel)
    assert returned.sharding.spec == kernel.value.sharding.spec == jax.sharding.PartitionSpec(None, "model")
    np.testing.assert_array_equal(model.get_weights()[0], np.full((4, 8), 3))
