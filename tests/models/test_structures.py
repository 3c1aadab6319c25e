"""Inputs in other structures than a model's, parts of graphs, and models that are made again."""

import warnings

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError

ONES, ZEROS = np.ones((2, 3), "float32"), np.zeros((2, 3), "float32")


def difference(first, second):
    one, other = kd.Input((3,), name=first), kd.Input((3,), name=second)
    return kd.Model({first: one, second: other}, layers.Subtract()([one, other]))


def test_lists_for_a_dict_of_inputs_are_told_of_once():
    model = difference("a", "b")
    with pytest.warns(UserWarning, match="structure of `inputs` doesn't match") as told:
        np.testing.assert_array_equal(model([ONES, ZEROS]), ONES)
        model.predict((ONES, ZEROS), verbose=0)
        model.predict([ONES, ZEROS], verbose=0)
    assert len(told) == 2, "of a list and of a tuple"
    with pytest.raises(ModelError, match="inputs do not fit") as caught:
        difference("b", "a")([ONES, ZEROS])
    assert "['b', 'a']" in caught.value.expected


def test_further_items_of_a_dict_are_told_of():
    model = difference("a", "b")
    with pytest.warns(UserWarning, match=r"structure of `inputs` doesn't match.*\['a', 'b', 'c'\]"):
        model({"a": ONES, "b": ZEROS, "c": ONES})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model({"b": ONES, "a": ZEROS})


def test_parts_of_a_graph_begin_with_an_input_layer():
    inputs = kd.Input((3,))
    inner = layers.Dense(4, name="first")(inputs)
    outputs = layers.Dense(5, name="second")(inner)
    whole, part = kd.Model(inputs, outputs), kd.Model(inner, outputs)
    assert [type(layer) for layer in part.layers] == [layers.InputLayer, layers.Dense]
    assert part.layers[0] is part.layers[0] and part.layers[0].output.shape == (None, 4)
    np.testing.assert_allclose(part(whole.get_layer("first")(ONES)), whole(ONES), rtol=1e-6)


class Scaled(kd.Model):
    def __init__(self, *args, factor=1, **kwargs):
        super().__init__(*args, **kwargs)
        self.factor = factor


def test_subclasses_that_hand_their_arguments_over_are_written_as_graphs():
    inputs = kd.Input((3,), name="x")
    outputs = layers.Dense(2, name="head")(inputs)
    for model in (Scaled(inputs, outputs, factor=3), Scaled(inputs=inputs, outputs=outputs, factor=3)):
        again = Scaled.from_config(model.get_config())
        assert (again.factor, [weight.path for weight in again.weights]) == (3, ["head/kernel", "head/bias"])
    assert kd.models.clone_model(model).factor == 3
