"""Variables of layers: inside of calls, eager and compiled, and what must not be created there."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError

X = np.ones((4, 2), np.float32)


class Uses(layers.Layer):
    """Its call uses weights as Keras's layers do."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.calls = kd.Variable(0, dtype="int32", trainable=False, name="count")
        self.late: Any = None

    def build(self, input_shape: Any) -> None:
        self.total = self.add_weight((2,), "zeros", trainable=False, name="total")
        self.factor = self.add_weight((2,), "ones", name="scale")
        self.late = self.add_variable((2,), "zeros", name="late")

    def call(self, inputs: Any) -> Any:
        self.calls.assign_add(1)
        self.total.assign(self.total + jnp.sum(inputs, 0))
        self.total.assign_sub(np.ones(2))
        assert (self.factor.name, self.factor.shape, self.factor.dtype) == ("scale", (2,), "float32")
        assert self.factor.trainable and not self.total.trainable
        first = jnp.where(self.calls > 1, 1.0, 2.0) * (self.calls == self.calls)
        return inputs * first * (3 * self.factor - self.factor.value - np.ones(2) * self.factor) + jnp.sin(self.late)


def test_weights_count_as_their_values_and_are_assigned_in_eager_calls():
    layer = Uses()
    np.testing.assert_array_equal(layer(X), 2 * X)
    np.testing.assert_array_equal(layer(X), X)
    assert layer.calls.numpy() == 2
    np.testing.assert_array_equal(layer.total, [6.0, 6.0])


@pytest.fixture(scope="module")
def model() -> Any:
    model = kd.Sequential([kd.Input((2,)), Uses(name="uses"), layers.Dense(1, name="head")])
    model.compile("sgd", "mse")
    model.fit(X, np.zeros((4, 1)), batch_size=2, epochs=2, verbose=0)
    return model


def test_what_compiled_steps_assign_is_kept(model):
    layer = model.layers[0]
    assert layer.calls.numpy() == 4, "what the call assigned while weights were born does not count"
    np.testing.assert_array_equal(layer.total, [4.0, 4.0])


def test_what_a_traced_function_cannot_keep_is_named():
    model = kd.Sequential([kd.Input((2,)), layers.BatchNormalization(name="norm"), layers.Dropout(0.5, name="drop")])
    with pytest.warns(UserWarning, match=r"(?s)drops the new values of drop/.*norm/moving_mean.*stateless_call"):
        jax.jit(lambda x: model(x, training=True))(X)
    jax.jit(lambda x: model(x))(X)


def test_weights_are_in_order_of_creation_trained_ones_first(model):
    own = Uses()
    own(X)
    assert [weight.name for weight in own.weights] == ["scale", "late", "count", "total"]
    assert [weight.name for weight in model.weights[:4]] == ["scale", "late", "count", "total"]
    assert [weight.path for weight in model.weights[:2]] == ["uses/factor", "uses/late"]


def test_lists_of_weights_stand_where_they_were_created():
    class Listed(layers.Layer):
        def build(self, input_shape):
            self.late = None
            self.many = [self.add_weight((), name="first")]
            self.one = self.add_weight((), name="second")
            self.many.append(self.add_weight((), name="third"))
            self.late = kd.Variable(1.0, name="fourth")

        def call(self, inputs):
            return inputs

    layer = Listed()
    layer(X)
    assert [weight.name for weight in layer.weights] == ["first", "second", "third", "fourth"]


class TestVariable:
    @pytest.mark.parametrize(
        ("arguments", "dtype", "value"),
        [
            ((0,), "int32", 0),
            ((1.5,), "float32", 1.5),
            (([1, 2],), "int32", [1, 2]),
            ((np.ones(2, "f8"), None, "bfloat16"), "bfloat16", [1, 1]),
            (("ones", (2,)), "float32", [1, 1]),
            ((lambda shape, dtype: jnp.full(shape, 2, dtype), (2,), "int32"), "int32", [2, 2]),
        ],
    )
    def test_it_is_made_of_values_and_of_initializers(self, arguments, dtype, value):
        variable = kd.Variable(*arguments)
        assert isinstance(variable, kd.Variable) and variable.trainable
        assert variable.dtype == dtype and variable.numpy().tolist() == value

    def test_its_text_is_short(self):
        text = repr(kd.Variable(1.0, trainable=False, name="v"))
        assert text == "<Variable path=v, shape=(), dtype=float32, value=1.0>"


class AddsWeight(layers.Layer):
    def call(self, inputs):
        self.kernel = self.add_weight((2,), name="kernel")
        return inputs * self.kernel


class MakesLayer(layers.Layer):
    def call(self, inputs):
        return layers.Dense(2)(inputs)


class MakesDropout(layers.Layer):
    def call(self, inputs):
        return layers.Dropout(0.5)(inputs)


class MakesVariable(layers.Layer):
    def call(self, inputs):
        return inputs * kd.Variable(1.0, name="scale")


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (AddsWeight, "weight 'kernel' of layer 'adds_weight'"),
        (MakesLayer, "weight 'kernel' of layer 'dense'"),
        (MakesDropout, "random state 'seed_generator' of layer 'dropout'"),
        (MakesVariable, "weight 'scale'"),
    ],
)
@pytest.mark.parametrize("inputs", [X, layers.Input((2,))], ids=["eager", "symbolic"])
def test_what_a_call_creates_is_an_error_with_the_way_out(kind, what, inputs):
    layer = kind()
    with pytest.raises(ModelError, match=f"layer '{layer.name}' creates {what} inside of call") as caught:
        layer(inputs)
    assert "build" in caught.value.fix and "__init__" in caught.value.fix


def test_layers_without_weights_may_be_made_in_a_call_and_sublayers_built_there():
    class Fine(layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(2)

        def call(self, inputs):
            return layers.ReLU()(self.dense(inputs))

    assert Fine()(X).shape == (4, 2)


def test_variables_outside_of_layers_lie_as_the_current_distribution_says():
    mesh = kd.DeviceMesh((4, 2), ("batch", "model"))
    rules = kd.LayoutMap(mesh)
    rules["kernel"] = (None, "model")
    with kd.ModelParallel(rules, batch_dim_name="batch").scope():
        kernel, other = kd.Variable("ones", (2, 4), name="kernel"), kd.Variable(np.ones(3, "f4"), name="other")
        own = kd.Variable("ones", (4, 2), name="own", layout=("batch", None))
    assert kernel.value.sharding.spec == jax.sharding.PartitionSpec(None, "model")
    assert other.value.sharding.is_fully_replicated and len(other.value.sharding.device_set) == 8
    assert own.value.sharding.spec == jax.sharding.PartitionSpec("batch", None)
    with kd.DataParallel().scope():
        assert len(kd.Variable(1.0).value.sharding.device_set) == 8
