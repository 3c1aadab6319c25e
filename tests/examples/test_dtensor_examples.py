"""TensorFlow's tutorials of DTensor, as programs: the same numbers on any mesh."""

import importlib.util
import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import keras_dist as kd
from keras_dist import dtensor
from tests import forks
from tests.processes import environment

pytestmark = pytest.mark.slow
EXAMPLES = pathlib.Path(__file__).parent.parent.parent / "examples"
SIZES = (1, 8)


def load(name):
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


KERAS, CORE = load("dtensor_keras"), load("dtensor_core")


def line(size):
    """A mesh of so many devices along one dim."""
    return dtensor.create_mesh([("batch", size)], devices=[f"CPU:{index}" for index in range(size)])


@pytest.fixture(scope="module")
def batches():
    """Three batches of 16 rows."""
    rng = np.random.default_rng(0)
    return [(rng.random((16, 784), np.float32), rng.integers(0, 10, 16)) for _ in range(3)]


@pytest.fixture(scope="module")
def with_keras(batches):
    """For each mesh what three steps of training and one of evaluation give."""

    def run(size):
        mesh = line(size)
        kd.utils.set_random_seed(1337)
        model = KERAS.make_model(mesh)
        optimizer = dtensor.keras.optimizers.Adam(0.01, mesh=mesh)
        metrics = {"accuracy": kd.metrics.SparseCategoricalAccuracy(mesh=mesh)}
        layouts = [dtensor.Layout.batch_sharded(mesh, "batch", rank=rank) for rank in (4, 1)]
        packed = [KERAS.pack_dtensor_inputs(x.reshape(-1, 28, 28, 1), y, *layouts) for x, y in batches]
        losses = [KERAS.train_step(model, *batch, optimizer, metrics)["loss"] for batch in packed]
        losses.append(KERAS.eval_step(model, *packed[0], metrics)["eval_loss"])
        return types.SimpleNamespace(losses=losses, accuracy=metrics["accuracy"].result())

    return [run(size) for size in SIZES]


def test_the_losses_of_the_keras_example_are_those_of_one_device(with_keras):
    for run in with_keras[1:]:
        np.testing.assert_allclose(run.losses, with_keras[0].losses, atol=1e-5, rtol=0)
        assert run.accuracy == with_keras[0].accuracy


def small_mlp(weight_layout):
    """784-16-10, of the layers of the core example."""
    first, second = jax.random.split(jax.random.key(22))
    return CORE.MLP(
        [CORE.DenseLayer(784, 16, weight_layout, first, jax.nn.relu), CORE.DenseLayer(16, 10, weight_layout, second)]
    )


@pytest.fixture(scope="module")
def with_core(batches):
    """For each mesh the history of two epochs."""

    def run(size):
        mesh = line(size)
        model = small_mlp(dtensor.Layout.replicated(mesh, 2))
        adam = CORE.Adam(model.trainable_variables)
        return CORE.train(model, adam, mesh, batches[:2], batches[2:], epochs=2)

    return [run(size) for size in SIZES]


def test_the_losses_of_the_core_example_are_those_of_one_device(with_core):
    expected = with_core[0]
    for history in with_core[1:]:
        for name, found in history.items():
            np.testing.assert_allclose(found, expected[name], atol=1e-5, rtol=0, err_msg=name)
    assert expected["loss"][1] < expected["loss"][0]


@pytest.mark.parametrize("size", [1, 8])
def test_the_adam_of_the_core_example_is_that_of_optax(size):
    layout = dtensor.Layout(["batch", dtensor.UNSHARDED], line(size))
    start, *gradients = np.random.default_rng(0).normal(size=(7, 8, 4)).astype(np.float32)
    variable = dtensor.DVariable(start, layout=layout)
    adam = CORE.Adam([variable], learning_rate=0.1)
    assert {slot.layout for slot in [*adam.v_dvar, *adam.s_dvar]} == {layout}
    step = dtensor.function(lambda gradient: adam.apply_gradients([gradient]))

    theirs = optax.adam(0.1, b1=0.9, b2=0.999, eps=1e-7)

    @jax.jit
    def expected_step(gradient, state, value):
        updates, state = theirs.update(gradient, state)
        return state, optax.apply_updates(value, updates)

    expected = jnp.asarray(start)
    state = theirs.init(expected)
    for gradient in gradients:
        step(gradient)
        state, expected = expected_step(gradient, state, expected)
        np.testing.assert_allclose(variable, expected, atol=1e-6, rtol=0)


def printed(name, folder, *arguments):
    """What an example prints that a user runs in `folder`."""
    arguments = ("--devices", 2, "--epochs", 1, *arguments)
    run = forks.python(EXAMPLES / f"{name}.py", *arguments, cwd=folder, env=environment())
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


@pytest.mark.multiprocess
def test_the_core_example_runs(tmp_path):
    folder = tmp_path / "new" / "run"
    assert "Testing accuracy: 0." in printed("dtensor_core", tmp_path, "--folder", folder)
    assert (folder / "history.png").read_bytes().startswith(b"\x89PNG")
    assert list(folder.glob("weights*"))
