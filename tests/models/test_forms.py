"""Functional, Sequential and subclassed models: the same numbers, the paths that a user would say, errors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import LayoutError, ModelError
from tests.layouts import ALL, on
from tests.networks import CLASSES, FEATURES, HIDDEN, blobs

LOSS = kd.losses.SparseCategoricalCrossentropy(from_logits=True)


def sequential() -> kd.Model:
    return kd.Sequential(
        [
            kd.Input((FEATURES,)),
            layers.Dense(HIDDEN, activation="tanh", name="d1"),
            layers.BatchNormalization(name="norm"),
            layers.Dropout(0.25, name="drop"),
            layers.Dense(CLASSES, name="d2"),
        ]
    )


def sequential_without_input() -> kd.Model:
    model = kd.Sequential()
    for layer in sequential().layers:
        model.add(type(layer).from_config(layer.get_config()))
    return model


def functional() -> kd.Model:
    inputs = kd.Input((FEATURES,))
    h = layers.Dense(HIDDEN, activation="tanh", name="d1")(inputs)
    h = layers.BatchNormalization(name="norm")(h)
    h = layers.Dropout(0.25, name="drop")(h)
    return kd.Model(inputs, layers.Dense(CLASSES, name="d2")(h))


class Subclassed(kd.Model):
    """The same by attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.d2 = layers.Dense(CLASSES)
        self.d1 = layers.Dense(HIDDEN, activation="tanh")
        self.norm = layers.BatchNormalization()
        self.drop = layers.Dropout(0.25)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self.d2(self.drop(self.norm(self.d1(inputs)), training=training))


FORMS = [sequential, sequential_without_input, functional, Subclassed]


def losses_of(make: Any, distribution: str) -> list[float]:
    kd.set_random_seed(7)
    x, y = blobs(40)
    with on(distribution).scope():
        model = make()
        model.compile("adam", loss=LOSS)
        history = model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]
        return [*history, model.evaluate(x, y, verbose=0)]


@pytest.fixture(scope="module")
def reference() -> list[float]:
    return losses_of(functional, "one device")


@pytest.mark.parametrize("make", FORMS)
@pytest.mark.parametrize("distribution", ["one device", "data=2,model=4"])
def test_all_forms_give_the_same_losses(make, distribution, reference):
    assert np.allclose(losses_of(make, distribution), reference, rtol=1e-5)


@pytest.mark.parametrize("distribution", ALL)
def test_all_meshes_give_the_same_losses(distribution, reference):
    assert np.allclose(losses_of(sequential, distribution), reference, rtol=1e-5)


