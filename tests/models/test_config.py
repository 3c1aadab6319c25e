"""Models as configs of plain values and back; clones."""

import copy

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers, models, saving
from keras_dist.errors import ConfigError, ModelError
from tests import layouts
from tests.soak import LARGE, crossed, often

X = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")
Z = np.random.default_rng(1).normal(size=(4, 8)).astype("float32")


@saving.register_keras_serializable("tests")
class Gate(layers.Layer):
    """Takes two tensors by keyword; a constructor that takes no name."""

    def __init__(self, units):
        super().__init__()
        self.units = units
        self.dense = layers.Dense(units)

    def call(self, inputs, by=None, factor=1.0):
        return self.dense(inputs) * by["gate"] * factor


@saving.register_keras_serializable("tests")
class Net(kd.Model):
    def __init__(self, width, head=None, **kwargs):
        super().__init__(**kwargs)
        self.d1 = layers.Dense(width, activation="relu")
        self.head = head

    def call(self, inputs):
        hidden = self.d1(inputs)
        return hidden if self.head is None else self.head(hidden)


@saving.register_keras_serializable("tests")
class Scaled(kd.Model):
    """Made of a graph, with an argument of its own."""

    def __init__(self, inputs, outputs, scale=1.0, **kwargs):
        super().__init__(inputs, outputs, **kwargs)
        self.scale = scale


@saving.register_keras_serializable("tests")
class Head(layers.NNXLayer):
    def __init__(self, features, **kwargs):
        super().__init__(nnx.Linear(8, features, rngs=nnx.Rngs(0)), **kwargs)


def chain():
    x = kd.Input((8,), name="x")
    return kd.Model(x, layers.Dense(3)(layers.Dense(16, "relu", name="d1")(x)), name="chain"), X


def several_inputs():
    a, b = kd.Input((8,), name="a"), kd.Input((8,), name="b")
    d1 = layers.Dense(8, name="d1")
    return kd.Model([a, b], {"sum": layers.Dense(2)(d1(a) + d1(b)), "first": d1(a)}), [X, Z]


def inputs_by_name():
    """Dicts in, nested outputs; operators, and tensors by keyword."""
    a, b = kd.Input((8,), name="a"), kd.Input((8,), name="b")
    hidden = layers.Dense(8, name="d1")(a)
    parts = 2 * hidden[:, ::2] - hidden[..., 4:] / 3.0
    computed = [abs(-parts), hidden[:, None, 1:4] ** 2, hidden > np.float32(0), 1 - hidden[:, -1]]
    gated = Gate(8)(hidden, by={"gate": b}, factor=0.5)
    return kd.Model({"b": b, "a": a}, (hidden * b, [computed, gated])), {"a": X, "b": Z}


def calls_that_take_turns():
    """From the middle of a graph."""
    x = kd.Input((8,))
    start = layers.Dense(8, name="before")(x)
    one, other = layers.Dense(8, name="d1"), layers.Dense(8, name="d2")
    back = other(one(start))
    late = layers.Dense(4, name="late")(one(back))
    return kd.Model(start, [late, layers.Dense(3, name="later")(back)]), X


def nested():
    inner = kd.Sequential([kd.Input((8,)), layers.Dense(8, name="d1"), layers.BatchNormalization()])
    x = kd.Input((8,))
    late = kd.Sequential([layers.Dense(3), layers.Dense(4)])
    return kd.Model(x, late(inner(x)) + Net(4)(inner(x))), X


def shared_by_nested_models():
    x, code = kd.Input((8,), name="x"), kd.Input((4,), name="code")
    inner = layers.Dense(4)
    encoder = kd.Model(x, inner(layers.Dense(8, name="d1")(x)), name="encoder")
    decoder = kd.Model(code, layers.Dense(8, name="d1")(code), name="decoder")
    both = kd.Model(x, decoder(encoder(x)), name="both")
    return kd.Model(x, [both(x), decoder(layers.Dense(4)(x)), inner(both(x))]), X


def sequential():
    return kd.Sequential([kd.Input((8,), name="x"), layers.Dense(8, name="d1"), layers.Dense(2)], name="chain"), X


