"""What layers make of the arguments of a call: arrays, symbolic tensors, masks, and what is no input."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError
from keras_dist.variables import call_context


class TestCalls:
    def test_symbolic_inputs_give_symbolic_outputs(self):
        layer = layers.Dense(3)
        inputs = layers.Input((None, 8))
        outputs = layer(inputs)
        assert outputs.shape == (None, None, 3) and outputs.dtype == "float32"
        assert layer.input is inputs and layer.output is outputs
        assert layer.compute_output_shape((None, 5, 8)) == (None, 5, 3)

    def test_floats_are_cast_to_the_dtype_of_the_layer_and_integers_are_not(self):
        class Show(layers.Layer):
            def call(self, inputs):
                return [value.dtype for value in jax.tree.leaves(inputs)]

        floats, ints = np.ones(2, np.float64), np.ones(2, np.int32)
        assert Show(dtype="bfloat16")([floats, ints]) == [jnp.bfloat16, jnp.int32]
        assert Show(autocast=False)([np.ones(2, np.float16), ints]) == [jnp.float16, jnp.int32]

    def test_add_loss_adds_to_the_call_that_runs(self):
        class Sparse(layers.Layer):
            def call(self, inputs):
                self.add_loss(jnp.sum(inputs))
                return inputs

        with call_context.entered() as context:
            Sparse()(np.ones((2, 2)))
        assert np.allclose(context.losses, [4.0])
        with pytest.raises(ModelError, match="add_loss of layer 'sparse' must be called inside"):
            Sparse().add_loss(1.0)

    def test_the_wrong_rank_names_the_layer(self):
        with pytest.raises(ModelError, match=r"(?s)input of layer 'd1' does not fit.*\(3,\).*rank 2 at least"):
            layers.Dense(3, name="d1")(np.ones(3))

    def test_another_size_than_at_first_names_the_layer(self):
        layer = layers.Dense(3, name="d1")
        layer(np.ones((1, 4)))
        with pytest.raises(ModelError, match=r"(?s)layer 'd1' does not fit.*4 in dim -1"):
            layer(np.ones((1, 5)))

    def test_a_layer_of_outside_cannot_be_called_in_a_trace(self):
        outside = layers.Dense(2, name="outside")

        class Inner(layers.Layer):
            def call(self, inputs):
                return outside(inputs)

        with pytest.raises(ModelError, match=r"(?s)layer 'outside' is called inside of a model that it is not part of"):
            Inner()(layers.Input((3,)))


def test_the_first_parameter_of_call_is_the_layer_whatever_its_name():
    class Half(layers.Layer):
        def call(this, inputs, training=None, mask=None):
            return inputs / 2 if training else inputs

    assert Half()(kd.Input((3,))).shape == (None, 3)
    np.testing.assert_array_equal(Half()(np.ones((1, 2)), training=True), [[0.5, 0.5]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layers.Dense(3)([kd.Input((3,)), kd.Input((3,))]), "(?s)'dense' must get 1 .*2 input.*Concatenate"),
        (lambda: layers.Dense(3)(None), "(?s)input of layer 'dense' is not an array.*None of type NoneType"),
        (lambda: layers.Dense(3)(np.array([["a"]])), "`inputs` of layer 'dense' must hold numbers"),
        (lambda: kd.Sequential([layers.Dense(1)])(np.array(["a"])), "`inputs` of layer 'sequential' must hold numbers"),
        (
            lambda: kd.Sequential([kd.Input((1,)), layers.Dense(1)])(np.array(["a"])),
            "`inputs` of layer 'sequential' must hold numbers",
        ),
    ],
)
def test_what_is_no_input_is_refused_by_the_name_of_the_layer(call, message):
    with pytest.raises(ModelError, match=message):
        call()


def test_layers_may_be_called_in_functions_that_jax_traces():
    flatten = layers.Flatten()
    assert jax.jit(lambda x: flatten(x))(np.ones((2, 3, 4))).shape == (2, 12)


def test_an_input_layer_that_is_called_gives_nothing() -> None:
    assert kd.layers.InputLayer((3,)).call() is None


@pytest.mark.parametrize("kind", ["all at once", "one by one", "recurrent"])
def test_losses_that_are_added_in_loops_are_losses_of_the_loop(kind: str) -> None:
    class Added(layers.Layer):
        state_size = output_size = 3

        def __init__(self) -> None:
            super().__init__()
            self.count = self.add_weight((), "zeros", trainable=False) if kind == "one by one" else None

        def call(self, inputs: Any, states: Any = None) -> Any:
            self.add_loss(jnp.sum(inputs))
            return inputs if states is None else (inputs, states)

    layer = layers.RNN(Added()) if kind == "recurrent" else layers.TimeDistributed(Added())
    x = np.ones((2, 4, 3), "float32")
    layer(x)
    assert [float(loss) for loss in jax.tree.leaves(layer.losses)] in ([24.0], [6.0] * 4)
    model = kd.Sequential([kd.Input((4, 3)), layer])
    model.compile("sgd", "mse")
    target = x[:, -1] if kind == "recurrent" else x
    np.testing.assert_allclose(model.evaluate(x, target, verbose=0), 24.0, rtol=1e-6)


def test_input_shape_is_said_otherwise_by_now() -> None:
    with pytest.warns(UserWarning, match="Argument `input_shape` is deprecated. Use `shape` instead"):
        layer = kd.layers.InputLayer(input_shape=(2, 3), batch_size=4)
    assert layer.batch_shape == (4, 2, 3)


def test_states_of_generators_have_values_as_variables_do() -> None:
    layer = kd.layers.Dropout(0.5, seed=3)
    assert [np.asarray(variable.value).tolist() for variable in layer.non_trainable_variables] == [[3, 0]]


class Inner(kd.Model):
    def __init__(self) -> None:
        super().__init__(name="own")
        self.dense = layers.Dense(3)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)


@pytest.mark.parametrize(
    "make", [lambda: layers.Dense(3, name="own"), lambda: kd.Sequential([layers.Dense(3)], name="own"), Inner]
)
def test_what_is_first_called_in_a_function_that_jax_traces_builds_itself_outside_of_it(make) -> None:
    layer, x = make(), np.ones((2, 4), np.float32)
    found = jax.jit(lambda x: layer(x))(x)
    np.testing.assert_allclose(found, layer(x), rtol=1e-6)
    expected = layer(x)
    np.testing.assert_allclose(jax.jit(lambda x: layer(x))(x), expected, rtol=1e-6)
