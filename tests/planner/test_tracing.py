"""A train step that is traced without arrays: for models of any kind and size, on devices that need not exist."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import DataError, DeviceError, LayoutError, ModelError
from keras_dist.planner import propagate, trace_step

WIDTH, HIDDEN, ROWS = 16, 64, 32
ABSENT = [f"tpu:{index}" for index in range(1024)]
X = jax.ShapeDtypeStruct((ROWS, WIDTH), np.float32)


class Foreign(nnx.Module):
    """Two layers of Flax and a Dropout, which draws."""

    def __init__(self, rngs):
        self.up, self.down = nnx.Linear(WIDTH, HIDDEN, rngs=rngs), nnx.Linear(HIDDEN, WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.down(self.dropout(nnx.relu(self.up(x))))


class Subclass(kd.Model):
    """Layers whose weights are created for the first input."""

    def __init__(self):
        super().__init__()
        self.up, self.down = layers.Dense(HIDDEN, "relu"), layers.Dense(WIDTH)

    def call(self, x):
        return self.down(self.up(x))


def sequential():
    return kd.Sequential(
        [kd.Input((WIDTH,)), layers.Dense(HIDDEN, "relu", name="up"), layers.Dense(WIDTH, name="down")]
    )


def foreign_module():
    return Foreign(nnx.Rngs(0))


def compiled():
    model = Subclass()
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def tensor_parallel(sizes, devices=None):
    rules = kd.LayoutMap(kd.DeviceMesh(sizes, devices=devices))
    rules["up/kernel"], rules["up/bias"], rules["down/kernel"] = (None, "model"), ("model",), ("model", None)
    return kd.ModelParallel(rules)


FACTORIES = {
    "layers": sequential,
    "layers without an input": Subclass,
    "a compiled model": compiled,
    "factory(rngs)": Foreign,
    "factory() of a module": foreign_module,
    "a function": lambda: nnx.eval_shape(foreign_module),
}


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
def test_factories_and_absent_devices(factory):
    before = {id(array) for array in jax.live_arrays()}
    program = trace_step(factory, (X, X), tensor_parallel("data=4,model=16", ABSENT[:64]), "adam", "mse")
    made = [array for array in jax.live_arrays() if id(array) not in before and array.size >= WIDTH * HIDDEN]
    assert factory is foreign_module or not made
    assert program.state.row("up/kernel").axes == (None, "model")
    assert program.batch.row("input/x").nbytes_per_device == 4 * ROWS * WIDTH // 4
    moved = propagate(program.lowered).nbytes_by_axes()
    kernels_and_biases = 4 * (2 * WIDTH * HIDDEN // 16 + HIDDEN // 16 + WIDTH)
    assert moved["all_reduce", ("data",)] >= kernels_and_biases
    assert program.assumed == ()


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("made", [sequential, Subclass, compiled, foreign_module])
def test_a_model_is_not_touched(made):
    model = made()
    before = None if isinstance(model, Foreign) else model.built
    trace_step(model, (X, X), tensor_parallel("data=4,model=16", ABSENT[:64]), "adam", "mse")
    if isinstance(model, Foreign):
        model = kd.Model.from_nnx(model)
    else:
        assert model.built == before
    model.compile("sgd", "mse")
    x = np.ones((ROWS, WIDTH), np.float32)
    assert np.isfinite(model.train_on_batch(x, x))


def test_arguments_are_named_in_the_order_of_the_program():
    program = trace_step(compiled, (X, X), tensor_parallel("data=2,model=4"))
    module = program.lowered.compiler_ir("stablehlo")
    main = next(op for op in module.body.operations if str(op.name) == '"main"')
    assert len(program.arguments) == len(main.arguments)
    rows = {row.path: row for row in (*program.state.rows, *program.batch.rows)}
    named = [(rows[path], argument) for path, argument in zip(program.arguments, main.arguments, strict=True) if path]
    assert [tuple(argument.type.shape) for _, argument in named] == [row.shape for row, _ in named]
    assert {row.path for row, _ in named} >= {"up/kernel", "down/bias", "input/x", "target"}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("strategy", [kd.DataParallel, kd.FullySharded])
def test_it_is_the_program_that_runs(strategy):
    with strategy(kd.DeviceMesh("data=8")).scope():
        model = sequential()
    model.compile("adam", "mse")
    x = np.zeros((ROWS, WIDTH), np.float32)
    planned = trace_step(model, (x, x)).lowered
    assert propagate(planned) == model.plan(x, x).step
    ran, said = (propagate(lowered).nbytes_by_axes() for lowered in (model.lower_train_step(x, x), planned))
    assert ran == said


def test_padding_counts():
    odd = jax.ShapeDtypeStruct((30, WIDTH), np.float32)
    program = trace_step(sequential, (odd, odd), kd.DataParallel(kd.DeviceMesh("data=8")), loss="mse")
    assert program.batch.row("input/x").shape == (32, WIDTH)
    assert program.batch.row("target").nbytes_per_device == 4 * 4 * WIDTH


def test_what_is_not_given_is_assumed_and_said():
    program = trace_step(Foreign, X, kd.DataParallel(kd.DeviceMesh("data=8")))
    assert program.assumed == ("optimizer 'adam'", "loss: the mean square of the outputs")
    report = kd.plan(Foreign, X, kd.DataParallel(kd.DeviceMesh("data=8")))
    assert "assumed: optimizer 'adam'" in str(report) and report.to_dict()["assumed"] == list(program.assumed)
    assert trace_step(compiled, (X, X)).assumed == ()


def test_what_runs_needs_devices():
    with pytest.raises(DeviceError, match="tpu"), tensor_parallel("data=4,model=16", ABSENT[:64]).scope():
        sequential()


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((3, X), ModelError, "needs a keras_dist.Model"),
        ((lambda a, b: None, X), ModelError, "needs a keras_dist.Model"),
        ((lambda: 3, X), ModelError, "needs a keras_dist.Model"),
        (
            (sequential, (X, jax.ShapeDtypeStruct((3, WIDTH), np.float32)), None, "sgd", "mse"),
            DataError,
            "one row each",
        ),
        ((sequential, X, None, "sgd", "mse"), DataError, "y is missing"),
        ((sequential, {}, None, "sgd", "mse"), DataError, "x holds no array"),
        (
            (sequential, (8, 6), None, "sgd", "mse"),
            DataError,
            r"(?s)batch = \(8, 6\).*ShapeDtypeStruct\(\(8, 6\), 'float",
        ),
        (
            (sequential, ({"x": (8, 6)}, (8, 3)), None, "sgd", "mse"),
            DataError,
            r"batch\[0\]\['x'\] = \(8, 6\); batch\[1\]",
        ),
        ((sequential, kd.data.pack([[1, 2]], 8), None, "sgd", "mse"), DataError, r"(?s)1 rows.*next\(iter"),
        ((sequential, (X, X), tensor_parallel("data=1,model=3", ABSENT[:3]), "sgd", "mse"), LayoutError, "up/kernel"),
    ],
)
def test_errors(arguments, error, said):
    with pytest.raises(error, match=said):
        trace_step(*arguments)


class Spectrum(kd.layers.Layer):
    def call(self, inputs):
        return jnp.abs(jnp.fft.fft(inputs))


@pytest.mark.parametrize(
    "factory",
    [
        lambda: kd.Sequential([kd.Input((WIDTH,)), Spectrum(), kd.layers.Dense(WIDTH), Spectrum()]),
        lambda: kd.Model.from_nnx(Foreign(nnx.Rngs(0))),
    ],
    ids=["complex constants", "keys"],
)
def test_values_that_are_no_real_numbers(factory):
    report = kd.plan(factory, (X, X), kd.DataParallel(kd.DeviceMesh("data=8")), "adam", "mse", compiles=False)
    assert report.step.flops > 0
