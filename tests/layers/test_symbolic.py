"""Symbolic tensors: what they are, and what cannot be done with them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError


def test_a_symbolic_tensor_is_a_shape_and_an_element_type():
    tensor = kd.KerasTensor((None, 3), "int32", name="x")
    assert (tensor.shape, tensor.dtype, tensor.ndim, tensor.name) == ((None, 3), "int32", 2, "x")
    assert not tensor.sparse and not tensor.ragged
    assert isinstance(kd.Input((3,)), kd.KerasTensor)
    for name in ("shape", "dtype"):
        with pytest.raises(AttributeError):
            setattr(tensor, name, (2, 3))
    with pytest.raises(ModelError, match="sparse"):
        kd.KerasTensor((2,), sparse=True)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (np.asarray, "NumPy array"),
        (jnp.sum, "JAX function"),
        (jax.nn.relu, "JAX function"),
        (jax.nn.softmax, "JAX function"),
        (jax.lax.exp, "JAX function"),
        (bool, "a boolean"),
        (list, "iterating"),
        (int, "an int"),
        (float, "a float"),
    ],
)
def test_a_symbolic_tensor_has_no_values_and_its_error_tells_the_way_out(use, message):
    with pytest.raises(ModelError, match=rf"(?s){message}.*layers\.Lambda"):
        use(layers.Input((4,)))


UNKNOWN = layers.Input((None, 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(lambda: layers.LSTM(4)(layers.Input((5,))), r"shape \(None, 5\)", id="LSTM of rank 2"),
        pytest.param(lambda: layers.LSTM(4)(layers.LSTM(4)(UNKNOWN)), "return_sequences=True", id="LSTM of LSTM"),
        pytest.param(lambda: layers.Conv2D(4, 3)(UNKNOWN), r"shape \(None, None, 4\)", id="rank of Conv2D"),
        pytest.param(
            lambda: layers.MaxPooling2D(8)(layers.Input((4, None, 3))),
            r"output of shape \(None, 0, None, 3\)",
            id="pool",
        ),
        pytest.param(lambda: layers.Cropping2D(3)(layers.Input((None, 4, 3))), r"\(None, None, 0, 3\)", id="crop"),
        pytest.param(
            lambda: layers.Reshape((7, 11))(UNKNOWN),
            r"must be None(.|\n)*\(7, 11\) for an input of shape \(None, None, 4\)",
            id="reshape",
        ),
        pytest.param(lambda: UNKNOWN + layers.Input((None, 5)), r"\(None, None, 4\), \(None, None, 5\)", id="sum"),
        pytest.param(
            lambda: layers.Lambda(lambda x: jnp.ones(7) + x[:, ::2, 0])(UNKNOWN), r"\(7,\).*\(None, None\)", id="JAX"
        ),
    ],
)
def test_errors_show_dims_of_unknown_size_as_none(call, message):
    with pytest.raises((ModelError, ValueError, TypeError), match=message) as caught:
        call()
    text = "".join([str(caught.value), *caught.value.__notes__])
    assert not any(number in text for number in ("3360", "6720", "13440", "3354", "1680", "420"))


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x if x.sum() > 0 else -x, id="bool"),
        pytest.param(lambda x: np.sin(x), id="numpy"),
        pytest.param(lambda x: x * float(x[0, 0]), id="float"),
        pytest.param(lambda x: x[x > 0], id="boolean index"),
        pytest.param(lambda x: [1, 2][x.astype(int)[0, 0]] * x, id="index"),
    ],
)
def test_code_that_needs_values_is_named_with_its_line_and_the_way_out(function):
    message = r"(?s)layer 'mine' needs the values.*test_symbolic\.py:\d+: .*lambda x.*jnp\.where"
    with pytest.raises(ModelError, match=message) as caught:
        layers.Lambda(function, name="mine")(layers.Input((4,)))
    assert isinstance(caught.value, TypeError)


class Pooled(layers.Layer):
    """The sum of the steps that count; it cannot be called without a mask."""

    supports_masking = True

    def build(self, input_shape):
        self.scale = self.add_weight((), "ones", name="scale")

    def call(self, inputs, mask: Any = None):
        return jnp.sum(inputs * mask[..., None], axis=1) * self.scale

    def compute_mask(self, inputs, previous_mask=None):
        return None


class FirstTwo(layers.Layer):
    supports_masking = True

    def call(self, inputs):
        return inputs

    def compute_mask(self, inputs, previous_mask=None):
        return jnp.arange(inputs.shape[1]) < jnp.full((inputs.shape[0], 1), 2)


def test_a_layer_that_needs_a_mask_gets_that_of_its_symbolic_input():
    inputs = kd.Input((4,), dtype="int32")
    embedded = layers.Embedding(9, 3, embeddings_initializer="ones", mask_zero=True)(inputs)
    model = kd.Model(inputs, Pooled()(embedded))
    np.testing.assert_array_equal(model.predict(np.array([[1, 2, 0, 0], [1, 0, 0, 0]]), verbose=0)[:, 0], [2, 1])
    assert (embedded.mask.shape, embedded.mask.dtype, model.output.mask) == ((None, 4), "bool", None)


def test_masks_of_layers_of_ones_own_go_through_the_graph_of_symbolic_tensors():
    inputs = kd.Input((None, 3))
    sequences, *states = layers.LSTM(2, return_sequences=True, return_state=True)(FirstTwo()(inputs))
    assert sequences.mask.shape == (None, None) and [state.mask for state in states] == [None, None]
    assert (sequences * 2).mask is None
    model = kd.Model(inputs, Pooled()(sequences))
    assert model.predict(np.ones((2, 5, 3)), verbose=0).shape == (2, 2)


def test_a_layer_that_another_builds_as_it_was_called_gets_the_mask_of_that_call():
    class Scaled(layers.Layer):
        def __init__(self, pooled, **kwargs):
            super().__init__(**kwargs)
            self.pooled = pooled

        def call(self, inputs):
            return inputs * self.pooled.scale

    pooled = Pooled()
    inputs = kd.Input((4, 3))
    _ = pooled(layers.Masking()(inputs))
    model = kd.Model(inputs, Scaled(pooled)(inputs))
    assert model.predict(np.ones((2, 4, 3)), verbose=0).shape == (2, 4, 3)


class Block(layers.Layer):
    """A layer around another."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = layers.Dense(3)

    def call(self, inputs):
        return self.inner(inputs)