class TestPaths:
    def test_layers_of_a_graph_go_by_their_names(self):
        expected = ["d1/kernel", "d1/bias", "norm/gamma", "norm/beta", "norm/moving_mean", "norm/moving_variance"]
        expected += ["d2/kernel", "d2/bias"]
        assert [w.path for w in functional().weights] == expected
        assert [w.path for w in sequential().weights] == expected

    def test_automatic_names_are_numbered_within_each_model(self):
        for _ in range(2):
            model = kd.Sequential([kd.Input((4,)), layers.Dense(3), layers.Dense(2), layers.Dense(2, name="dense_2")])
            assert [layer.name for layer in model.layers] == ["dense", "dense_1", "dense_2"]

    def test_a_given_name_is_not_given_to_another(self):
        model = kd.Sequential([kd.Input((4,)), layers.Dense(3), layers.Dense(2, name="dense")])
        assert [layer.name for layer in model.layers] == ["dense_1", "dense"]

    def test_subclassed_models_go_by_their_attributes(self):
        class Blocks(kd.Model):
            def __init__(self):
                super().__init__(name="m")
                self.feature = layers.Dense(4)
                self.blocks = [layers.Dense(4), layers.Dense(4)]

            def call(self, inputs):
                x = self.feature(inputs)
                for block in self.blocks:
                    x = block(x)
                return x

        model = Blocks()
        model.build((None, 3))
        assert [w.path for w in model.weights if w.path.endswith("kernel")] == [
            "feature/kernel",
            "blocks/0/kernel",
            "blocks/1/kernel",
        ]

    @pytest.mark.parametrize(
        ("make", "alias"),
        [
            (sequential, "sequential/d1/kernel"),
            (functional, "functional/d1/kernel"),
            (Subclassed, "subclassed/dense_1/kernel"),
        ],
    )
    def test_rules_may_use_the_full_path_of_keras(self, make, alias):
        rules = {alias: (None, "model"), ".*/bias": ("model",)}
        with on("data=2,model=4", rules).scope():
            model = make()
            model.build((None, FEATURES))
        assert model.layout_plan.row("d1/kernel").axes == (None, "model")
        assert model.layout_plan.row("d2/bias").axes == ("model",)

    def test_rules_for_outputs_may_use_the_full_path_too(self):
        for rule in ("d1/output", "sequential/d1/output"):
            with on("data=2,model=4", {rule: ("data", "model")}).scope():
                model = sequential()
                model.compile("sgd", loss=LOSS)
                text = model.lower_train_step(*blobs(8)).as_text()
            assert '[{"data"}, {"model"}]' in text

    def test_members_may_have_names_of_methods(self):
        names = ["train", "call", "fit", "items", "set_attributes", "weights"]
        model = kd.Sequential([kd.Input((4,)), *(layers.Dense(4, name=name) for name in names)])
        model.compile("sgd", "mse")
        model.fit(np.ones((4, 4)), np.ones((4, 4)), verbose=0)
        assert [w.path for w in model.weights][::2] == [f"{name}/kernel" for name in names]


