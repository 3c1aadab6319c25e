"""The base of all layers: lazy building, weights, sublayers, subclasses."""

import inspect
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError


class Scale(layers.Layer):
    """One weight and one statistic."""

    def __init__(self, start: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start = start

    def build(self, input_shape: tuple[int, ...]) -> None:
        self.calls = self.add_weight((), "zeros", trainable=False, name="calls")
        self.factor = self.add_weight(
            (input_shape[-1],), kd.initializers.Constant(self.start), name="factor", regularizer="l2"
        )

    def call(self, inputs: Any) -> Any:
        self.calls[...] = self.calls[...] + 1
        return inputs * self.factor[...]


class Stack(layers.Layer):
    """Sublayers in a list that is filled step by step, and in a dict."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.blocks = []
        for units in (4, 3):
            self.blocks.append(layers.Dense(units))
        self.heads = {"a": layers.Dense(2), "b": layers.Dense(1)}

    def call(self, inputs: Any) -> Any:
        for block in self.blocks:
            inputs = block(inputs)
        return [head(inputs) for head in self.heads.values()]


class TestBuilding:
    def test_weights_exist_from_the_first_call_on(self):
        layer = layers.Dense(3)
        assert not layer.built and layer.weights == []
        assert layer(np.ones((2, 8))).shape == (2, 3)
        assert layer.built and layer.kernel.shape == (8, 3)

    def test_a_weight_before_that_is_an_error_that_says_when_it_will_be(self):
        with pytest.raises(AttributeError, match=r"no attribute 'kernel'; layer 'dense' is not built"):
            _ = layers.Dense(3).kernel
        with pytest.raises(ModelError, match=r"(?s)count_params: layer 'd1' is not built.*build\(input_shape\)"):
            layers.Dense(3, name="d1").count_params()

    def test_other_attributes_that_are_missing_are_no_matter_of_building(self):
        for layer in (layers.Dense(3), layers.LSTM(3)):
            with pytest.raises(AttributeError, match=r"no attribute 'activatoin' \(did you mean 'activation'\?\)$"):
                _ = layer.activatoin  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match=r"no attribute 'factor'; layer 'scale' is not built"):
            _ = Scale().factor

    def test_weights_are_listed_trained_ones_first_then_sublayers(self):
        layer = Scale()
        layer(np.ones((2, 3)))
        assert [w.path for w in layer.weights] == ["factor", "calls"]
        assert [w.path for w in layer.trainable_weights] == ["factor"]
        assert [w.path for w in layer.non_trainable_weights] == ["calls"]
        assert layer.count_params() == 4

    def test_lists_and_dicts_of_layers_are_part_of_it(self):
        layer = Stack()
        a, b = layer(np.ones((2, 5)))
        assert (a.shape, b.shape) == ((2, 2), (2, 1))
        assert [w.path for w in layer.weights] == [
            f"{sub}/{name}" for sub in ("blocks/0", "blocks/1", "heads/a", "heads/b") for name in ("kernel", "bias")
        ]
        assert isinstance(layer.blocks, nnx.List) and isinstance(layer.heads, nnx.Dict)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: {1: layers.Dense(2)}, "keys of a dict of layers or weights must be strings"),
            (lambda: {1: layers.Dense(2), "1": layers.Dense(2)}, "must"),
            (lambda: {1: 2, "a": 3}, "(?s)keys of the dict `heads` of a layer must have an order.*heads={1: 2"),
        ],
    )
    def test_keys_of_dicts_are_strings(self, make, message):
        layer = layers.Layer()
        with pytest.raises(ModelError, match=message):
            layer.heads = make()

    def test_a_weight_that_no_attribute_holds_is_an_error(self):
        class Forgetful(layers.Layer):
            def build(self, input_shape):
                self.add_weight((2,), name="lost")

            def call(self, inputs):
                return inputs

        with pytest.raises(ModelError, match="weights that no attribute holds: 'lost'"):
            Forgetful()(np.ones((1, 2)))

    def test_an_attribute_that_was_none_may_become_a_weight(self):
        class Late(layers.Layer):
            def __init__(self):
                super().__init__()
                self.bias = None

            def build(self, input_shape):
                self.bias = self.add_weight((input_shape[-1],), "ones", name="bias")

            def call(self, inputs):
                return inputs + self.bias[...]

        assert float(Late()(np.zeros((1, 2)))[0, 0]) == 1.0


class TestWeights:
    def test_set_weights_sets_what_get_weights_gives(self):
        layer = layers.Dense(3)
        layer(np.ones((2, 4)))
        values = [np.full((4, 3), 2.0), np.full(3, 1.0)]
        layer.set_weights(values)
        assert all(np.array_equal(a, b) for a, b in zip(layer.get_weights(), values, strict=True))
        assert np.allclose(layer(np.ones((1, 4))), 9.0)

    @pytest.mark.parametrize("values", [[np.ones((4, 3))], [np.ones((3, 4)), np.ones(3)]], ids=["too few", "shape"])
    def test_values_that_do_not_fit_change_nothing(self, values):
        layer = layers.Dense(3)
        layer(np.ones((2, 4)))
        before = layer.get_weights()
        with pytest.raises(ModelError, match="set_weights of layer 'dense': the values do not fit"):
            layer.set_weights(values)
        assert all(np.array_equal(a, b) for a, b in zip(layer.get_weights(), before, strict=True))

    def test_regularizers_of_trained_weights_are_its_losses(self):
        layer = Scale(start=2.0)
        layer(np.ones((1, 3)))
        assert np.allclose(layer.losses, [0.01 * 12])
        layer.trainable = False
        assert layer.losses == []

    def test_what_describe_weight_noted_counts_in_add_weight(self):
        layer = layers.Dense(
            2, kernel_initializer="ones", kernel_regularizer="l1", bias_constraint="non_neg", bias_layout=("model",)
        )
        layer(np.ones((1, 3)))
        kernel, bias = layer.kernel.get_metadata(), layer.bias.get_metadata()
        assert np.array_equal(layer.get_weights()[0], np.ones((3, 2)))
        assert isinstance(kernel["regularizer"], kd.regularizers.L1) and kernel["layout"] is None
        assert isinstance(bias["constraint"], kd.constraints.NonNeg) and bias["layout"] == ("model",)

    def test_an_initializer_of_the_wrong_shape_names_layer_and_weight(self):
        with pytest.raises(
            ModelError, match=r"(?s)initializer of 'kernel' in layer 'd1' must return .*\(4, 3\).*\(2, 2\)"
        ):
            layers.Dense(3, kernel_initializer=lambda shape, dtype: jnp.zeros((2, 2)), name="d1")(np.ones((1, 4)))

    @pytest.mark.parametrize(
        ("args", "kwargs", "error", "message"),
        [
            (("kernel",), {}, ValueError, "`name` is a keyword argument"),
            (("kernel",), {"shape": (3, 4), "initializer": "zeros"}, ValueError, "`name` is a keyword argument"),
            (((3, 4), "zeros", "float32", "kernel"), {}, TypeError, "`trainable` must be True or False"),
            (
                ((3, 4),),
                {"shape": (3, 4)},
                ValueError,
                "`shape` was passed both positionally and as a keyword argument",
            ),
        ],
    )
    def test_the_name_of_a_weight_is_no_shape(self, args, kwargs, error, message):
        with pytest.raises(error, match=message) as caught:
            layers.Layer().add_weight(*args, **kwargs)
        assert caught.value.given and caught.value.fix
        assert list(inspect.signature(layers.Layer.add_weight).parameters)[1:3] == ["shape", "initializer"]


def test_layer_is_one_class_beside_the_one_that_records_arguments():
    ours = [cls.__name__ for cls in layers.Layer.__mro__ if cls.__module__.startswith("keras_dist.")]
    assert ours == ["Layer", "Configurable"]
    with pytest.raises(TypeError, match="does not support __slots__"):  # whose values copies would lack
        type("Slotted", (layers.Layer,), {"__slots__": ("kept",)})


def test_each_public_method_is_a_documented_function_of_a_module_that_needs_no_layer():
    members = {name: member for name, member in vars(layers.Layer).items() if not name.startswith("_")}
    getters = {name: member.fget for name, member in members.items() if isinstance(member, property)}
    methods = {name: member for name, member in members.items() if inspect.isfunction(member)}
    assert {"weights", "losses", "path"} < {*getters} and {"add_weight", "build", "set_weights"} < {*methods}
    for name, function in (getters | methods).items():
        assert function.__module__.startswith("keras_dist.layers.base.") and function.__doc__, name
        assert next(iter(inspect.signature(function).parameters)) == "self"
    assert {name: method.__qualname__ for name, method in methods.items()} == {n: f"Layer.{n}" for n in methods}
    files = {inspect.unwrap(function).__code__.co_filename for function in (getters | methods).values()}
    texts = {name: pathlib.Path(name).read_text() for name in files if not name.endswith("layer.py")}
    assert len(texts) > 3 and not [name for name, text in texts.items() if "layers.base.layer import" in text]


def test_a_foreign_module_is_a_layer():
    layer = layers.NNXLayer(nnx.BatchNorm(3, rngs=nnx.Rngs(0)))
    assert layer.name == "batch_norm"
    assert sorted(w.path for w in layer.weights) == ["bias", "mean", "scale", "var"]
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    assert not np.allclose(layer(x, training=True), layer(x))
    with pytest.raises(ModelError, match=r"`module` must be a flax\.nnx\.Module"):
        layers.NNXLayer(jnp.sum)


def test_layers_without_weights_are_built():
    class Late(layers.ReLU):
        def build(self, input_shape):
            pass

    assert layers.ReLU().built and layers.Dropout(0.5).built
    assert not Late().built and not layers.Dense(1).built and not layers.Layer().built


@pytest.mark.parametrize("of_a_model", [False, True])
def test_weights_that_are_described_and_not_made_are_none(of_a_model):
    layer = layers.Dense(2, use_bias=False)
    with pytest.raises(AttributeError, match="is not built"):
        layer.bias  # noqa: B018
    if of_a_model:
        kd.Sequential([kd.Input((2,)), layer])
    else:
        layer.build((1, 2))
    assert layer.bias is None and layer.kernel.shape == (2, 2)


@pytest.mark.parametrize("of_a_model", [False, True])
def test_variables_end_with_the_states_of_random_generators(of_a_model):
    class Noisy(layers.Layer):
        def __init__(self):
            super().__init__()
            self.generators = [kd.random.SeedGenerator(1), kd.random.SeedGenerator(10)]
            self.dense = layers.Dense(2)

        def call(self, inputs):
            return self.dense(inputs * kd.random.uniform(inputs.shape, seed=self.generators[1]))

    layer = Noisy()
    first, second = layer.variables
    assert first is layer.generators[0].state and not second.trainable
    if of_a_model:
        layer = kd.Sequential([kd.Input((2,)), layer]).layers[0]
    else:
        layer.build((None, 2))
        layer(np.ones((1, 2)))
        layer.generators[1].state.assign([10, 0])
    assert [np.shape(value) for value in layer.non_trainable_variables] == [(2,), (2,)] and len(layer.weights) == 2
    state = [variable.numpy() for variable in layer.non_trainable_variables]
    np.testing.assert_array_equal(state, [[1, 0], [10, 0]])
    x, trained = np.ones((1, 2), "float32"), [variable.numpy() for variable in layer.trainable_variables]
    _, state = layer.stateless_call(trained, state, x)
    other, state = layer.stateless_call(trained, state, x)
    np.testing.assert_array_equal(state, [[1, 0], [10, 2]])
    assert not np.array_equal(other, layer.stateless_call(trained, state, x)[0])


class Doubled(kd.layers.Wrapper):
    def call(self, inputs: Any) -> Any:
        return 2 * self.layer(inputs)


def test_building_a_wrapper_builds_what_it_wraps() -> None:
    inner = kd.layers.Dense(2)
    layer = Doubled(inner)
    layer.build((None, 3))
    assert inner.built
    assert [weight.shape for weight in layer.trainable_weights] == [(3, 2), (2,)]
    model = kd.Sequential([kd.Input((3,)), Doubled(kd.Sequential([kd.layers.Dense(2), kd.layers.Dense(1)]))])
    assert model.predict(np.ones((8, 3), "float32"), verbose=0).shape == (8, 1)
    assert len(model.weights) == 4


def test_shapes_come_to_build_by_the_names_of_what_is_called() -> None:
    class Gated(kd.layers.Layer):
        def build(self, gate_mask_shape: Any, inputs_shape: Any, other_shape: Any = None) -> None:
            self.shapes = (inputs_shape, gate_mask_shape, other_shape)

        def call(self, inputs: Any, gate_mask: Any = None) -> Any:
            return inputs * gate_mask

    layer = Gated()
    layer(np.ones((2, 3)), gate_mask=np.ones((2, 1)))
    assert layer.shapes == ((2, 3), (2, 1), None)
    with pytest.raises(ModelError, match="gate_mask_shape"):
        Gated()(np.ones((2, 3)))


@pytest.mark.parametrize("name", ["b", "c_shape"])
def test_parameters_of_build_that_name_no_argument_are_refused(name: str) -> None:
    class Sum(kd.layers.Layer):
        def call(self, a: Any, b: Any) -> Any:
            return a + b

    exec(f"def build(self, a_shape, {name}): pass", found := {})
    layer = type("Wrong", (Sum,), {"build": found["build"]})()
    with pytest.raises(ModelError, match=name):
        layer(np.ones((2, 3)), np.ones((2, 3)))


def test_a_generator_that_nothing_is_drawn_from():
    class Quiet(layers.Layer):
        def __init__(self):
            super().__init__()
            self.generator = kd.random.SeedGenerator(1)

        def call(self, inputs):
            return 2 * inputs

    assert kd.Sequential([kd.Input((2,)), Quiet()])(np.ones((1, 2), "float32")).tolist() == [[2, 2]]
