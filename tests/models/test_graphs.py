"""Functional models: what may be a graph of calls, and what is none."""

import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import LayoutError, ModelError
from tests.layouts import on
from tests.networks import CLASSES, FEATURES, LOSS, blobs


class TestGraphs:
    def test_inputs_come_in_the_order_of_the_model_or_by_name(self):
        a, b = kd.Input((2,), name="a"), kd.Input((2,), name="b")
        model = kd.Model([b, a], {"difference": b - 2.0 * a, "half": b / 2.0})
        x, y = np.ones((3, 2), np.float32), np.full((3, 2), 5.0, np.float32)
        found = model((y, x)), *(model.predict(given, verbose=0) for given in ([y, x], {"a": x, "b": y}))
        for outputs in found:
            assert np.allclose(outputs["difference"], 3.0) and np.allclose(outputs["half"], 2.5)

    def test_inputs_may_be_nested(self):
        def nested(make):
            return {"a": make("a"), "b": {"d": [make("d")], "c": make("c")}}

        def symbols(prefix):
            return nested(lambda name: kd.Input((2,), name=prefix + name))

        inputs = symbols("inner_")
        model = kd.Model(inputs, inputs["a"] - inputs["b"]["c"] * inputs["b"]["d"][0])
        outer = kd.Model(given := symbols(""), model(given))
        x = nested(lambda name: np.full((3, 2), {"a": 9.0, "c": 2.0, "d": 3.0}[name], np.float32))
        assert np.allclose(outer.predict(x, verbose=0), 3.0) and np.allclose(model(x), 3.0)
        with pytest.raises(ModelError, match=r"'b': a dict with \['c'\]\n.*'b': a dict with \['c', 'd'\]"):
            model({"a": x["a"], "b": {"c": x["a"]}})
        with pytest.raises(ModelError, match=r"'b': .*\n.*{'c': 'inner_c', 'd': \['inner_d'\]}"):
            model({"a": x["a"], "b": x["a"]})

    def test_a_column_may_be_given_without_its_last_dim(self):
        inputs = kd.Input((1,))
        assert kd.Model(inputs, inputs * 2.0).predict(np.ones(3), verbose=0).shape == (3, 1)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda a, b: kd.Model(a, a + b), r"(?s)graph is disconnected: .* depends on 'b', which is not an input"),
            (lambda a, b: kd.Model(a, jnp.ones(3)), "`outputs` must be symbolic tensors"),
            (lambda a, b: kd.Model(np.ones(3), a), "`inputs` must be symbolic tensors"),
            (lambda a, b: kd.Model(a), "Model needs `inputs` and `outputs`"),
            (
                lambda a, b: kd.Model(a, layers.Dense(3, name="x")(layers.Dense(3, name="x")(a))),
                "two layers are called 'x'",
            ),
            (lambda a, b: kd.Model([a, b], a + b)(np.ones((2, 3))), r"(?s)inputs do not fit the model.*1 input"),
            (lambda a, b: kd.Model(a, a * 1.0)(np.ones((2, 4))), r"(?s)\(2, 4\) for input 'a'.*\(None, 3\)"),
            (lambda a, b: kd.Model([a, b], a + b)({"a": np.ones((2, 3)), "c": 1}), r"(?s)dict with \['a', 'b'\]"),
            (lambda a, b: kd.Sequential([a, layers.Dense(2), b]), "only the first layer may be an Input"),
            (lambda a, b: kd.Sequential([lambda x: x]), r"(?s)a layer must be.*layers.Lambda"),
            (lambda a, b: kd.Sequential([layers.Dense(2)]).weights, "do not exist yet"),
            (lambda a, b: kd.Model(a, a * 1.0).get_layer("aa"), r"unknown layer 'aa' \(did you mean 'a'\?\)"),
            (lambda a, b: kd.Sequential([]).pop(), "has no layers"),
            (lambda a, b: kd.Sequential(layers.Dense(2)), r"(?s)`layers` must be a list.*Sequential\(\[dense\]\)"),
            (lambda a, b: kd.Model({1: a, "b": b}, a + b), r"(?s)keys of `inputs`.*strings"),
            (lambda a, b: kd.Model(a, {1: a + 1.0, "b": a + 2.0}), r"(?s)keys of `outputs`.*strings"),
        ],
    )
    def test_what_is_no_model_says_why(self, make, message):
        with pytest.raises(ModelError, match=message) as caught:
            make(kd.Input((3,), name="a"), kd.Input((3,), name="b"))
        assert caught.value.given and caught.value.fix

    def test_an_input_that_is_missing_is_told_from_one_of_its_name(self):
        a, b = kd.Input((3,)), kd.Input((3,))
        expected = r"depends on 'input_layer' of shape \(None, 3\), argument 1 of 'add', not the input of"
        with pytest.raises(ModelError, match=expected):
            kd.Model(a, layers.Add()([a, b]))

    def test_a_batch_of_known_size_goes_with_one_of_unknown_size(self):
        a, b = kd.Input((2,)), kd.Input(batch_shape=(4, 2))
        for total in (layers.Add()([a, b]), layers.Average()([b, a]) * 2.0, a + b):
            assert total.shape == (4, 2)
            x = np.ones((4, 2), np.float32)
            assert np.allclose(kd.Model([a, b], total).predict([x, 2 * x], verbose=0), 3.0)
        assert layers.Concatenate()([a, b]).shape == (4, 4)
        with pytest.raises(ModelError, match="one batch size"):
            layers.Add()([a, b, kd.Input(batch_shape=(5, 2))])

    def test_a_layout_without_a_distribution_names_the_cause(self):
        with pytest.raises(LayoutError, match="no distribution is set, so that the mesh has one device") as caught:
            kd.Sequential([kd.Input((4,)), layers.Dense(2, kernel_layout=(None, "model"))])
        assert "kd.set_distribution" in caught.value.fix

    def test_a_layer_may_occur_twice_in_a_sequential(self):
        for start in ([], [kd.Input((4,))]):
            dense, relu = layers.Dense(4), layers.Activation("relu")
            model = kd.Sequential([*start, dense, relu, dense, relu])
            model.build((None, 4))
            kernel, bias = model.get_weights()
            x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
            expected = np.maximum(np.maximum(x @ kernel + bias, 0) @ kernel + bias, 0)
            again = kd.models.clone_model(model) if start else kd.Sequential.from_config(model.get_config())
            for same in (model, again):
                same.build((None, 4))
                same.set_weights([kernel, bias])
                assert np.allclose(same.predict(x, verbose=0), expected, atol=1e-5)
                assert len(same.layers) == 4 and same.layers[0] is same.layers[2]

    @pytest.mark.parametrize(
        "make",
        [
            lambda: kd.Sequential([kd.Input((None,)), layers.Dense(3)]),
            lambda: kd.Sequential([kd.Input((None, 4)), layers.Flatten(), layers.Dense(3)]),
            lambda: kd.Sequential([layers.Dense(3)]).build((None, None)),
        ],
    )
    def test_weights_do_not_follow_from_dims_of_unknown_size(self, make):
        with pytest.raises(ModelError, match=r"(?s)depends on a dim of unknown size.*\(None, 3\)"):
            make()

    def test_weights_do_not_follow_from_the_size_of_the_batch(self):
        class Rows(layers.Layer):
            def __init__(self, count, **kwargs):
                super().__init__(**kwargs)
                self.count = count

            def build(self, input_shape):
                self.w = self.add_weight(self.count(input_shape), name="w")

            def call(self, inputs):
                return inputs + self.w.value.sum()

        class Subclassed(kd.Model):
            def __init__(self):
                super().__init__()
                self.z = Rows(lambda shape: shape[:1], name="z")

            def call(self, inputs):
                return self.z(inputs)

        made = [
            lambda: kd.Sequential([kd.Input((4,)), Rows(lambda shape: shape, name="z")]),
            lambda: kd.Sequential([Rows(lambda shape: shape[:1], name="z")])(np.ones((2, 4))),
            lambda: Subclassed().predict(np.ones((2, 4)), verbose=0),
        ]
        for make in made:
            with pytest.raises(ModelError, match=r"(?s)weight 'w' in layer 'z' depends on.*None") as caught:
                make()
            assert "leave out the batch" in caught.value.fix
        model = kd.Sequential([kd.Input((4,), batch_size=2), Rows(lambda shape: shape[:1]), layers.Dense(3360)])
        assert [weight.shape for weight in model.weights] == [(2,), (4, 3360), (3360,)]

    def test_a_size_of_a_layer_is_not_taken_for_an_unknown_one(self):
        made = [layers.Dense(3360), layers.Dense(2)]
        for model in (kd.Sequential([kd.Input((4,)), *made]), kd.Sequential([layers.Dense(3360), layers.Dense(2)])):
            model.build((None, 4))
            assert model.weights[2].shape == (3360, 2)


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_one_output_is_that_output_in_calls_on_arrays(kind):
    inputs = kd.Input((6,))
    model = kd.Model(inputs=kind([inputs]), outputs=kind([layers.Dense(1)(inputs)]))
    x = np.ones((4, 6), np.float32)
    for given in (x, [x]):
        assert model(given).shape == model.predict(given, verbose=0).shape == (4, 1)
    assert (model.input_shape, model.output_shape) == ((None, 6), (None, 1))
    (symbolic,) = model(kd.Input((6,)))  # as in Keras
    assert isinstance(model(kd.Input((6,))), kind) and symbolic.shape == (None, 1)
    assert model.compute_output_shape((4, 6)) == kind([(4, 1)])
    assert kd.Model(inputs, model(inputs))(x).shape == (4, 1)
    model.compile("sgd", ["mse"])
    assert np.isfinite(model.fit([x], [np.ones((4, 1))], verbose=0).history["loss"][0])


