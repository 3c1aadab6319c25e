"""The compiled train step communicates what the textbook says, and nothing else."""

import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from tests import layouts
from tests.training.collectives import collectives_in, collectives_of, of_kind

ROWS, WIDTH, HIDDEN = 16, 64, 128
X = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype("float32")


class MLP(nnx.Module):
    def __init__(self, rngs, use_bias=True):
        self.up = nnx.Linear(WIDTH, HIDDEN, use_bias=use_bias, rngs=rngs)
        self.down = nnx.Linear(HIDDEN, WIDTH, use_bias=use_bias, rngs=rngs)

    def __call__(self, x):
        return self.down(nnx.relu(self.up(x)))


class TwoBlocks(nnx.Module):
    def __init__(self, rngs):
        self.first = MLP(rngs, use_bias=False)
        self.second = MLP(rngs, use_bias=False)

    def __call__(self, x):
        return self.second(self.first(x))


class ScaledTwoBlocks(TwoBlocks):
    """Trains something in front of the blocks, so that the first one must hand a gradient back."""

    def __init__(self, rngs):
        super().__init__(rngs)
        self.scale = nnx.Param(np.ones(WIDTH, "float32"))

    def __call__(self, x):
        return super().__call__(x * self.scale)


class Head(nnx.Module):
    """Layers of one width, and a head that is wider than there are rows."""

    def __init__(self, rngs):
        widths = WIDTH, WIDTH, WIDTH, 4 * WIDTH
        self.layers = nnx.List([nnx.Linear(WIDTH, width, use_bias=False, rngs=rngs) for width in widths])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def megatron(mesh):
    """Columns of the first kernel and rows of the second over the model axis."""
    rules = kd.LayoutMap(kd.DeviceMesh(mesh))
    rules[".*up/kernel"] = (None, "model")
    rules[".*down/kernel"] = ("model", None)
    return kd.ModelParallel(rules, "data")


def train_step_collectives(distribution, factory, x=X):
    with distribution.scope():
        model = kd.Model.from_nnx(factory, seed=0)
        model.compile("adam", "mse")
        return collectives_of(model.lower_train_step(x, x))


def test_data_parallel_reduces_all_gradients_at_once():
    found = train_step_collectives(kd.DataParallel(), lambda rngs: MLP(rngs))
    assert {kind for kind, _ in found} == {"all-reduce"}
    reduced = [shapes for shapes in of_kind(found, "all-reduce") if any(shapes)]
    assert len(reduced) == 1
    assert sorted(shape for shape in reduced[0] if shape) == sorted(
        [(WIDTH, HIDDEN), (HIDDEN,), (HIDDEN, WIDTH), (WIDTH,)]
    )


@pytest.mark.parametrize(("factory", "backward"), [(TwoBlocks, 1), (ScaledTwoBlocks, 2)])
def test_two_blocks_reduce_twice_forward_and_as_often_backward_as_their_inputs_need_gradients(factory, backward):
    found = train_step_collectives(megatron("data=1,model=8"), factory)
    assert found == [("all-reduce", [(ROWS, WIDTH)])] * (2 + backward)


def test_two_blocks_with_data_parallelism_add_one_gradient_reduction():
    found = train_step_collectives(megatron("data=2,model=4"), TwoBlocks)
    assert {kind for kind, _ in found} == {"all-reduce"}
    activations = [shapes for shapes in of_kind(found, "all-reduce") if shapes == [(ROWS // 2, WIDTH)]]
    gradients = [shapes for shapes in of_kind(found, "all-reduce") if (WIDTH, HIDDEN // 4) in shapes]
    assert len(activations) == 3
    assert len(gradients) == 1
    assert sorted(shape for shape in gradients[0] if shape) == sorted([(WIDTH, HIDDEN // 4), (HIDDEN // 4, WIDTH)] * 2)


def test_no_step_on_rows_that_do_not_divide_gathers_a_whole_sharded_weight():
    found = train_step_collectives(megatron("data=2,model=4"), TwoBlocks, X[:-3])
    gathered = [shape for shapes in of_kind(found, "all-gather") for shape in shapes]
    assert not {(WIDTH, HIDDEN), (HIDDEN, WIDTH)} & set(gathered)


def test_predict_evaluate_and_fit_gather_no_weights():
    rules = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    rules[".*kernel"] = (None, "model")
    model = layouts.model_on(kd.ModelParallel(rules, "data"), Head)
    model.compile("sgd", "mse")
    x, y = X[:8], np.zeros((8, 4 * WIDTH), "float32")
    for run in (
        lambda: model.predict(x, 8, 0),
        lambda: model.evaluate(x, y, 8, 0),
        lambda: model.fit(x, y, 8, verbose=0),
    ):
        run()
    programs = model._built.step_runner._compiled._programs
    assert {key[0] for key in programs} == {"predict", "test", "train"}
    found = [collective for program in programs.values() for collective in collectives_in(program)]
    gathered = [shape for shapes in of_kind(found, "all-gather") for shape in shapes]
    assert gathered
    assert not {(WIDTH, WIDTH), (WIDTH, 4 * WIDTH)} & set(gathered)


def test_zero_1_gathers_each_update_once():
    found = train_step_collectives(kd.DataParallel(shard_optimizer=True), lambda rngs: MLP(rngs))
    gathered = [shape for shapes in of_kind(found, "all-gather") for shape in shapes]
    assert sorted(gathered) == sorted([(WIDTH, HIDDEN), (HIDDEN,), (HIDDEN, WIDTH), (WIDTH,)])