@pytest.mark.parametrize("make", [lambda: layers.Dense(3), lambda: layers.Conv1D(3, 1), Block], ids=["d", "conv", "in"])
def test_a_layer_that_was_called_asks_the_same_of_its_next_input(make):
    layer = make()
    layer(kd.Input((5, 2)))
    assert layer(kd.Input((6, 2))).shape == (None, 6, 3)
    with pytest.raises(ModelError, match="does not fit"):
        layer(kd.Input((5, 4)))


def test_a_layer_that_lives_in_a_model_asks_the_same_of_its_next_input():
    class Net(kd.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, inputs):
            return self.dense(inputs)

    model = Net()
    model(np.ones((1, 2)))
    with pytest.raises(ModelError, match="does not fit"):
        model.dense(kd.Input((4,)))


def test_an_unknown_dim_is_traced_once_as_a_symbolic_dim():
    shapes = []

    def call(x):
        shapes.append(x.shape)
        return x[:, 1:]

    assert layers.Lambda(call)(layers.Input((None, 4))).shape == (None, None, 4)
    ((batch, steps, channels),) = shapes
    assert not isinstance(batch, int) and not isinstance(steps, int) and channels == 4


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        (lambda x: x * int(x.shape[1]), (None, None, 4)),
        (lambda x: x.reshape(-1, 2, 4), (None, 2, 4)),
        (lambda x: jnp.stack([x[:, step] for step in range(min(x.shape[1], 3))], 1), (None, 3, 4)),
        (lambda x: jnp.ones((x.shape[0], 3360)) * x[:, :1, 0], (None, 3360)),
    ],
)
def test_dims_that_must_be_integers_are_unknown_all_the_same(call, shape):
    assert layers.Lambda(call)(layers.Input((None, 4))).shape == shape


@pytest.mark.parametrize("kind", [nnx.Linear, nnx.BatchNorm, nnx.LayerNorm])
def test_a_module_called_on_a_symbolic_tensor_names_a_way_that_works(kind: Any) -> None:
    sizes, inputs = (4, 3)[: 2 if kind is nnx.Linear else 1], kd.Input((4,))
    module = kind(*sizes, rngs=nnx.Rngs(0))
    with pytest.raises(ModelError, match="KerasTensor") as caught:
        module(inputs)
    assert "layers.NNXLayer(module)(tensor)" in caught.value.fix
    assert layers.NNXLayer(module)(inputs).shape == (None, sizes[-1])


def test_a_variable_of_nnx_is_not_a_constant_of_the_model():
    class Own(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(np.ones((3, 2), "float32"))

        def __call__(self, x):
            return x @ self.w

    with pytest.raises(ModelError, match="would not train the variable") as caught:
        Own()(kd.Input((3,)))
    assert "layers.NNXLayer(module)(tensor)" in caught.value.fix
    model = kd.Sequential([kd.Input((3,)), layers.NNXLayer(Own())])
    assert len(model.trainable_variables) == 1
