"""The layers of a model: their weights, what is frozen, what is shared."""

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError
from tests.layouts import on
from tests.models.forms import sequential
from tests.networks import FEATURES, HIDDEN


class TestLayersOfAModel:
    def test_a_model_that_only_the_loss_calls_is_part_of_the_outer_model(self):
        class Distiller(kd.Model):
            def __init__(self, student, teacher):
                super().__init__()
                self.student, self.teacher = student, teacher

            def call(self, inputs):
                return self.student(inputs)

            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
                return kd.ops.mean(kd.ops.square(self.teacher(x, training=False) - y_pred))

        with on("data=8", {}).scope():
            student, teacher = (kd.Sequential([kd.Input((4,)), layers.Dense(2)]) for _ in range(2))
            teacher.trainable = False
            before = teacher.get_weights()
            model = Distiller(student, teacher)
            model.compile("sgd")
            x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
            first, last = model.fit(x, epochs=2, verbose=0).history["loss"]
        assert 0 < last < first
        assert len(model.weights) == 4 and len(model.trainable_weights) == 2
        np.testing.assert_array_equal(before[0], model.teacher.get_weights()[0])

    def test_a_layer_that_only_the_loss_calls_is_to_be_built(self):
        class Net(kd.Model):
            def __init__(self, shape):
                super().__init__()
                self.student, self.teacher = layers.Dense(2), layers.Dense(2)
                if shape is not None:
                    self.teacher.build(shape)

            def call(self, inputs):
                return self.student(inputs)

            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
                return kd.ops.mean(kd.ops.square(self.teacher(x) - y_pred))

        with on("data=8", {}).scope():
            model, built = Net(None), Net((None, 4))
        model.compile("sgd")
        with pytest.raises(ModelError, match="'teacher/kernel'") as caught:
            model.fit(np.ones((8, 4)), verbose=0)
        assert "self.teacher.build(" in caught.value.fix
        built.compile("sgd")
        built.fit(np.ones((8, 4)), verbose=0)
        assert [w.path for w in built.weights][2:] == ["teacher/kernel", "teacher/bias"]

    def test_a_layout_of_its_own_counts_where_no_rule_does(self):
        dense = [layers.Dense(8, name=name, kernel_layout=kd.TensorLayout(("model", None))) for name in ("d1", "d2")]
        with on("data=2,model=4", {"d2/kernel": (None, "model")}).scope():
            model = kd.Sequential([kd.Input((4,)), *dense])
        rows = [model.layout_plan.row(f"{layer.name}/kernel") for layer in dense]
        assert [(row.axes, row.rule) for row in rows] == [
            (("model", None), "kernel's own ('model', None)"),
            ((None, "model"), "d2/kernel, overrides kernel's own ('model', None)"),
        ]

    def test_attributes_of_a_built_model_do_not_change_in_vain(self):
        model = sequential()
        with pytest.raises(ModelError, match="`activation` of layer 'd1' cannot change any more"):
            model.get_layer("d1").activation = None
        with pytest.raises(ModelError, match=r"(?s)`kernel` of layer 'd1' cannot change.*assign"):
            model.get_layer("d1").kernel = np.zeros((FEATURES, HIDDEN))
        model.note = "free"


class Net(kd.Model):
    """Four layers without names, of which an attribute, a list at once, and a list later hold some."""

    def __init__(self):
        super().__init__()
        self.first, self.blocks, self.kept = layers.Dense(4), [layers.Dense(4)], layers.Dense(2, name="dense_1")
        self.blocks.append(layers.Dense(4))

    def call(self, inputs):
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        return self.kept(hidden)


@pytest.mark.parametrize("is_built", [False, True])
def test_layers_of_a_subclass_are_numbered(is_built):
    model = Net()
    names = [model.first.name, model.blocks[0].name, model.kept.name, model.blocks[1].name]
    assert names == ["dense", "dense_2", "dense_1", "dense_3"], "also before anyone asks for `layers`"
    model.blocks.append(layers.Dense(4))
    if is_built:
        model.build((None, 4))
        assert model.blocks[2].name == "dense_4"
    assert [layer.name for layer in model.layers] == ["dense", "dense_2", "dense_3", "dense_4", "dense_1"]
    assert model.get_layer("dense") is model.first and model.get_layer("dense_1") is model.kept
    assert model.get_layer("dense_3") is model.blocks[1]
    if is_built:
        assert [weight.path for weight in model.weights][::2] == [
            *("first/kernel", "blocks/0/kernel", "blocks/1/kernel", "blocks/2/kernel", "kept/kernel")
        ]


