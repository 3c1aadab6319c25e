"""Functional, Sequential and subclassed models: the same numbers, and the paths that a user would say."""

from typing import Any

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError
from keras_dist.training import built_module
from tests.layouts import ALL, on
from tests.models.forms import FORMS, Subclassed, functional, sequential
from tests.networks import FEATURES, LOSS, blobs
from tests.soak import ROUNDS, some


def losses_of(make: Any, distribution: str) -> list[float]:
    kd.set_random_seed(7)
    x, y = blobs(16)
    with on(distribution).scope():
        model = make()
        model.compile("adam", loss=LOSS)
        history = model.fit(x, y, batch_size=8, epochs=2, verbose=0).history["loss"]
        return [*history, model.evaluate(x, y, batch_size=8, verbose=0)]


@pytest.fixture(scope="module")
def reference() -> list[float]:
    return losses_of(functional, "one device")


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("make", [make for make in FORMS if make is not sequential])
def test_all_forms_give_the_same_losses(make, reference):
    assert np.allclose(losses_of(make, "data=2,model=4"), reference, rtol=1e-5)


@pytest.mark.first_cases(1)
@pytest.mark.soak
@pytest.mark.parametrize("distribution", some(ALL) if ROUNDS else ["one device", "fully data=8"])
def test_all_meshes_give_the_same_losses(distribution, reference):
    assert np.allclose(losses_of(sequential, distribution), reference, rtol=1e-5)


class TestPaths:
    def test_layers_of_a_graph_go_by_their_names(self):
        expected = ["d1/kernel", "d1/bias", "norm/gamma", "norm/beta", "norm/moving_mean", "norm/moving_variance"]
        expected += ["d2/kernel", "d2/bias"]
        assert [w.path for w in functional().weights] == expected
        assert [w.path for w in sequential().weights] == expected

    @pytest.mark.parametrize(
        ("make", "alias"),
        [(sequential, "sequential/d1/kernel"), (functional, "d1/kernel"), (Subclassed, "subclassed/dense_1/kernel")],
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
        assert model.predict(np.ones((4, 4)), verbose=0).shape == (4, 4)
        assert [w.path for w in model.weights][::2] == [f"{name}/kernel" for name in names]


class Scaled(kd.Model):
    """Takes two arrays, and a flag."""

    def __init__(self):
        super().__init__()
        self.d1 = layers.Dense(2)
        self.d2 = layers.Dense(2)

    def call(self, inputs, factor, negative=False, training=None):
        outputs = self.d1(inputs) * self.d2(factor)
        return -outputs if negative else outputs


class Typed(kd.Model):
    """What tells the types of a Python number apart."""

    def call(self, inputs, scale: Any = None):
        return inputs[:, :1] * 0 + [bool, int, float].index(type(scale)) + 1


class Scaling(kd.Model):
    """What takes any number."""

    def call(self, inputs, scale: Any = 1):
        return inputs * scale


class TestSeveralArguments:
    def test_all_of_them_tell_the_shapes_of_weights(self):
        x, factor = np.ones((4, 3), np.float32), np.full((4, 5), 2.0, np.float32)
        model = Scaled()
        outputs = model(x, factor=factor, training=False)
        kernel, _, other, _ = model.get_weights()
        assert other.shape == (5, 2)
        assert np.allclose(outputs, (x @ kernel) * (factor @ other), atol=1e-5)
        assert np.allclose(model(x, factor, negative=True), -np.asarray(outputs))
        assert model.get_build_config()["shapes_dict"] == {"inputs_shape": [None, 3], "factor_shape": [None, 5]}

    def test_numbers_count_by_type_and_value(self, monkeypatch):
        """`True`, `1` and `1.0` shared one program; NaN never found its own, and every value left one behind."""
        model, x = Typed(), np.ones((2, 3), np.float32)
        assert [float(model(x, scale=scale)[0, 0]) for scale in (True, 1, 1.0, -0.0, 0.0)] == [1, 2, 3, 3, 3]
        count = len(model._built._programs)
        for _ in range(2):
            model(x, scale=float("nan"))
        assert len(model._built._programs) == count + 1
        with pytest.raises(ModelError, match=r"neither an array nor hashable\n.*\{1, 2\} of type set"):
            model(x, scale={1, 2})
        scaling = Scaling()
        for scale in np.float32([0.5, 0.25]):  # floats of numpy are arrays
            assert np.array_equal(scaling(x, scale=scale), x * scale)
        assert len(scaling._built._programs) == 1
        monkeypatch.setattr(built_module, "_MOST_PROGRAMS", 8)
        with pytest.warns(UserWarning, match="compiled a program for each. Pass numbers that change as arrays"):
            for scale in range(9):
                model(x, scale=scale)
        assert len(model._built._programs) == 8
        assert np.array_equal(model(inputs=x, scale=True), model(x, scale=True)), "all may be given by name"
