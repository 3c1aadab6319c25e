"""A model lives where the distribution says that was current when it was made, wherever its weights are born."""

import contextlib
import copy

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import DistributionError, LayoutWarning
from keras_dist.models import model_distribution
from tests.layouts import on

X, Y = np.ones((8, 8), "float32"), np.ones((8, 4), "float32")
RULES = {"d/kernel": (None, "model")}
SHARDED = (None, "model")


class Subclassed(kd.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.d = layers.Dense(4, name="d")

    def call(self, inputs):
        return self.d(inputs)


def sequential():
    return kd.Sequential([layers.Dense(4, name="d")])


def axes(model):
    return model.layout_plan.row("d/kernel").axes


@pytest.mark.parametrize(
    "make", [sequential, Subclassed, lambda: copy.deepcopy(sequential())], ids=["Sequential", "subclass", "copy"]
)
def test_weights_that_are_born_outside_lie_by_the_distribution_under_which_the_model_was_made(make):
    with on("data=2,model=4", RULES).scope():
        model = make()
    model.build((None, 8))
    assert axes(model) == SHARDED
    if type(model) is Subclassed:
        model.compile("sgd", "mse")
        model.fit(X, Y, verbose=0)  # without a current distribution


def test_layers_that_want_the_mesh_of_the_scope_have_it_when_they_are_born():
    class Constrains(layers.Layer):
        def call(self, inputs):
            return jax.lax.with_sharding_constraint(inputs, PartitionSpec("data"))

    with on("data=2,model=4", RULES).scope():
        model = kd.Sequential([layers.Dense(4, name="d"), Constrains()])
    model.build((None, 8))
    assert axes(model) == SHARDED


def test_rules_that_are_added_before_the_birth_count():
    distribution = on("data=2,model=4", {})
    with distribution.scope():
        model = sequential()
    distribution.layout_map["d/kernel"] = SHARDED
    with kd.DataParallel().scope():  # another is current
        model.build((None, 8))
    distribution.layout_map["d/bias"] = ("model",)
    assert axes(model) == SHARDED
    assert model.layout_plan.row("d/bias").axes == (None,)


def test_a_model_that_was_made_without_one_takes_the_one_of_its_birth_and_keeps_it():
    model = sequential()
    with on("data=2,model=4", RULES).scope():
        model.build((None, 8))
    assert axes(model) == SHARDED
    model.add(layers.Dense(2))  # born anew
    model.build((None, 8))
    assert axes(model) == SHARDED


def test_a_sequential_that_was_moved_is_born_anew_where_it_was_moved_to():
    model = kd.Sequential([kd.Input((8,)), layers.Dense(4, name="d")])
    model.redistribute(on("data=2,model=4", RULES))
    model.add(layers.Dense(2))
    assert axes(model) == SHARDED


class TestModelsAmongTheLayers:
    def test_they_live_where_the_outer_one_does(self):
        inner = sequential()
        with on("data=2,model=4", {".*d/kernel": SHARDED}).scope():
            model = kd.Sequential([inner])
        model.build((None, 8))
        assert model.layout_plan.row("sequential/d/kernel").axes == SHARDED

    @pytest.mark.parametrize("around", [contextlib.nullcontext(), kd.DataParallel().scope()], ids=["none", "another"])
    def test_one_that_asks_for_another_distribution_is_refused(self, around):
        with on("data=2,model=4", RULES).scope():
            inner = sequential()
        with around:
            model = kd.Sequential([inner, layers.Dense(2)])
        with pytest.raises(DistributionError, match="'sequential' was made under another distribution than model"):
            model.build((None, 8))

    def test_one_with_weights_lives_on_one_mesh(self):
        with on("data=2,model=4", RULES).scope():
            inner = kd.Sequential([kd.Input((8,)), layers.Dense(4, name="d")], name="inner")
        with (
            kd.DataParallel().scope(),
            pytest.raises(DistributionError, match="model 'outer' and model 'inner' have layers in common") as told,
        ):
            kd.Sequential([kd.Input((8,)), inner], name="outer")
        assert "keras_dist.models.clone_model(model)" in told.value.fix
        late = layers.Dense(3)
        with kd.DataParallel().scope(), pytest.raises(DistributionError, match="have layers in common"):
            kd.Sequential([kd.Input((8,)), inner, late])
        assert not late.built or late.kernel.is_deferred, "no array was created"
        with pytest.raises(DistributionError, match="no distribution, as for the outer model"):
            kd.Sequential([kd.Input((8,)), inner])


class TestOneDeviceOfSeveral:
    def test_it_is_told_once_in_a_process(self):
        model_distribution.warn_of_one_device.cache_clear()
        with pytest.warns(LayoutWarning, match="one device, cpu:0, is used of 8. To use all of them call") as told:
            for _ in range(2):
                sequential().build((None, 8))
        assert len(told) == 1

    def test_it_is_not_told_where_there_is_one_device_or_a_distribution(self, monkeypatch, recwarn):
        model_distribution.warn_of_one_device.cache_clear()
        with kd.DataParallel(devices=kd.list_devices()[:1]).scope():
            sequential().build((None, 8))
        monkeypatch.setattr(model_distribution.devices, "list_devices", lambda: ["cpu:0"])
        sequential().build((None, 8))
        assert not recwarn


def test_weights_of_a_layer_outside_of_models_lie_as_the_distribution_says_and_stay_so():
    layer = layers.Dense(4, name="d")
    with on("data=2,model=4", RULES).scope():
        layer.build((None, 8))
        mean = layers.Dense(4)(layer(X)).mean()
    assert tuple(layer.kernel.value.sharding.spec) == SHARDED
    layer.kernel.assign(np.ones((8, 4)))
    assert tuple(layer.kernel.value.sharding.spec) == SHARDED
    assert np.isfinite(mean) and layers.ReLU()(X).shape == X.shape
    with on("data=2,model=4", RULES).scope():
        model = kd.Sequential([kd.Input((8,)), layer])
    assert axes(model) == SHARDED
    np.testing.assert_array_equal(model.get_weights()[0], np.ones((8, 4)))


@pytest.mark.parametrize(
    "method", ["fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"]
)
def test_another_scope_than_the_scope_of_the_model_is_an_error(method):
    model = sequential()
    model.compile("sgd", "mse")
    model.build((None, 8))
    data = (X,) if "predict" in method else (X, Y)
    with kd.DataParallel().scope(), pytest.raises(DistributionError, match=f"{method}: the current distribution"):
        getattr(model, method)(*data)