class TestSequentialWithoutInput:
    def test_after_its_first_input_parts_of_it_make_other_models(self):
        model = kd.Sequential([layers.Dense(4, name="a"), layers.Dense(CLASSES, name="b")])
        with pytest.raises(ModelError, match="no symbolic inputs and outputs"):
            _ = model.input
        x, y = blobs(12)
        model.compile("sgd", LOSS)
        model.fit(x, y, verbose=0)
        assert model.output_names == ["b"] and model.input_shape == (None, FEATURES)
        features = kd.Model(model.inputs, model.layers[0].output)
        kernel, bias = model.get_weights()[:2]
        assert np.allclose(features.predict(x, verbose=0), x @ kernel + bias, atol=1e-5)
        assert np.allclose(kd.Model(model.input, model.output)(x), model(x), atol=1e-6)

    def test_its_layers_are_called_on_symbolic_tensors_when_these_are_read(self):
        first, second = layers.Dense(4), layers.Dense(2)
        model = kd.Sequential([first, second])
        model.build((None, 3))
        assert not (first._record.nodes or second._record.nodes)
        assert (first.output.shape, second.input.shape, model.output_shape) == ((None, 4), (None, 4), (None, 2))
        assert second.output is model.output

    def test_those_within_it_know_their_shapes_too(self):
        inner = kd.Sequential([layers.Dense(4)])
        model = kd.Sequential([kd.Sequential([inner, layers.Dense(5)]), layers.Dense(2)])
        model.build((None, 3))
        assert [one.output_shape for one in (inner, model.layers[0], model)] == [(None, 4), (None, 5), (None, 2)]
        assert inner.input_shape == (None, 3)
        kd.Sequential([kd.Input((3,)), later := kd.Sequential([layers.Dense(6)])])
        assert later.output_shape == (None, 6)

    def test_it_goes_on_taking_other_lengths(self):
        model = kd.Sequential([layers.SimpleRNN(3), layers.Dense(2)])
        model.build((None, 5, 4))
        assert model.input_shape == (None, 5, 4)
        assert model.predict(np.ones((6, 7, 4), np.float32), verbose=0).shape == (6, 2)


