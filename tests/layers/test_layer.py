"""The base of all layers: lazy building, weights, names, errors, subclasses."""

import copy
import pickle
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError, UnknownNameError
from keras_dist.layers import call_context


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

    def test_build_gets_the_shapes_by_name_when_it_takes_several(self):
        seen = {}

        class Two(layers.Layer):
            def build(self, query_shape, value_shape):
                seen.update(query=query_shape, value=value_shape)

            def call(self, query, value):
                return query

        Two()(np.ones((2, 3)), value=np.ones((2, 4)))
        assert seen == {"query": (2, 3), "value": (2, 4)}

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

    def test_initial_values_follow_the_seed(self):
        def values():
            kd.set_random_seed(3)
            layer = layers.Dense(4)
            layer(np.ones((1, 4)))
            return layer.get_weights()[0]

        assert np.array_equal(values(), values())
        kd.set_random_seed(3)
        first, second = layers.Dense(4), layers.Dense(4)
        first(np.ones((1, 4)))
        second(np.ones((1, 4)))
        assert not np.array_equal(first.get_weights()[0], second.get_weights()[0])


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
        with pytest.raises(ModelError, match=r"(?s)initializer of 'kernel' in layer 'd1' gave another shape.*\(2, 2\)"):
            layers.Dense(3, kernel_initializer=lambda shape, dtype: jnp.zeros((2, 2)), name="d1")(np.ones((1, 4)))

    def test_frozen_layers_have_no_trained_weights(self):
        layer = Stack()
        layer.trainable = False
        layer(np.ones((1, 2)))
        assert layer.trainable_weights == [] and len(layer.non_trainable_weights) == 8


class TestCalls:
    def test_symbolic_inputs_give_symbolic_outputs(self):
        layer = layers.Dense(3)
        inputs = layers.Input((None, 8))
        outputs = layer(inputs)
        assert outputs.shape == (None, None, 3) and outputs.dtype == "float32"
        assert layer.input is inputs and layer.output is outputs
        assert layer.compute_output_shape((None, 5, 8)) == (None, 5, 3)

    def test_python_operators_work_on_symbolic_tensors(self):
        x, y = layers.Input((4, 3)), layers.Input((4, 3))
        assert ((x + y) * 2.0 - 1.0 / abs(x) ** 2).shape == (None, 4, 3)
        assert x[:, 0].shape == (None, 3)
        assert (-x @ np.ones((3, 2), np.float32)).shape == (None, 4, 2)
        assert (x > 0.0).dtype == "bool"

    def test_training_reaches_sublayers(self):
        class Outer(layers.Layer):
            def __init__(self):
                super().__init__()
                self.drop = layers.Dropout(0.5, seed=1)

            def call(self, inputs):
                return self.drop(inputs)

        x = np.ones((4, 50), np.float32)
        assert np.array_equal(Outer()(x), x)
        assert not np.array_equal(Outer()(x, training=True), x)

    def test_floats_are_cast_to_the_dtype_of_the_layer_and_integers_are_not(self):
        class Show(layers.Layer):
            def call(self, inputs):
                return [value.dtype for value in jax.tree.leaves(inputs)]

        floats, ints = np.ones(2, np.float64), np.ones(2, np.int32)
        assert Show(dtype="bfloat16")([floats, ints]) == [jnp.bfloat16, jnp.int32]
        assert Show(autocast=False)([np.ones(2, np.float16), ints]) == [jnp.float16, jnp.int32]

    def test_masks_go_with_the_tensors(self):
        class Masked(layers.Layer):
            def call(self, inputs):
                return inputs + 0.0

            def compute_mask(self, inputs, previous_mask=None):
                return inputs[..., 0] > 0

            supports_masking = True

        class Reads(layers.Layer):
            supports_masking = True

            def call(self, inputs, mask=None):
                return mask

        class Chain(layers.Layer):
            def __init__(self, between):
                super().__init__()
                self.masked, self.between, self.reads = Masked(), between, Reads()

            def call(self, inputs):
                return self.reads(self.between(self.masked(inputs)))

        x = np.array([[[1.0], [-1.0]]], np.float32)
        assert np.array_equal(Chain(layers.Dense(2))(x), [[True, False]])  # Dense passes masks on

        class Stops(layers.Layer):
            def call(self, inputs):
                return inputs * 1.0

        with pytest.warns(UserWarning, match=r"'stops' \(Stops\) gets a mask and does not support masking") as caught:
            assert Chain(Stops())(x) is None
        assert len(caught) == 1

    def test_add_loss_adds_to_the_call_that_runs(self):
        class Sparse(layers.Layer):
            def call(self, inputs):
                self.add_loss(jnp.sum(inputs))
                return inputs

        with call_context.entered() as context:
            Sparse()(np.ones((2, 2)))
        assert np.allclose(context.losses, [4.0])
        with pytest.raises(ModelError, match="add_loss of layer 'sparse' outside of a call"):
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