class TestGraphs:
    def test_a_shared_layer_is_one_variable(self):
        shared = layers.Dense(4, name="shared")
        a, b = kd.Input((3,), name="a"), kd.Input((3,), name="b")
        model = kd.Model([a, b], shared(a) + shared(b))
        assert [w.path for w in model.weights] == ["shared/kernel", "shared/bias"]
        kernel, bias = model.get_weights()
        x, y = np.ones((2, 3), np.float32), np.full((2, 3), 2.0, np.float32)
        assert np.allclose(model.predict([x, y], verbose=0), (x + y) @ kernel + 2 * bias, atol=1e-5)

    @pytest.mark.parametrize("form", ["list", "dict", "tuple"])
    def test_inputs_come_in_the_order_of_the_model_or_by_name(self, form):
        a, b = kd.Input((2,), name="a"), kd.Input((2,), name="b")
        model = kd.Model([b, a], b - 2.0 * a)
        x, y = np.ones((3, 2), np.float32), np.full((3, 2), 5.0, np.float32)
        given = {"list": [y, x], "tuple": (y, x), "dict": {"a": x, "b": y}}[form]
        if form == "tuple":
            assert np.allclose(model(given), 3.0)
        else:
            assert np.allclose(model.predict(given, verbose=0), 3.0)

    def test_several_outputs_train_with_several_losses(self):
        inputs = kd.Input((FEATURES,))
        h = layers.Dense(HIDDEN, activation="relu")(inputs)
        model = kd.Model(inputs, [layers.Dense(CLASSES, name="label")(h), layers.Dense(1, name="size")(h)])
        model.compile("adam", loss={"label": LOSS, "size": "mse"}, loss_weights={"label": 1.0, "size": 0.5})
        x, y = blobs(32)
        history = model.fit(x, {"label": y, "size": x[:, :1]}, epochs=3, verbose=0).history
        assert set(history) == {"loss", "label_loss", "size_loss"}
        assert history["loss"][-1] < history["loss"][0]
        assert np.allclose(history["loss"], np.add(history["label_loss"], np.multiply(0.5, history["size_loss"])))

    def test_outputs_may_be_a_dict(self):
        inputs = kd.Input((3,))
        model = kd.Model(inputs, {"double": inputs * 2.0, "half": inputs / 2.0})
        outputs = model.predict(np.ones((2, 3)), verbose=0)
        assert np.allclose(outputs["double"], 2.0) and np.allclose(outputs["half"], 0.5)

    def test_a_model_is_a_layer(self):
        inner = kd.Sequential([layers.Dense(4, name="d1"), layers.Dense(3, name="d2")], name="inner")
        inputs = kd.Input((5,))
        model = kd.Model(inputs, layers.Dense(2, name="head")(inner(inputs)))
        assert [w.path for w in model.weights][:2] == ["inner/d1/kernel", "inner/d1/bias"]
        assert model.get_layer("inner") is inner
        assert inner.get_layer("d1").kernel.path == "inner/d1/kernel"

    def test_modules_of_flax_are_layers(self):
        module = nnx.Linear(FEATURES, HIDDEN, rngs=nnx.Rngs(0))
        model = kd.Sequential([kd.Input((FEATURES,)), module, layers.Dense(CLASSES)])
        assert [w.path for w in model.weights][:2] == ["linear/kernel", "linear/bias"]
        assert np.array_equal(model.get_weights()[0], module.kernel[...])
        before = np.array(module.kernel[...])
        model.compile("sgd", loss=LOSS)
        model.fit(*blobs(16), verbose=0)
        assert not np.array_equal(model.get_weights()[0], before) and np.array_equal(module.kernel[...], before)

    def test_operators_and_keyword_tensors_are_part_of_the_graph(self):
        class Weigh(layers.Layer):
            def call(self, inputs, factor=None):
                return inputs * factor

        a, b = kd.Input((4,)), kd.Input((4,))
        model = kd.Model([a, b], Weigh()(a[:, :2] + 1.0, factor=abs(b)[:, :2]))
        assert np.allclose(model([np.ones((2, 4)), np.full((2, 4), -3.0)]), 6.0)

    def test_training_given_in_a_call_stays(self):
        inputs = kd.Input((100,))
        model = kd.Model(inputs, layers.Dropout(0.5)(inputs, training=True))
        assert (model.predict(np.ones((1, 100)), verbose=0) == 0).any()

    def test_a_column_may_be_given_without_its_last_dim(self):
        inputs = kd.Input((1,))
        assert kd.Model(inputs, inputs * 2.0).predict(np.ones(3), verbose=0).shape == (3, 1)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda a, b: kd.Model(a, a + b), r"(?s)graph is disconnected: .* depends on 'b', which is not an input"),
            (lambda a, b: kd.Model(a, jnp.ones(3)), "`outputs` are not symbolic tensors"),
            (lambda a, b: kd.Model(np.ones(3), a), "`inputs` are not symbolic tensors"),
            (lambda a, b: kd.Model(a), "Model needs `inputs` and `outputs`"),
            (
                lambda a, b: kd.Model(a, layers.Dense(3, name="x")(layers.Dense(3, name="x")(a))),
                "two layers are called 'x'",
            ),
            (lambda a, b: kd.Model([a, b], a + b)(np.ones((2, 3))), r"(?s)inputs do not fit the model.*1 input"),
            (lambda a, b: kd.Model(a, a * 1.0)(np.ones((2, 4))), r"(?s)\(2, 4\) for input 'a'.*\(None, 3\)"),
            (lambda a, b: kd.Model([a, b], a + b)({"a": np.ones((2, 3)), "c": 1}), r"(?s)dict with \['a', 'b'\]"),
            (lambda a, b: kd.Sequential([a, layers.Dense(2), b]), "only the first layer may be an Input"),
            (lambda a, b: kd.Sequential([lambda x: x]), r"(?s)not a layer.*layers.Lambda"),
            (lambda a, b: kd.Sequential([layers.Dense(2)]).weights, "are not born yet"),
            (lambda a, b: kd.Model(a, a * 1.0).get_layer("aa"), r"no layer 'aa' \(did you mean 'a'\?\)"),
            (lambda a, b: kd.Sequential([]).pop(), "has no layers"),
        ],
    )
    def test_what_is_no_model_says_why(self, make, message):
        with pytest.raises(ModelError, match=message) as caught:
            make(kd.Input((3,), name="a"), kd.Input((3,), name="b"))
        assert caught.value.given and caught.value.expected and caught.value.fix

    def test_a_rule_that_does_not_fit_is_found_at_construction(self):
        with (
            on("data=2,model=4", {"d1/kernel": (None, "model")}).scope(),
            pytest.raises(LayoutError, match="d1/kernel"),
        ):
            kd.Sequential([kd.Input((4,)), layers.Dense(3, name="d1")])