def sequential_without_input():
    model = kd.Sequential([layers.Dense(8, name="d1"), layers.Dropout(0.5), Head(2)])
    model.build((None, 8))
    return model, X


def subclass():
    model = Net(8, head=layers.Dense(2, name="top"), name="mine")
    model(X)
    return model, X


def graph_of_a_subclass():
    x = kd.Input((8,))
    return Scaled(x, layers.Dense(4, name="d1")(x), scale=3.0), X


FORMS = [
    several_inputs,
    inputs_by_name,
    calls_that_take_turns,
    nested,
    shared_by_nested_models,
    sequential,
    sequential_without_input,
    subclass,
    graph_of_a_subclass,
]


def paths_of(model):
    return [weight.path for weight in model.weights]


@pytest.mark.first_cases(2)
@often
@pytest.mark.parametrize(
    ("form", "where"),
    crossed(FORMS, ["data=2,model=4", *["one device"] * LARGE]),
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_a_model_comes_back_from_json_and_as_a_clone(form, where):
    with layouts.on(where, {".*d1/kernel": (None, "model")} if where != "one device" else {}).scope():
        model, x = form()
        again, clone = models.model_from_json(model.to_json()), models.clone_model(model)
    layout = [weight.layout.axes for weight in model.weights]
    assert any("model" in axes for axes in layout) == (where != "one device")
    for other in (again, clone):
        assert type(other) is type(model)
        assert (other.name, paths_of(other), other.get_config()) == (model.name, paths_of(model), model.get_config())
        assert [weight.layout.axes for weight in other.weights] == layout
    values = model.trainable_variables, model.non_trainable_variables
    expected, *found = jax.jit(lambda: [one.stateless_call(*values, x)[0] for one in (model, again, clone)])()
    for outputs in found:
        assert jax.tree.structure(outputs) == jax.tree.structure(expected)
        jax.tree.map(np.testing.assert_array_equal, outputs, expected)
    before = model.weights[0].numpy()
    clone.weights[0].assign(before + 1)
    np.testing.assert_array_equal(model.weights[0].numpy(), before)


@pytest.fixture(scope="module")
def config_of_a_chain():
    return chain()[0].get_config()


def test_explicit_layouts_survive():
    mesh = kd.DeviceMesh("data=2,model=4")
    with kd.ModelParallel(kd.LayoutMap(mesh), batch_dim_name="data").scope():
        layout = kd.TensorLayout((("data", "model"), None), mesh)
        model = kd.Sequential([kd.Input((8,)), layers.Dense(3, kernel_layout=layout, name="d1")])
        again = models.model_from_json(model.to_json())
        assert model.get_config()["layers"][1]["config"]["kernel_layout"] == [["data", "model"], None]
        assert again.weights[0].layout.axes == (("data", "model"), None)


def test_frozen_layers_stay_frozen():
    model, _ = chain()
    model.get_layer("d1").trainable = False
    model.compile("sgd", "mse")
    again = models.model_from_json(model.to_json())
    assert [weight.path for weight in again.trainable_weights] == ["dense/kernel", "dense/bias"]
    model.trainable = False
    assert models.model_from_json(model.to_json()).trainable is False


def test_what_waits_for_its_input_waits_again_and_the_dtype_of_an_input_survives():
    model = kd.Sequential([layers.Dense(8), layers.Dense(2)])
    again = models.model_from_json(model.to_json())
    assert not again.built
    again.build((4, 8))
    assert paths_of(again) == ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"]
    model = Net(8)
    model(X.astype("int32"))
    assert model.get_build_config() == {"input_shape": [None, 8], "input_dtype": "int32"}
    assert models.model_from_json(model.to_json()).built


class TestRefused:
    def test_a_module_of_somebody_else(self):
        model = kd.Sequential([kd.Input((8,)), nnx.Linear(8, 2, rngs=nnx.Rngs(0))])
        with pytest.raises(ConfigError, match="layer 'linear' cannot be serialized") as caught:
            model.get_config()
        assert "Linear" in caught.value.given and "subclass NNXLayer" in caught.value.fix

    def test_a_model_of_a_module(self):
        model = kd.Model.from_nnx(lambda rngs: nnx.Linear(8, 2, rngs=rngs))
        for method in (model.get_config, model.to_json, lambda: models.clone_model(model)):
            with pytest.raises(ConfigError, match=r"flax\.nnx module has no config"):
                method()

    def test_a_class_that_is_not_registered(self):
        class Own(layers.Layer):
            def call(self, inputs):
                return inputs

        x = kd.Input((8,))
        model = kd.Model(x, Own()(x))
        with pytest.raises(ConfigError, match="'Own', which is not known"):
            models.model_from_json(model.to_json())
        again = models.model_from_json(model.to_json(), {"Own": Own})
        assert isinstance(again.layers[1], Own)
        assert isinstance(kd.Model.from_config(model.get_config(), {"Own": Own}).layers[1], Own)
        assert isinstance(models.clone_model(model).layers[1], Own)

    @pytest.mark.parametrize(
        ("damage", "said"),
        [
            (lambda config: config["layers"].pop(1), "depend on missing tensors"),
            (lambda config: config["layers"].append("dense"), "a layer in the config"),
            (lambda config: config["layers"][1].pop("inbound_nodes"), "a layer in the config"),
            (lambda config: config.update(output_layers=["dense", 1, 0]), "input or output that no call computes"),
            (
                lambda config: config["layers"][1].update(
                    module="keras_dist.losses", class_name="Huber", config={}, registered_name=None
                ),
                "contains an entry that is not a layer",
            ),
            (
                lambda config: config["layers"][1].update(class_name="Operation", config={"name": "system"}),
                "the unknown operation",
            ),
        ],
    )
    def test_a_damaged_config(self, damage, said, config_of_a_chain):
        config = copy.deepcopy(config_of_a_chain)
        damage(config)
        with pytest.raises(ConfigError, match=said) as caught:
            kd.Model.from_config(config)
        assert caught.value.given and caught.value.fix

    @pytest.mark.parametrize(
        ("text", "said"), [("{", "must be JSON"), (None, "must be JSON"), ("[1]", "must describe a model")]
    )
    def test_what_is_no_json_of_a_model(self, text, said):
        with pytest.raises(ConfigError, match=said):
            models.model_from_json(text)


class TestClones:
    def test_other_inputs(self):
        model, _ = several_inputs()
        a, b = kd.Input((8,), name="left"), kd.Input((8,), name="right")
        clone = models.clone_model(model, input_tensors=[a, b])
        assert clone.input_names == ["left", "right"]
        assert clone.inputs[0] is a
        with pytest.raises(ModelError, match="`input_tensors` must be a symbolic tensor"):
            models.clone_model(model, input_tensors=[a])

    def test_other_layers(self):
        def wider(layer):
            config = layer.get_config()
            return type(layer).from_config(config | {"units": 5} if "units" in config else config)

        for model, _ in (sequential(), chain()):
            assert models.clone_model(model, clone_function=wider).output_shape == (None, 5)
        with pytest.raises(ModelError, match="does not return a layer"):
            models.clone_model(model, clone_function=lambda layer: None)

    def test_models_among_the_layers(self):
        seen = []

        def same(layer):
            seen.append(layer.name)
            return type(layer).from_config(layer.get_config())

        inner = kd.Sequential([kd.Input((8,)), layers.Dense(8, name="d1"), layers.BatchNormalization()])
        model = kd.Sequential([kd.Input((8,)), inner])
        clone = models.clone_model(model, clone_function=same, recursive=True)
        assert "d1" in seen and "batch_normalization" in seen
        assert paths_of(clone) == paths_of(model)

    def test_what_cannot_be_cloned(self):
        with pytest.raises(ModelError, match="`clone_function` does not go with this model"):
            models.clone_model(subclass()[0], clone_function=lambda layer: layer)
        with pytest.raises(ModelError, match="`model` must be a Model"):
            models.clone_model(layers.Dense(3))

    def test_a_compiled_model_is_compiled(self):
        model, x = chain()
        model.compile(optax.sgd(0.1), lambda y, p: (y - p) ** 2, metrics=["mae"])
        clone = models.clone_model(model)
        clone.set_weights(model.get_weights())
        y = np.ones((4, 3), "float32")
        assert clone.evaluate(x, y, verbose=0) == model.evaluate(x, y, verbose=0)
