"""Shapes of outputs as a layer says them, inputs that are tensors, and what a layer was built for."""

import json

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError


def test_a_spec_that_a_layer_says_is_believed():
    class Doubled(layers.Layer):
        def build(self, input_shape):
            self.kernel = self.add_weight((input_shape[-1], 4), name="kernel")

        def call(self, inputs, scale=1.0):
            return inputs @ self.kernel[...] * scale, inputs

        def compute_output_spec(self, inputs, scale=1.0):
            asked.append(inputs.shape)
            return kd.KerasTensor((*inputs.shape[:-1], 4), self.compute_dtype), inputs

    asked = []
    inputs = kd.Input((3,))
    outputs, same = Doubled()(inputs, scale=2.0)
    assert asked == [(None, 3)] and outputs.shape == (None, 4) and same.shape == (None, 3)
    model = kd.Model(inputs, [outputs, same])
    x = np.ones((2, 3), "float32")
    found, kept = model.predict(x, verbose=0)
    np.testing.assert_allclose(found, 2 * x @ np.asarray(model.weights[0]), rtol=1e-6)
    np.testing.assert_array_equal(kept, x)
    assert Doubled().compute_output_shape((None, 3)) == ((None, 4), (None, 3))


def test_a_shape_that_is_told_is_believed_and_the_model_computes_what_the_call_says():
    class Wrong(layers.Layer):
        def call(self, inputs):
            return inputs[:, :1]

        def compute_output_shape(self, input_shape):
            return {"out": [input_shape, (input_shape[0], 7)]} if self.name == "nested" else input_shape

    inputs = kd.Input((3,))
    assert Wrong()(inputs).shape == Wrong().compute_output_shape((None, 3)) == (None, 3)
    assert [tensor.shape for tensor in Wrong(name="nested")(inputs)["out"]] == [(None, 3), (None, 7)]
    assert kd.Model(inputs, Wrong()(inputs)).predict(np.ones((2, 3)), verbose=0).shape == (2, 1)


def test_shapes_of_several_inputs_as_in_keras(keras):
    ours, theirs = layers.MultiHeadAttention(2, 4), keras.layers.MultiHeadAttention(2, 4)
    shapes = {"query_shape": (2, 3, 8), "value_shape": (2, 5, 8)}
    assert ours.compute_output_shape(**shapes) == theirs.compute_output_shape(**shapes) == (2, 3, 8)
    assert ours.compute_output_shape((2, 3, 8), (2, 5, 8), (2, 5, 8)) == (2, 3, 8)
    assert layers.Add().compute_output_shape([[None, 3], [None, 3]]) == (None, 3)
    assert layers.Dense(4).compute_output_shape(input_shape=[None, 3]) == (None, 4)
    model = kd.Sequential([kd.Input((3,)), layers.Dense(4)])
    assert model.compute_output_shape((7, 3)) == model.compute_output_shape(input_shape=(7, 3)) == (7, 4)
    spec = layers.Dense(4).compute_output_spec(kd.KerasTensor((None, 3)))
    assert (spec.shape, spec.dtype, spec.node) == ((None, 4), "float32", None)


class TestInputOfATensor:
    def test_one_made_by_hand_becomes_the_input(self, keras):
        tensor = kd.KerasTensor((None, 3), "float16")
        assert kd.Input(tensor=tensor, name="x") is tensor
        assert kd.Input((3,), tensor=kd.KerasTensor((None, 3))).shape == (None, 3)
        layer = layers.InputLayer(input_tensor=kd.KerasTensor((4, 3)))
        assert layer.batch_shape == keras.layers.InputLayer(input_tensor=keras.KerasTensor((4, 3))).batch_shape
        model = kd.Model(tensor, layers.Dense(2, use_bias=False, kernel_initializer="ones")(tensor))
        np.testing.assert_array_equal(model.predict(np.ones((2, 3), "float16"), verbose=0), np.full((2, 2), 3.0))

    def test_of_a_computed_one_a_model_begins_anew(self):
        x = kd.Input((3,))
        hidden = layers.Dense(4)(x)
        again = kd.Input(tensor=hidden)
        head = kd.Model(again, layers.Dense(2)(again))
        assert head.count_params() == 10 and again.shape == (None, 4)
        assert kd.Model(x, layers.Dense(2)(hidden)).count_params() == 26

    @pytest.mark.parametrize(
        "wrong",
        [
            {"tensor": np.ones((2, 3))},
            {"tensor": kd.KerasTensor((None, 3)), "shape": (4,)},
            {"tensor": kd.KerasTensor((None, 3)), "dtype": "int32"},
            {"tensor": kd.KerasTensor((None, 3)), "batch_shape": (2, 3)},
        ],
        ids=str,
    )
    def test_what_contradicts_it(self, wrong):
        with pytest.raises(ModelError, match=r"`tensor` of Input .* must be a symbolic tensor"):
            kd.Input(**wrong)


class TestBuildConfigs:
    def test_they_build_a_layer_as_in_keras(self, keras):
        ours, theirs = layers.Dense(2), keras.layers.Dense(2)
        assert ours.get_build_config() is None is theirs.get_build_config()
        ours.build((None, 3))
        theirs.build((None, 3))
        config = json.loads(json.dumps(theirs.get_build_config()))
        assert ours.get_build_config() == theirs.get_build_config()
        fresh = layers.Dense(2)
        fresh.build_from_config(config)
        fresh.build_from_config(config)
        assert [weight.shape for weight in fresh.weights] == [(3, 2), (2,)]

    def test_of_several_inputs(self, keras):
        theirs = keras.layers.MultiHeadAttention(2, 4)
        theirs.build((2, 3, 8), (2, 5, 8))
        ours = layers.MultiHeadAttention(2, 4)
        ours.build_from_config(json.loads(json.dumps(theirs.get_build_config())))
        assert ours.count_params() == theirs.count_params()


def test_with_masks_the_call_is_traced():
    class Passes(layers.Layer):
        supports_masking = True

        def call(self, inputs, mask=None):
            assert mask is not None
            return inputs[:, :, :1]

        def compute_output_shape(self, input_shape):
            return input_shape

    outputs = Passes()(layers.Masking()(kd.Input((4, 3))))
    assert outputs.shape == (None, 4, 1) and outputs.mask.shape == (None, 4)
