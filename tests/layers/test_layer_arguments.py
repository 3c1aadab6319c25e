"""The arguments of the constructor of a layer, its config and its copies."""

import json
from typing import Any, ClassVar

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError, UnknownNameError
from keras_dist.variables import call_context


class TestArguments:
    @pytest.mark.parametrize(
        ("make", "error", "message"),
        [
            (
                lambda: layers.Dense(0),
                ModelError,
                r"(?s)`units` of layer 'dense' must be an integer of at least 1.*units=0",
            ),
            (lambda: layers.Dense(2.5), ModelError, "`units` of layer 'dense' must be an integer of at least 1"),
            (lambda: layers.Dense(3, unts=3), ModelError, r"argument 'unts' \(did you mean 'units'\?\)"),
            (lambda: layers.Dense(3, "rellu"), UnknownNameError, "did you mean 'relu'"),
            (lambda: layers.Dense(3, kernel_initializer="glorot"), UnknownNameError, "unknown initializer 'glorot'"),
            (lambda: layers.Dense(3, name="a/b"), ModelError, "`name` of a layer must be a string"),
            (
                lambda: layers.Dense(3, dtype="float33"),
                ModelError,
                r"(?s)`dtype` must be a name or numpy dtype.*layer 'dense'",
            ),
            (lambda: layers.Input(3), ModelError, r"(?s)`shape` of Input .* must be a sequence of dims.*shape=\(3,\)"),
            (lambda: layers.Input(), ModelError, "needs `shape` or `batch_shape`"),
            (lambda: layers.Input((0,)), ModelError, "`shape` of Input .* must be integers from 1"),
        ],
    )
    def test_what_cannot_be_is_refused_at_construction(self, make, error, message):
        with pytest.raises(error, match=message) as caught:
            make()
        assert caught.value.given and caught.value.fix

    def test_identifiers_that_are_not_known_name_layer_and_argument(self):
        for argument in ("activation", "kernel_initializer", "bias_regularizer", "kernel_constraint"):
            with pytest.raises(UnknownNameError) as caught:
                layers.Dense(3, name="d1", **{argument: "relux"})
            assert caught.value.__notes__ == [f"for `{argument}` of layer 'd1'"]

    def test_the_loss_of_activities_is_divided_by_the_batch(self):
        with call_context.entered() as context:
            layers.Dense(2, kernel_initializer="ones", activity_regularizer=kd.regularizers.L2(0.5))(np.ones((4, 3)))
        assert np.allclose(context.losses, [0.5 * 9 * 2])

    def test_the_loss_of_activities_of_no_rows_is_0(self):
        with call_context.entered() as context:
            layers.Dense(2, activity_regularizer="l2")(np.ones((0, 3)))
        assert context.losses == [0]

    def test_forgetting_super_init_is_said(self):
        class Bare(layers.Layer):
            def __init__(self):
                self.units = 3

            def call(self, inputs):
                return inputs

        with pytest.raises(ModelError, match=r"Bare.__init__ does not call super\(\).__init__\(\)"):
            Bare()(np.ones(2))

    def test_names_are_those_of_the_class_in_snake_case(self):
        class HTTPBlock2D(layers.Layer):
            pass

        assert [HTTPBlock2D().name, layers.Dense(1).name, layers.InputLayer((2,)).name] == [
            "http_block2d",
            "dense",
            "input_layer",
        ]


def test_a_layer_that_names_its_weights_takes_their_arguments():
    class Shift(layers.Layer):
        weight_initializers: ClassVar = {"shift": "zeros"}

        def build(self, input_shape):
            self.shift = self.add_weight((input_shape[-1],), name="shift")

        def call(self, inputs):
            return inputs + self.shift

    layer = Shift(shift_initializer="ones", shift_regularizer="l2", shift_layout=(None,))
    np.testing.assert_array_equal(layer(np.zeros((1, 2))), [[1, 1]])
    assert isinstance(layer.shift.get_metadata("regularizer"), kd.regularizers.L2)
    assert Shift.from_config(layer.get_config()).get_config() == layer.get_config()
    with pytest.raises(ModelError, match="did you mean 'shift_initializer'"):
        Shift(shift_initialiser="ones")


@pytest.mark.parametrize("trainable", ["yes", 1, None])
def test_trainable_is_true_or_false(trainable):
    with pytest.raises(ModelError, match="trainable"):
        layers.Dense(2, trainable=trainable)


def test_an_activation_may_be_taken_away() -> None:
    x = np.full((1, 3), -1.0, "float32")
    for layer in (kd.layers.Dense(3, "relu"), kd.layers.EinsumDense("ab,bc->ac", 3, "relu")):
        layer.build((None, 3))
        layer.kernel.assign(np.eye(3))
        assert not np.asarray(layer(x)).any()
        layer.activation = None
        np.testing.assert_array_equal(layer(x), x)


def test_configs_hold_tuples_as_constructors_take_them() -> None:
    layer = layers.Conv2D(3, (3, 2), strides=(2, 1), name="c")
    config = layer.get_config()
    assert (config["kernel_size"], config["strides"]) == ((3, 2), (2, 1))
    assert layers.Conv2D(**config).get_config() == config
    saved = json.loads(json.dumps(layers.serialize(layer)))
    assert saved["config"]["kernel_size"]["class_name"] == "__tuple__"
    assert layers.deserialize(saved).get_config() == config


def test_what_a_config_of_ones_own_holds_is_written_down() -> None:
    class Drawn(layers.Layer):
        def __init__(self, initializer: Any = "zeros", sizes: Any = (1,), **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.initializer, self.sizes = kd.initializers.get(initializer), sizes

        def get_config(self) -> dict[str, Any]:
            return {"initializer": self.initializer, "sizes": self.sizes}

    saved = json.loads(json.dumps(layers.serialize(Drawn(kd.initializers.Constant(2.0), (2, 3)))))
    again = layers.deserialize(saved, custom_objects={"Drawn": Drawn})
    assert again.sizes == (2, 3) and again.initializer.get_config() == {"value": 2.0}


@pytest.mark.parametrize("kind", [layers.GRU, layers.LSTMCell])
def test_old_configs_have_implementation_0(kind: Any) -> None:
    assert kind(3, implementation=0).implementation == 0
    with pytest.raises(ModelError, match="implementation"):
        kind(3, implementation=3)
