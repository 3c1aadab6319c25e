"""A model for which no distribution was chosen lives on the mesh of the layouts that its weights were given."""

import copy
import re
import warnings

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import LayoutError
from keras_dist.models import model_distribution
from tests.layouts import on

X, Y = np.ones((8, 4), "float32"), np.ones((8, 6), "float32")


class Layout(kd.TensorLayout):
    """Classes of layouts and meshes may be those of a package on top of this one."""


class Mesh(kd.DeviceMesh):
    pass


def mesh(shape="model=2,batch=4", devices=None):
    return Mesh(shape, devices=devices)


def dense(where=None, name="d", units=6):
    """A layer whose kernel is sharded, and whose bias has a layout without a mesh."""
    kernel_layout = Layout((None, "model"), where or mesh())
    return layers.Dense(units, name=name, kernel_layout=kernel_layout, bias_layout=("model",))


class Subclassed(kd.Model):
    def __init__(self):
        super().__init__()
        self.d = dense()

    def call(self, inputs):
        return self.d(inputs)


class Builds(layers.Layer):
    """A layer whose `build` alone knows the mesh."""

    def build(self, input_shape):
        self.d = dense()
        self.scale = self.add_weight((6,), "ones", layout=Layout(("model",), mesh()), name="scale")

    def call(self, inputs):
        return self.d(inputs) * self.scale


class Constrains(layers.Layer):
    def call(self, inputs):
        return jax.lax.with_sharding_constraint(inputs, PartitionSpec("batch", "model"))


def functional():
    inputs = kd.Input((4,))
    return kd.Model(inputs, dense()(inputs))


FORMS = {
    "Functional": functional,
    "Sequential without input": lambda: kd.Sequential([dense()]),
    "subclass": Subclassed,
    "made in build": lambda: kd.Sequential([Builds()]),
    "unborn model among the layers": lambda: kd.Sequential([Subclassed()]),
    "module that wants the mesh": lambda: kd.Sequential([dense(), Constrains()]),
    "copy of a born one": lambda: copy.deepcopy(functional()),
}


@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
def test_the_model_lives_on_the_mesh_of_its_layouts(make):
    model_distribution.warn_of_one_device.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = make()
        model.build((None, 4))
        assert model.distribution == kd.ModelParallel(kd.LayoutMap(mesh()), batch_dim_name="batch")
    axes = {row.path.rpartition("/")[2]: row.axes for row in model.layout_plan.rows}
    assert axes["kernel"] == (None, "model") and axes["bias"] == ("model",) and axes.get("scale") in (None, ("model",))
    assert model.weights[0].value.sharding.mesh.shape == {"model": 2, "batch": 4}


def test_it_trains_as_under_a_distribution_on_that_mesh():
    losses = []
    for scope in (None, kd.ModelParallel(kd.LayoutMap(mesh()), batch_dim_name="batch")):
        kd.utils.set_random_seed(0)
        kd.set_distribution(scope)
        model = kd.Sequential([dense()])
        model.compile("sgd", "mse")
        losses.append(model.fit(X, Y, epochs=2, verbose=0).history["loss"])
    assert losses[0] == losses[1] and losses[0][1] < losses[0][0]


@pytest.mark.parametrize(("shape", "batch"), [("model=2,batch=4", "batch"), ("rows=4,model=2", "rows")])
def test_the_batch_lies_over_the_axis_batch_or_the_first(shape, batch):
    model = kd.Sequential([kd.Input((4,)), dense(mesh(shape))])
    assert model.distribution.batch_dim_name == batch


def test_modules_of_nnx_live_there_too():
    class Module(nnx.Module):
        def __init__(self, rngs):
            self.kernel = kd.Variable(np.ones((4, 6), "float32"), layout=Layout((None, "model"), mesh()))

        def __call__(self, x):
            return jax.lax.with_sharding_constraint(x, PartitionSpec("batch")) @ self.kernel

    for given in (Module, Module(nnx.Rngs(0))):
        model = kd.Model.from_nnx(given)
        assert model.distribution.device_mesh == mesh() and model.layout_plan.row("kernel").axes == (None, "model")
        assert model(X).shape == (8, 6)


HALVES = [mesh("model=4", devices=[f"cpu:{index + first}" for index in range(4)]) for first in (0, 4)]


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (
            lambda: [dense(name="one"), dense(mesh("model=2,batch=2", devices=kd.list_devices()[:4]), name="two")],
            "'one/kernel_layout' on mesh {model: 2, batch: 4}; 'two/kernel_layout' on mesh {model: 2, batch: 2}",
        ),
        (
            lambda: [dense(HALVES[0], name="one", units=4), dense(HALVES[1], name="two", units=4)],
            "'one/kernel_layout' on mesh {model: 4} of ['cpu:0', 'cpu:1', 'cpu:2', 'cpu:3']; "
            "'two/kernel_layout' on mesh {model: 4} of ['cpu:4', 'cpu:5', 'cpu:6', 'cpu:7']",
        ),
        (
            lambda: [dense(HALVES[0], name="one", units=4), Builds(name="two")],
            "'one/kernel_layout' on mesh {model: 4}; 'two/d/kernel_layout' on mesh {model: 2, batch: 4}",
        ),
    ],
)
def test_layouts_on_different_meshes_are_refused(make, given):
    message = f"the layouts of a model's weights are on different meshes\n  given:    {given}\n"
    with pytest.raises(LayoutError, match=re.escape(message)):
        kd.Sequential([kd.Input((4,)), *make()])


def test_a_layout_on_another_mesh_than_the_current_distribution_is_refused():
    where = kd.DeviceMesh("model=2", devices=["cpu:0", "cpu:1"])
    with kd.FullySharded(where).scope(), pytest.raises(LayoutError) as caught:
        kd.Sequential([kd.Input((4,)), dense()])
    told = str(caught.value)
    assert "the layout of 'd/kernel' belongs to a different mesh" in told
    assert "mesh {model: 2}; the layout's mesh is {model: 2, batch: 4}" in told
    assert "give the axes without a mesh: (None, 'model'); or set no distribution: the model then uses" in told


def test_the_distribution_that_is_chosen_counts_and_its_rules_have_the_last_word():
    with on("data=2,model=4", {"d/kernel": ("data", "model")}).scope():
        model = kd.Sequential([kd.Input((4,)), dense(units=8)])
    row = model.layout_plan.row("d/kernel")
    assert (row.axes, row.rule) == (("data", "model"), "d/kernel, overrides kernel's own (None, 'model')")