class TestLayersOfAModel:
    def test_layers_are_those_of_the_user_and_know_their_weights(self):
        d1 = layers.Dense(8, name="d1", kernel_layout=(None, "model"))
        with on("data=2,model=4", {}).scope():
            model = kd.Sequential([kd.Input((4,)), d1, layers.Dense(2)])
            assert model.layers[0] is d1 is model.get_layer("d1") is model.get_layer(index=0)
            assert d1.kernel.layout.axes == (None, "model") and d1.kernel.path == "d1/kernel"
            model.compile("sgd", "mse")
            before = d1.get_weights()[0]
            model.fit(np.ones((8, 4)), np.ones((8, 2)), verbose=0)
            assert not np.array_equal(d1.get_weights()[0], before)
            assert np.allclose(
                d1(np.ones((1, 4))), np.ones((1, 4)) @ d1.get_weights()[0] + d1.get_weights()[1], atol=1e-5
            )

    def test_an_explicit_layout_wins_over_the_rules(self):
        layer = layers.Dense(8, name="d1", kernel_layout=kd.TensorLayout(("model", None)))
        with on("data=2,model=4", {"d1/kernel": (None, "model")}).scope():
            model = kd.Sequential([kd.Input((4,)), layer])
        assert model.layout_plan.row("d1/kernel").axes == ("model", None)

    def test_frozen_layers_stay_as_they_are_and_thaw_with_the_next_compile(self):
        model = sequential()
        x, y = blobs(32)
        model.get_layer("d1").trainable = False
        model.compile("adam", loss=LOSS)
        before = model.get_layer("d1").get_weights()
        model.fit(x, y, verbose=0)
        assert all(np.array_equal(a, b) for a, b in zip(model.get_layer("d1").get_weights(), before, strict=True))
        assert "d1/kernel" not in [w.path for w in model.trainable_variables]
        model.get_layer("d1").trainable = True
        model.compile("adam", loss=LOSS)
        model.fit(x, y, verbose=0)
        assert not np.array_equal(model.get_layer("d1").get_weights()[0], before[0])

    def test_frozen_batch_normalization_does_not_learn_statistics(self):
        model = sequential()
        model.get_layer("norm").trainable = False
        model.compile("adam", loss=LOSS)
        before = model.get_layer("norm").moving_mean.numpy()
        model.fit(*blobs(32), verbose=0)
        assert np.array_equal(model.get_layer("norm").moving_mean.numpy(), before)
        model.get_layer("norm").trainable = True
        model.compile("adam", loss=LOSS)
        model.fit(*blobs(32), verbose=0)
        assert not np.array_equal(model.get_layer("norm").moving_mean.numpy(), before)

    def test_weights_can_be_set(self):
        model, other = functional(), sequential()
        other.set_weights(model.get_weights())
        x, _ = blobs(4)
        assert np.array_equal(model.predict(x, verbose=0), other.predict(x, verbose=0))
        assert model.count_params() == sum(value.size for value in model.get_weights())

    def test_a_layer_with_values_brings_them_along(self):
        layer = layers.Dense(3, name="d1")
        layer(np.ones((1, 4)))
        values = layer.get_weights()
        with on("data=8,model=1", {}).scope():
            model = kd.Sequential([kd.Input((4,)), layer])
        assert np.array_equal(model.get_weights()[0], values[0])
        assert layer.kernel.layout is not None  # it is the model's now

    def test_models_that_share_a_layer_share_its_values(self):
        model = functional()
        x, y = blobs(16)
        model.compile("sgd", loss=LOSS)
        features = kd.Model(model.input, model.get_layer("d1").output)
        for _ in range(2):
            model.fit(x, y, verbose=0)
            kernel, bias = model.get_layer("d1").get_weights()
            assert np.allclose(features.predict(x, verbose=0), np.tanh(x @ kernel + bias), atol=1e-5)
        features.compile("sgd", "mse")
        features.fit(x, np.ones((16, HIDDEN)), verbose=0)
        assert np.array_equal(features.get_weights()[0], model.get_weights()[0])
        assert not np.array_equal(model.get_weights()[0], kernel)

    def test_a_shared_layer_gets_the_same_shape_everywhere(self):
        shared = layers.Dense(3, name="shared")
        kd.Sequential([kd.Input((4,)), shared])
        with pytest.raises(ModelError, match="layer 'shared' has weights for other inputs"):
            kd.Sequential([kd.Input((5,)), shared])


