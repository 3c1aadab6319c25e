"""Variables of layers, of foreign modules and of optimizers are one class: kinds, constraints, paths and copies."""

import copy
import pickle

import jax
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd


def test_nnx_selects_the_variables_that_are_trained():
    def count(module):
        return len(jax.tree.leaves(nnx.state(module, nnx.Param)))

    body = kd.Sequential([kd.Input((4,)), kd.layers.Dense(3), kd.layers.BatchNormalization()], name="body")
    model = kd.Sequential([body, kd.layers.Dense(2, name="head"), kd.layers.Dense(1, trainable=False)])
    model.build((None, 4))
    assert count(model) == len(model.trainable_weights) == 6
    kernel = body.layers[0].kernel
    before = kernel.numpy()
    body.trainable = False
    assert count(model) == len(model.trainable_weights) == 2
    assert model.layout_plan.row(kernel.path).role == "parameter"
    model.compile("sgd", "mse")
    model.fit(np.ones((8, 4), "float32"), np.zeros((8, 1), "float32"), verbose=0)
    np.testing.assert_array_equal(kernel.numpy(), before)
    body.layers[0].trainable = True
    assert count(model) == len(model.trainable_weights) == 4 and body.layers[0].kernel is kernel
    model.compile("sgd", "mse")
    model.fit(np.ones((8, 4), "float32"), np.zeros((8, 1), "float32"), verbose=0)
    assert not np.array_equal(kernel.numpy(), before)
    layer = kd.layers.Dense(2, trainable=False)
    layer(np.ones((1, 2)))
    assert count(layer) == len(layer.trainable_weights) == 0 and len(layer.non_trainable_weights) == 2


class Foreign(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        return self.linear(x)


@pytest.mark.parametrize("foreign", [False, True])
def test_a_constraint_that_is_set_counts_from_the_next_compile(foreign):
    model = kd.Model.from_nnx(Foreign) if foreign else kd.Sequential([kd.Input((8,)), kd.layers.Dense(4)])
    model.compile("sgd", "mse")
    model.build((None, 8))
    kernel = next(weight for weight in model.weights if weight.path.endswith("/kernel"))
    kernel.constraint = kd.constraints.MaxNorm(0.1)
    model.compile("sgd", "mse")
    model.fit(np.ones((32, 8), "float32"), np.ones((32, 4), "float32"), verbose=0)
    assert (np.linalg.norm(kernel.numpy(), axis=0) <= 0.1001).all()


def test_a_built_multi_optimizer_can_be_pickled():
    chosen = kd.optimizers.OptimizerMap(kd.optimizers.Adam(), {"b": kd.optimizers.SGD()})
    optimizer = kd.optimizers.MultiOptimizer(chosen)
    optimizer.build([kd.Variable(np.ones(3, "float32"), name=name) for name in "ab"])
    copied = pickle.loads(pickle.dumps(optimizer))
    assert [variable.path for variable in copied.variables] == [variable.path for variable in optimizer.variables]


def test_variables_of_an_optimizer_have_paths_before_it_is_built():
    assert [variable.path for variable in kd.optimizers.Adam().variables] == ["iterations", "learning_rate"]


class Dropped(nnx.Module):
    def __init__(self, rngs):
        self.linear, self.dropout = nnx.Linear(8, 1, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.linear(x))


def test_keys_of_foreign_modules_are_in_files_of_keras(tmp_path):
    x, y = np.ones((32, 8), "float32"), np.ones((32, 1), "float32")
    model = kd.Model.from_nnx(Dropped)
    model.compile("adam", "mse")
    model.fit(x, y, verbose=0)
    model.save_weights(tmp_path / "a.weights.h5")
    other = kd.Model.from_nnx(Dropped)
    other.compile("adam", "mse")
    other.build((None, 8))
    other.load_weights(tmp_path / "a.weights.h5")
    assert [v.numpy().tolist() for v in other.variables] == [v.numpy().tolist() for v in model.variables]


def test_a_copy_of_a_variable_is_a_variable():
    kernel = kd.Variable(np.ones((2, 3), "float32"), name="kernel")
    other = copy.deepcopy(kernel)
    other.assign(np.zeros((2, 3), "float32"))
    assert isinstance(other, kd.Variable) and other.name == "kernel" and kernel.numpy().all()
