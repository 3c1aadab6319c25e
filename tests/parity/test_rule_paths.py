"""Layout rules match the paths that are printed and the full paths that Keras gives, and nothing else."""

import re
import warnings

import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist.errors import LayoutError, LayoutWarning

X = np.zeros((2, 4, 8), "float32")
MESH = kd.DeviceMesh("data=2,model=4")


def block_of(layers):
    class Block(layers.Layer):
        """Attributes and names differ; a weight of the constructor, and one of `build`."""

        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.early = self.add_weight(shape=(8,), name="early_gain")
            self.project = layers.Dense(8, name="projection")
            self.rest = [layers.Dense(8, name="first"), layers.Dense(8, name="second")]

        def build(self, shape):
            self.late = self.add_weight(shape=(8,), name="late_gain")

        def call(self, inputs):
            hidden = self.project(inputs * self.early * self.late)
            for layer in self.rest:
                hidden = layer(hidden)
            return hidden

    return Block


def subclassed(k):
    layers, Block = k.layers, block_of(k.layers)

    class Net(k.Model):
        def __init__(self):
            super().__init__(name="net")
            self.block = Block(name="a_block")
            self.mha = layers.MultiHeadAttention(2, 4, name="attention")
            self.chain = k.Sequential([layers.Dense(8, name="in_chain")], name="chained")
            self.begun = k.Sequential([k.Input((4, 8)), layers.Dense(8, name="in_begun")], name="started")
            inputs = k.Input((4, 8))
            self.graph = k.Model(inputs, layers.Dense(8, name="in_graph")(inputs), name="functional")
            cells = layers.StackedRNNCells([layers.LSTMCell(3, name="a"), layers.GRUCell(4, name="b")], name="cells")
            self.rnn = layers.RNN(cells, return_sequences=True, name="rnn")
            self.both = layers.Bidirectional(layers.LSTM(2, name="lstm", return_sequences=True), name="two")
            self.each = layers.TimeDistributed(layers.Dense(3, name="dense"), name="each")
            self.norm = layers.SpectralNormalization(layers.Dense(3, name="normed"), name="spectral")
            self.ready = layers.MultiHeadAttention(1, 2, name="built_before")
            self.ready.build((2, 4, 8), (2, 4, 8))

        def call(self, inputs):
            x = self.graph(self.begun(self.chain(self.block(inputs))))
            x = self.ready(x, x)
            return self.norm(self.each(self.both(self.rnn(self.mha(x, x)))))

    model = Net()
    model(X)
    return model


def functional(k):
    layers, inputs = k.layers, k.Input((4, 8))
    inner = k.Sequential([k.Input((4, 8)), layers.Dense(8, name="inside")], name="inner")
    x = block_of(layers)(name="a_block")(inner(inputs))
    x = layers.GroupQueryAttention(4, 2, 1, name="grouped")(x, x)
    x = layers.EinsumDense("abc,cd->abd", (None, 3), name="einsum_dense")(x)
    return k.Model(inputs, layers.SeparableConv1D(3, 2, name="conv")(x))


@pytest.mark.parametrize("make", [subclassed, functional])
def test_the_other_path_of_a_weight_is_that_of_keras(keras, make):
    theirs = {weight.path for weight in make(keras).weights if "seed" not in weight.path}
    rows = [row for row in make(kd).layout_plan.rows if row.role in ("parameter", "statistic")]
    assert {row.keras_path or row.path for row in rows} == theirs


def warnings_and_plan(rules, make):
    layout_map = kd.LayoutMap(MESH)
    for rule, axes in rules.items():
        layout_map[rule] = axes
    with warnings.catch_warnings(record=True) as caught, kd.ModelParallel(layout_map, "data").scope():
        warnings.simplefilter("always")
        model = make()
    return [str(w.message) for w in caught if issubclass(w.category, LayoutWarning)], model.layout_plan


def attention():
    inputs = kd.Input((4, 8))
    outputs = kd.layers.MultiHeadAttention(2, 4, name="att")(inputs, inputs)
    return kd.Model(inputs, kd.layers.Dense(8)(outputs))


def test_a_rule_for_dense_layers_leaves_attention_alone():
    told, plan = warnings_and_plan({r".*dense(_\d+)?/kernel": (None, "model")}, attention)
    assert told == []
    assert [row.path for row in plan.rows if row.rule is not None] == ["dense/kernel"]


@pytest.mark.parametrize("rule", [".*einsum_dense.*", "functional/.*", ".*/einsum_dense_3/kernel"])
def test_invented_paths_match_nothing(rule):
    told, plan = warnings_and_plan({rule: (None, "model", None)}, attention)
    assert all(row.rule is None for row in plan.rows if row.role == "parameter")
    assert "1 layout rule(s) had no effect" in told[0]


class Net(kd.Model):
    def __init__(self):
        super().__init__(name="net")
        self.d = kd.layers.Dense(6, name="hidden")
        self.net = kd.layers.Dense(8, name="other")

    def call(self, inputs):
        return self.net(self.d(inputs))


def net():
    model = Net()
    model(X)
    return model


@pytest.mark.parametrize("axes", [(None, "model"), ("model",)], ids=["indivisible", "rank"])
def test_an_error_names_the_path_that_its_rule_matches(axes):
    with pytest.raises(LayoutError, match=re.escape("'d/kernel' ('net/hidden/kernel' in Keras)")):
        warnings_and_plan({"net/hidden/k.*": axes}, net)


def test_weights_of_modules_that_are_no_layers_have_no_path_in_keras():
    class Foreign(kd.layers.Layer):
        def __init__(self):
            super().__init__(name="foreign")
            self.one = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
            self.two = nnx.Linear(8, 8, rngs=nnx.Rngs(0))

        def call(self, inputs):
            return self.two(self.one(inputs))

    model = kd.Sequential([kd.Input((8,)), Foreign()])
    assert {row.keras_path for row in model.layout_plan.rows} == {None}


def test_a_layer_that_is_called_as_its_model_has_its_own_weights_alone():
    model = net()
    assert [weight.path for weight in model.net.weights] == ["net/kernel", "net/bias"]
    model.net.trainable = False
    assert [weight.path for weight in model.trainable_weights] == ["d/kernel", "d/bias"]