def test_names_that_users_gave_stay():
    class Twice(kd.Model):
        def __init__(self):
            super().__init__()
            self.one, self.two = layers.Dense(2, name="d"), layers.Dense(2, name="d")

    model = Twice()
    assert [layer.name for layer in model.layers] == ["d", "d"] and model.get_layer("d") is model.one


class Gan(kd.Model):
    """Built parts, a model of both, a layer of another model, and no `call`."""

    def __init__(self):
        super().__init__()
        self.generator = kd.Sequential([kd.Input((3,)), layers.Dense(4), layers.Dropout(0.5)])
        self.discriminator = kd.Sequential([kd.Input((4,)), layers.Dense(2), layers.BatchNormalization()])
        self.both = kd.Sequential([kd.Input((3,)), self.generator, self.discriminator])
        self.act, self.scale = layers.ReLU(), self.add_weight((2,), name="scale")


def test_a_model_around_built_parts_has_their_weights_before_it_is_called():
    with on("data=2,model=4", {}).scope():
        gan = Gan()
    generator, discriminator = gan.generator, gan.discriminator
    expected = [gan.scale, *generator.weights, *discriminator.weights]
    assert [id(weight) for weight in gan.weights] == [id(weight) for weight in expected], "each once, in Keras's order"
    assert [w.path for w in gan.trainable_variables] == [w.path for w in expected if w.trainable]
    assert [w.name for w in gan.non_trainable_weights] == ["moving_mean", "moving_variance"]
    assert [id(variable) for variable in gan.variables] == [id(each) for each in [*expected, generator.variables[-1]]]
    assert gan.count_params() == 2 + 16 + 10 + 8
    gan.set_weights([np.full(weight.shape, 0.5, "float32") for weight in gan.weights])
    assert all((value == 0.5).all() for value in [*gan.get_weights(), *gan.both.get_weights()])
    generator.trainable = False
    assert len(gan.trainable_weights) == 5


def test_a_layer_around_a_built_model_has_its_weights():
    class Around(layers.Layer):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.own = inner, self.add_weight((1,), name="own")

    inner = kd.Sequential([kd.Input((3,)), layers.Dense(2), layers.Dropout(0.5)])
    layer = Around(inner)
    assert [id(weight) for weight in layer.weights] == [id(weight) for weight in [layer.own, *inner.weights]]
    assert [id(weight) for weight in layer.variables] == [id(weight) for weight in [layer.own, *inner.variables]]


def test_weights_that_do_not_exist_are_an_error():
    class Half(kd.Model):
        def __init__(self):
            super().__init__()
            self.one, self.two = kd.Sequential([kd.Input((3,)), layers.Dense(2)]), layers.Dense(2)

    class Builds(Gan):
        def build(self, input_shape):
            self.more = layers.Dense(2)

    for model in (Half(), Builds()):
        with pytest.raises(ModelError, match="the weights of model"):
            _ = model.trainable_variables


def test_built_models_in_a_model_are_numbered():
    class Pair(kd.Model):
        def __init__(self, one, two):
            super().__init__()
            self.one, self.two = one, two

        def call(self, inputs):
            return self.two(self.one(inputs))

    def part():
        return kd.Sequential([kd.Input((4,)), layers.Dense(4)])

    with on("data=2,model=4", {"sequential/dense/output": ("data", "model")}).scope():
        one, two = part(), part()
        model = Pair(one, two)
        assert [layer.name for layer in model.layers] == [one.name, two.name] == ["sequential", "sequential_1"]
        assert model.get_layer("sequential_1") is two
        lines: list[str] = []
        two.summary(print_fn=lines.append)
    text = "\n".join(lines)
    assert text.index("dense (Dense)") < text.index("sequential/dense/output") < text.index("Total")
    shared = Pair(two, one)
    assert [layer.name for layer in shared.layers] == ["sequential_1", "sequential"], "names do not change again"


def test_loops_over_dicts_of_layers_go_in_the_order_of_assignment():
    class Heads(kd.Model):
        def __init__(self):
            super().__init__()
            self.heads = {"z": layers.Dense(3), "a": layers.Dense(2)}

        def call(self, inputs):
            for head in self.heads.values():
                inputs = head(inputs)
            return inputs

    model = Heads()
    assert model.predict(np.ones((2, 4)), verbose=0).shape == (2, 2)
    assert [w.path for w in model.weights][::2] == ["heads/z/kernel", "heads/a/kernel"]