class TestSubclassesWithAGraph:
    """What a constructor sets after it has called the one of Model counts."""

    def test_of_model(self):
        class Scaled(kd.Model):
            scale = 1.0

            def __init__(self, inputs, outputs, scale):
                super().__init__(inputs, outputs)
                self.scale = scale
                self.more = layers.Dense(2, kernel_initializer="ones", use_bias=False, name="d2")

            def call(self, x, training=None):
                return self.more(super().call(x, training=training) * self.scale)

            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
                return self.scale * super().compute_loss(x, y, y_pred, sample_weight, training)

        inputs = kd.Input((4,))
        with on("data=2,model=4", {}).scope():
            model = Scaled(inputs, layers.Dense(2, kernel_initializer="ones", name="d1")(inputs), 0.5)
        assert model.distribution.device_mesh.shape == (2, 4), "born in scope"
        x = np.ones((2, 4), np.float32)
        assert np.array_equal(model.predict(x, verbose=0), np.full((2, 2), 4.0))
        model.compile("sgd", "mse")
        assert model.evaluate(x, np.zeros((2, 2)), verbose=0) == pytest.approx(0.5 * 16)
        with pytest.raises(ModelError, match=r"`scale` of layer .* cannot change any more.*(.|\n)*add_weight"):
            model.scale = 0.25