class TestSteps:
    def test_regularizers_and_added_losses_count(self):
        class Adds(layers.Layer):
            def call(self, inputs):
                self.add_loss(0.5 * jnp.mean(inputs**2))
                return inputs

        x = np.full((8, 3), 2.0, np.float32)
        model = kd.Sequential(
            [
                kd.Input((3,)),
                Adds(),
                layers.Dense(1, kernel_initializer="ones", kernel_regularizer=kd.regularizers.L2(0.1)),
            ]
        )
        model.compile("sgd", "mse")
        assert np.isclose(model.evaluate(x, np.full((8, 1), 6.0), verbose=0), 0.5 * 4 + 0.1 * 3)
        assert np.allclose(model.losses, [0.1 * 3])

    def test_layers_may_add_all_the_losses(self):
        class Shrinks(layers.Layer):
            def call(self, inputs):
                self.add_loss(jnp.mean(inputs**2))
                return inputs

        model = kd.Sequential([kd.Input((3,)), layers.Dense(2), Shrinks()])
        model.compile(kd.optimizers.SGD(0.1))
        losses = model.fit(np.ones((8, 3)), epochs=3, verbose=0).history["loss"]
        assert losses[2] < losses[1] < losses[0]
        plain = kd.Sequential([kd.Input((3,)), layers.Dense(2)])
        plain.compile("sgd")
        with pytest.raises(ModelError, match="there is nothing to minimise"):
            plain.fit(np.ones((8, 3)), verbose=0)

    def test_constraints_hold_after_every_step(self):
        model = kd.Sequential([kd.Input((3,)), layers.Dense(2, kernel_constraint="non_neg", use_bias=False)])
        model.compile(kd.optimizers.SGD(1.0), "mse")
        model.fit(np.ones((8, 3)), np.full((8, 2), -5.0), epochs=2, verbose=0)
        assert np.array_equal(model.get_weights()[0], np.zeros((3, 2)))

    def test_compute_loss_can_be_overridden(self):
        class Doubled(kd.Model):
            def __init__(self):
                super().__init__()
                self.d1 = layers.Dense(2)

            def call(self, inputs):
                return self.d1(inputs)

            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
                penalty = jnp.sum(self.d1.kernel[...] ** 2)
                return 2.0 * super().compute_loss(x, y, y_pred, sample_weight, training) + penalty

        model = Doubled()
        model.compile("sgd", "mse")
        x, y = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
        model.build((None, 3))
        kernel = model.get_weights()[0]
        expected = 2.0 * np.mean((x @ kernel) ** 2) + np.sum(kernel**2)
        assert np.isclose(model.evaluate(x, y, verbose=0), expected, rtol=1e-5)
        model.fit(x, y, epochs=3, verbose=0)
        assert model.evaluate(x, y, verbose=0) < expected

    def test_compute_loss_must_give_a_scalar(self):
        class Wrong(Subclassed):
            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
                return y_pred

        model = Wrong()
        model.compile("sgd", loss=LOSS)
        with pytest.raises(ModelError, match="compute_loss did not return a scalar"):
            model.fit(*blobs(4), verbose=0)

    def test_a_train_step_of_ones_own(self):
        class Own(Subclassed):
            def train_step(self, state, batch, rngs):
                x, y, sample_weight = batch

                def loss_of(trainable):
                    y_pred, rest, losses = self.stateless_call(
                        trainable, state.rest, x, training=True, return_losses=True
                    )
                    return self.compute_loss(x, y, y_pred, sample_weight) + sum(losses), rest

                (loss, rest), grads = jax.value_and_grad(loss_of, has_aux=True)(state.trainable)
                return self.apply_gradients(state, grads).replace(rest=rest), {"loss": loss}

        x, y = blobs(32)
        histories = []
        for make in (Own, Subclassed):
            kd.set_random_seed(3)
            model = make()
            model.compile("adam", loss=LOSS)
            histories.append(model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"])
        assert np.allclose(*histories, rtol=1e-6)

    def test_calling_the_model_gives_what_predict_gives(self):
        model = sequential()
        x, _ = blobs(6)
        assert np.allclose(model(x), model.predict(x, verbose=0), atol=1e-6)
        before = model.get_layer("norm").moving_mean.numpy()
        model(x, training=True)
        assert not np.array_equal(model.get_layer("norm").moving_mean.numpy(), before)


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


class TestCompilingAgain:
    def test_the_same_optimizer_goes_on_where_it_was(self):
        x, y = blobs(32)
        model = sequential()
        optimizer = kd.optimizers.Adam(kd.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))
        model.compile(optimizer, loss=LOSS)
        model.fit(x, y, batch_size=16, verbose=0)
        rate = model.optimizer.learning_rate
        assert model.optimizer.iterations == 2 and rate == pytest.approx(0.025)
        model.compile(optimizer, loss=LOSS, metrics=["accuracy"])
        assert model.optimizer.learning_rate == rate and model.optimizer.iterations == 2
        model.compile(model.optimizer, loss=LOSS)
        assert model.optimizer.iterations == 2
        model.compile("adam", loss=LOSS)
        assert model.optimizer.iterations == 0

    def test_other_variables_need_other_slots(self):
        x, y = blobs(32)
        model = sequential()
        optimizer = kd.optimizers.Adam()
        model.get_layer("d1").trainable = False
        model.compile(optimizer, loss=LOSS)
        model.fit(x, y, verbose=0)
        model.get_layer("d1").trainable = True
        model.compile(optimizer, loss=LOSS)
        model.fit(x, y, verbose=0)
        assert any(row.path.endswith("d1/kernel") for row in model.state_plan.rows if row.role == "slot")


