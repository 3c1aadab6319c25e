"""Lambda, Masking, Identity, Wrapper."""

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import layers, models, saving
from keras_dist.errors import ConfigError, ModelError
from keras_dist.variables import call_context

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4)), jnp.float32)


@saving.register_keras_serializable("tests")
def scaled(x: Any, factor: float = 2.0) -> Any:
    return x * factor


class Twice(layers.Wrapper):
    def call(self, inputs: Any) -> Any:
        return self.layer(self.layer(inputs))


def test_a_named_function_comes_back_from_a_config() -> None:
    layer = layers.Lambda(scaled, output_shape=(3, 4), arguments={"factor": np.full(4, 3.0, "float32")}, name="f")
    again = layers.Lambda.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert again.function is scaled
    np.testing.assert_array_equal(again(X), X * 3)


def test_custom_objects_name_functions() -> None:
    def shifted(x: Any) -> Any:
        return x + 1

    config = layers.Lambda(shifted).get_config()
    with pytest.raises(ConfigError, match="shifted"):
        layers.Lambda.from_config(config)
    assert layers.Lambda.from_config(config, custom_objects={"shifted": shifted}).function is shifted


@pytest.mark.parametrize("safe_mode", [True, False])
def test_a_lambda_comes_back_where_the_name_of_its_layer_gives_it(safe_mode: bool) -> None:
    layer = layers.Lambda(lambda x, n=2: x * n, arguments={"n": 3}, name="f")
    with pytest.raises(ConfigError, match="holds a lambda: the function of the layer 'f'") as caught:
        layers.Lambda.from_config(layer.get_config(), safe_mode=safe_mode)
    assert "custom_objects={'f': function}" in caught.value.fix
    assert "@saving.register_keras_serializable()" in caught.value.fix
    described = saving.serialize_keras_object(layer)
    with pytest.raises(ConfigError, match="the function of the layer 'f'"):
        saving.deserialize_keras_object(described, safe_mode=safe_mode)
    again = saving.deserialize_keras_object(described, {"f": lambda x, n: x * n})
    np.testing.assert_array_equal(again(X), X * 3)


def test_copies_in_a_process_keep_lambdas() -> None:
    by = 2.0
    model = models.Sequential([layers.Input((4,)), layers.Lambda(lambda x: x * by), layers.Dense(2, lambda x: x + by)])
    x = np.ones((1, 4), "float32")
    for again in (models.clone_model(model), copy.deepcopy(model)):
        again.set_weights(model.get_weights())
        np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))
    both = layers.Bidirectional(layers.SimpleRNN(2, activation=lambda x: x))
    assert both.backward_layer.activation is both.forward_layer.activation


def test_training_and_masks_are_filled_in() -> None:
    def told(x: Any, training: bool = False, mask: Any = None) -> Any:
        return x * (2 if training else 1) * mask[..., None]

    mask = jnp.array([[True, True, False]] * 2)
    with call_context.entered(True) as context:
        context.set_mask(X, mask)
        outputs = layers.Lambda(told, mask=~mask)(X)
        assert context.mask_of(outputs).tolist() == (~mask).tolist()
        with pytest.warns(UserWarning, match="'lambda' \\(Lambda\\) gets a mask"):
            assert context.mask_of(layers.Lambda(jnp.square)(X)) is None
    np.testing.assert_array_equal(outputs, X * 2 * mask[..., None])


def test_arrays_of_a_lambda_are_no_state_of_the_model() -> None:
    table = jnp.arange(4.0)
    layer = layers.Lambda(lambda x, y: x + y, arguments={"y": table})
    model = models.Sequential([layers.Input((4,)), layer, layers.Lambda(jax.nn.relu), layers.Lambda(max_of)])
    assert model.weights == []
    assert layer.arguments["y"] is table
    assert model.predict(np.zeros((1, 4)), verbose=0).tolist() == [3.0]
    assert layers.Lambda(lambda x: jnp.sum(x, axis=1))(layers.Input((None, 3))).shape == (None, 3)


def max_of(x: Any) -> Any:
    return jnp.max(x, axis=-1)


def test_layers_that_a_lambda_captures_are_refused() -> None:
    dense = layers.Dense(3)
    with pytest.raises(ModelError, match="not part of"):
        models.Sequential([layers.Input((4,)), layers.Lambda(lambda x: dense(x))])
    built = layers.Dense(3)
    models.Sequential([layers.Input((4,)), built])
    with pytest.raises(ModelError, match="not part of"):
        models.Sequential([layers.Input((4,)), layers.Lambda(lambda x: built(x))])


def test_identity_takes_any_structure() -> None:
    layer = layers.Identity()
    first, second = layer([layers.Input((2,)), layers.Input((3,), dtype="int32")])
    assert (first.shape, second.shape, second.dtype) == ((None, 2), (None, 3), "int32")


def test_a_wrapper_holds_its_layer_under_its_name() -> None:
    wrapper = Twice(layers.Dense(4, name="inner"))
    model = models.Sequential([layers.Input((4,)), wrapper])
    assert [weight.path for weight in model.weights] == ["twice/inner/kernel", "twice/inner/bias"]
    kernel, bias = model.get_weights()
    x = np.ones((1, 4), "float32")
    np.testing.assert_allclose(model.predict(x, verbose=0), (x @ kernel + bias) @ kernel + bias, rtol=1e-5)
    assert wrapper.layer.units == 4
    with saving.custom_object_scope({"Twice": Twice}):
        again = Twice.from_config(wrapper.get_config())
    assert (again.layer.name, again.layer.units) == ("inner", 4)