class TestArguments:
    @pytest.mark.parametrize(
        ("make", "error", "message"),
        [
            (lambda: layers.Dense(0), ModelError, r"(?s)`units` of layer 'dense' is not a size.*units=0"),
            (lambda: layers.Dense(2.5), ModelError, "`units` of layer 'dense' is not a size"),
            (
                lambda: layers.Dense(3, unts=3),
                ModelError,
                r"argument 'unts' \(did you mean 'units'\?\)",
            ),
            (lambda: layers.Dense(3, "rellu"), UnknownNameError, "did you mean 'relu'"),
            (lambda: layers.Dense(3, kernel_initializer="glorot"), UnknownNameError, "unknown initializer 'glorot'"),
            (lambda: layers.Dense(3, name="a/b"), ModelError, "`name` cannot be the name of a layer"),
            (
                lambda: layers.Dense(3, dtype="float33"),
                ModelError,
                r"(?s)`dtype` is neither an element type nor a policy.*layer 'dense'",
            ),
            (lambda: layers.Input(3), ModelError, r"(?s)`shape` is not a sequence of dims.*shape=\(3,\)"),
            (lambda: layers.Input(), ModelError, "needs `shape` or `batch_shape`"),
            (lambda: layers.Input((0,)), ModelError, "`shape` is not a shape"),
        ],
    )
    def test_what_cannot_be_is_refused_at_construction(self, make, error, message):
        with pytest.raises(error, match=message) as caught:
            make()
        assert caught.value.given and caught.value.expected and caught.value.fix

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

    def test_config_and_back(self):
        layer = layers.Dense(
            3, "relu", kernel_regularizer=kd.regularizers.L2(0.5), kernel_layout=(None, "model"), name="d"
        )
        config = layer.get_config()
        assert config["units"] == 3 and config["activation"] == "relu" and config["kernel_layout"] == [None, "model"]
        again = layers.Dense.from_config(config)
        assert again.get_config() == config and again.kernel_regularizer.l2 == 0.5

    def test_names_are_those_of_the_class_in_snake_case(self):
        class HTTPBlock2D(layers.Layer):
            pass

        assert [HTTPBlock2D().name, layers.Dense(1).name, layers.InputLayer((2,)).name] == [
            "http_block2d",
            "dense",
            "input_layer",
        ]


def test_a_foreign_module_is_a_layer():
    layer = layers.NNXLayer(nnx.BatchNorm(3, rngs=nnx.Rngs(0)))
    assert layer.name == "batch_norm"
    assert sorted(w.path for w in layer.weights) == ["bias", "mean", "scale", "var"]
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    assert not np.allclose(layer(x, training=True), layer(x))
    with pytest.raises(ModelError, match=r"`module` is not a flax\.nnx\.Module"):
        layers.NNXLayer(jnp.sum)


def test_the_first_parameter_of_call_is_the_layer_whatever_its_name():
    class Half(layers.Layer):
        def call(this, inputs, training=None, mask=None):
            return inputs / 2 if training else inputs

    assert Half()(kd.Input((3,))).shape == (None, 3)
    np.testing.assert_array_equal(Half()(np.ones((1, 2)), training=True), [[0.5, 0.5]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layers.Dense(3)([kd.Input((3,)), kd.Input((3,))]), "(?s)'dense'.*2 input.*1 input.*Concatenate"),
        (lambda: layers.Dense(3)(None), "(?s)input of layer 'dense' is no array.*None of type NoneType"),
        (lambda: layers.Dense(3)(np.array([["a"]])), "`inputs` of layer 'dense' holds no numbers"),
        (lambda: kd.Sequential([layers.Dense(1)])(np.array(["a"])), "`inputs` of layer 'sequential' holds no numbers"),
        (
            lambda: kd.Sequential([kd.Input((1,)), layers.Dense(1)])(np.array(["a"])),
            "`inputs` of layer 'sequential' holds no numbers",
        ),
    ],
)
def test_what_is_no_input_is_refused_by_the_name_of_the_layer(call, message):
    with pytest.raises(ModelError, match=message):
        call()


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


def test_layers_are_built_by_a_call_on_symbolic_tensors():
    layer = layers.Dense(3)
    assert not layer.built
    layer(kd.KerasTensor((None, 4)))
    assert layer.built and [weight.shape for weight in layer.weights] == [(4, 3), (3,)]
    inputs = kd.Input((4,))
    layer = layers.Dense(3)
    outputs = layer(inputs)
    kernel = layer.kernel.numpy()
    np.testing.assert_array_equal(kd.Model(inputs, outputs).get_weights()[0], kernel)


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


@pytest.mark.parametrize("trainable", ["yes", 1, None])
def test_trainable_is_true_or_false(trainable):
    with pytest.raises(ModelError, match="trainable"):
        layers.Dense(2, trainable=trainable)


def test_layers_without_weights_may_be_called_in_functions_that_jax_traces():
    flatten = layers.Flatten()
    assert jax.jit(lambda x: flatten(x))(np.ones((2, 3, 4))).shape == (2, 12)
    with pytest.raises(ModelError, match="inside of a model that it is not part of"):
        jax.jit(layers.Dense(1).__call__)(np.ones((2, 3)))


def test_an_activation_may_be_taken_away() -> None:
    x = np.full((1, 3), -1.0, "float32")
    for layer in (kd.layers.Dense(3, "relu"), kd.layers.EinsumDense("ab,bc->ac", 3, "relu")):
        layer.build((None, 3))
        layer.kernel.assign(np.eye(3))
        assert not np.asarray(layer(x)).any()
        layer.activation = None
        np.testing.assert_array_equal(layer(x), x)


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


def test_an_input_layer_that_is_called_gives_nothing() -> None:
    assert kd.layers.InputLayer((3,)).call() is None


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


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
@pytest.mark.parametrize("is_in_model", [False, True])
def test_copies_of_layers_know_their_config(copied: Any, is_in_model: bool) -> None:
    layer = kd.layers.Dense(2, "relu", name="d")
    if is_in_model:
        model = kd.Sequential([kd.Input((3,)), layer])
        model.build()
    again = copied(layer)
    assert again.get_config() == layer.get_config()
    assert again.get_config()["units"] == 2