def test_losses_of_optax_get_their_arguments_in_the_order_of_optax():
    x, y = blobs(16)
    losses = []
    for loss in (LOSS, optax.softmax_cross_entropy_with_integer_labels):
        kd.set_random_seed(0)
        model = sequential()
        model.compile("sgd", loss=loss)
        losses.append(model.fit(x, y, verbose=0).history["loss"])
    assert np.allclose(*losses, rtol=1e-5)


class TestUnusualModels:
    def test_a_layer_may_occur_twice_in_a_sequential(self):
        for start in ([], [kd.Input((4,))]):
            dense, relu = layers.Dense(4), layers.Activation("relu")
            model = kd.Sequential([*start, dense, relu, dense, relu])
            model.build((None, 4))
            kernel, bias = model.get_weights()
            x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
            expected = np.maximum(np.maximum(x @ kernel + bias, 0) @ kernel + bias, 0)
            again = kd.Sequential.from_config(model.get_config())
            for same in (model, again, kd.models.clone_model(model)):
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
        with pytest.raises(ModelError, match=r"(?s)follows from a dim of unknown size.*\(None, 3\)"):
            make()

    def test_building_a_layer_counts(self):
        layer = layers.Dense(3)
        layer.build((None, 4))
        layer.set_weights([np.ones((4, 3)), np.zeros(3)])
        assert layer.built and np.allclose(layer(np.ones((1, 4))), 4.0)

    def test_attributes_of_a_built_model_do_not_change_in_vain(self):
        model = sequential()
        with pytest.raises(ModelError, match="`activation` of layer 'd1' cannot change any more"):
            model.get_layer("d1").activation = None
        with pytest.raises(ModelError, match=r"(?s)`kernel` of layer 'd1' cannot change.*assign"):
            model.get_layer("d1").kernel = np.zeros((FEATURES, HIDDEN))
        model.note = "free"

    def test_sublayers_made_in_build_can_be_frozen(self):
        class Builds(layers.Layer):
            def build(self, input_shape):
                self.one = layers.Dense(4)
                self.more = [layers.Dense(4)]

            def call(self, inputs):
                return self.more[0](self.one(inputs))

        model = kd.Sequential([kd.Input((4,)), Builds(name="b")])
        block = model.layers[0]
        block.one.trainable = False
        block.more[0].trainable = False
        model.compile("sgd", "mse")
        before = model.get_weights()
        assert model.trainable_weights == []
        model.fit(np.ones((8, 4)), np.ones((8, 4)), verbose=0)
        assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), before, strict=True))

    def test_a_layer_with_values_may_go_into_two_models(self):
        layer = layers.Dense(3)
        layer(np.ones((1, 4)))
        one = kd.Sequential([kd.Input((4,)), layer])
        two = kd.Sequential([kd.Input((4,)), layer, layers.Dense(2)])
        assert np.array_equal(one.get_weights()[0], two.get_weights()[0])

    def test_training_may_be_given_by_position(self):
        class Drops(kd.Model):
            def __init__(self):
                super().__init__()
                self.drop = layers.Dropout(0.9)

            def call(self, inputs, training=False):
                return self.drop(inputs, training)

        x = np.ones((4, 50), np.float32)
        assert np.array_equal(Drops()(x), x) and not np.array_equal(Drops()(x, training=True), x)

    def test_one_layer_may_give_two_outputs(self):
        a, b = kd.Input((4,)), kd.Input((4,))
        dense = layers.Dense(2, name="d")
        model = kd.Model([a, b], [dense(a), dense(b)])
        assert model.output_names == ["d", "d_1"]
        model.compile("sgd", ["mse", "mse"])
        x = np.ones((4, 4), np.float32)
        assert len(model.evaluate([x, x], [np.ones((4, 2)), np.zeros((4, 2))], verbose=0)) == 3

    def test_a_u_net_of_unknown_size(self):
        inputs = kd.Input((None, None, 1))
        h = inputs
        for _ in range(4):
            h = layers.MaxPooling2D()(h)
        for _ in range(4):
            h = layers.UpSampling2D()(h)
        model = kd.Model(inputs, layers.Concatenate()([inputs, h]))
        assert model.output_shape == (None, None, None, 2)
        assert model.predict(np.ones((1, 32, 16, 1)), verbose=0).shape == (1, 32, 16, 2)

    def test_steps_that_would_not_be_called_are_refused(self):
        class Evaluates(Subclassed):
            def test_step(self, data):
                return {}

        with pytest.raises(ModelError, match=r"Evaluates\.test_step would not be called"):
            Evaluates().compile("sgd", loss=LOSS)
