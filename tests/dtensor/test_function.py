"""Steps of training that are written as in TensorFlow: functions of variables, compiled and differentiated."""

import concurrent.futures
import copy
import functools
import importlib
import pickle
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import dtensor
from keras_dist.errors import DataError, LayoutError, ModelError

ROWS = 16


def tutorial_step(model, x, y, optimizer, metrics):
    """As in TensorFlow's tutorial, with a function in the place of the tape."""

    def loss_fn():
        logits = model(x, training=True)
        return jnp.sum(kd.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)), logits

    (loss, logits), gradients = dtensor.value_and_grad(loss_fn, model.trainable_variables, has_aux=True)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    for metric in metrics.values():
        metric.update_state(y_true=y, y_pred=logits)
    return {"loss": loss / len(x)}


def stateless_step(model, x, y, optimizer, metric):
    """The same with Keras 3's stateless API, eager."""

    def loss_fn(trainable, others):
        logits, others = model.stateless_call(trainable, others, x, training=True)
        return jnp.sum(kd.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)), (logits, others)

    trained, others = ([v.value for v in each] for each in (model.trainable_variables, model.non_trainable_variables))
    (loss, (logits, others)), gradients = jax.value_and_grad(loss_fn, has_aux=True)(trained, others)
    optimizer.build(model.trainable_variables)
    trained, slots = optimizer.stateless_apply([v.value for v in optimizer.variables], gradients, trained)
    for variables, values in (
        (model.trainable_variables, trained),
        (model.non_trainable_variables, others),
        (optimizer.variables, slots),
    ):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    metric.update_state(y, logits)
    return loss / len(x)


def make(mesh):
    """A model with statistics and random numbers, its optimizer, and a metric."""
    kd.utils.set_random_seed(1337)
    with kd.ModelParallel(kd.LayoutMap(mesh)).scope():
        model = kd.Sequential(
            [
                kd.Input((6,)),
                kd.layers.Dense(8, activation="relu", name="d1"),
                kd.layers.BatchNormalization(name="norm"),
                kd.layers.Dropout(0.25, seed=3),
                kd.layers.Dense(4, name="d2"),
            ]
        )
    return model, kd.optimizers.Adam(0.01), kd.metrics.SparseCategoricalAccuracy(mesh=mesh)


@pytest.fixture(scope="module")
def mesh():
    return dtensor.Mesh(["batch"], np.arange(8))


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    return rng.normal(size=(ROWS, 6)).astype(np.float32), rng.integers(0, 4, ROWS)


@pytest.fixture(scope="module")
def trained(mesh, batch):
    """Three steps by `dtensor.function`, and as many by the stateless API."""
    x, y = (
        jax.device_put(part, dtensor.Layout.batch_sharded(mesh, "batch", part.ndim).backend_layout) for part in batch
    )
    step = dtensor.function(tutorial_step)
    ours, theirs = make(mesh), make(mesh)
    losses = [float(step(ours[0], x, y, ours[1], {"accuracy": ours[2]})["loss"]) for _ in range(3)]
    expected = [float(stateless_step(*theirs[:1], x, y, *theirs[1:])) for _ in range(3)]
    return types.SimpleNamespace(ours=ours, theirs=theirs, losses=losses, expected=expected)


@pytest.mark.slow
def test_it_trains_as_the_stateless_api_does(trained):
    np.testing.assert_allclose(trained.losses, trained.expected, rtol=1e-5)
    for ours, theirs in zip(trained.ours[:2], trained.theirs[:2], strict=True):
        for one, other in zip(ours.variables, theirs.variables, strict=True):
            if not jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
                np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-6, err_msg=one.path)
    assert trained.ours[2].result() == trained.theirs[2].result()


def test_what_is_only_read_is_never_stale(mesh):
    model, _, metric = make(mesh)
    sums = dtensor.function(lambda model, metric, x: (jnp.sum(model(x)), metric.result()))
    x = np.ones((ROWS, 6), np.float32)
    for factor in (1.0, 2.0):
        model.get_layer("d2").kernel.assign(model.get_layer("d2").kernel * factor)
        metric.update_state(np.zeros(2), np.eye(2))
        total, mean = sums(model, metric, x)
        np.testing.assert_allclose(total, jnp.sum(model(x)), rtol=1e-5)
        assert mean == metric.result()
        metric.update_state(np.zeros(4), np.eye(4)[[1] * 4])


def test_the_model_goes_on_with_fit(trained, batch):
    model = trained.ours[0]
    model.compile("sgd", kd.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = model.weights[0].numpy()
    model.fit(*batch, batch_size=ROWS, verbose=0)
    assert np.abs(model.weights[0].numpy() - before).max() > 0


@pytest.fixture
def count():
    return dtensor.DVariable(jnp.zeros(()), trainable=False, name="count")


def test_variables_of_closures_are_inputs(count):
    add = dtensor.function(lambda x: count.assign_add(jnp.sum(x)))
    assert [float(add(jnp.ones(3))) for _ in range(2)] == [3, 6]
    count.assign(10)
    assert float(add(jnp.ones(3))) == 13
    assert float(count) == 13


def test_it_is_traced_once_for_a_form(count):
    traces = []

    @dtensor.function
    def add(x, factor, scale=1.0):
        traces.append(factor)
        return count.assign_add(jnp.sum(x) * factor * scale)

    for x, factor in ((jnp.ones(2), 1), (jnp.zeros(2), 1)):
        add(x, factor)
    seen = len(traces)
    add(jnp.ones(2), 1)
    assert len(traces) == seen
    add(jnp.ones(2), 2)  # another number
    add(jnp.ones(3), 2)  # another shape
    assert len(traces) > seen
    assert float(count) == 2 + 0 + 2 + 4 + 6


def test_functions_call_functions(count):
    add = dtensor.function(lambda x: count.assign_add(jnp.sum(x)))
    twice = dtensor.function(lambda x: add(x) + add(x))
    assert [float(twice(jnp.ones(1))) for _ in range(2)] == [1 + 2, 3 + 4]
    assert float(count) == 4


def test_gradients_outside_of_functions(count):
    w = dtensor.DVariable(jnp.array([1.0, 2.0]))

    def loss():
        count.assign_add(1)
        return jnp.sum(jnp.square(w) * 3)

    value, gradients = dtensor.value_and_grad(loss, {"w": w, "unread": count})
    assert (float(value), float(count)) == (15, 1)
    assert {name: np.asarray(gradient).tolist() for name, gradient in gradients.items()} == {"w": [6, 12], "unread": 0}


def test_jax_and_nnx_see_a_dvariable():
    class Line(dtensor.Module):
        def __init__(self):
            self.w = dtensor.DVariable(jnp.array([1.0, 2.0]))
            self.seen = dtensor.DVariable(0.0, trainable=False)

        def __call__(self, x):
            return jnp.matmul(x, self.w)

    line = Line()
    assert [variable.shape for variable in line.trainable_variables] == [(2,)]
    assert len(line.variables) == 2
    gradients = nnx.grad(lambda line: line(jnp.ones(2)))(line)
    assert gradients["w"][...].tolist() == [1, 1]
    assert jax.grad(lambda w: jnp.sum(w**2))(line.w).value.tolist() == [2, 4]
    assert dtensor.function(lambda line, x: line(x))(line, np.ones(2, np.float32)) == 3


def test_a_new_value_has_the_layout_of_the_variable(mesh):
    sharded = dtensor.DVariable(jnp.ones(8), layout=dtensor.Layout(["batch"], mesh))
    dtensor.function(lambda: sharded.assign(jnp.full(8, 7.0)))()
    assert sharded.layout.sharding_specs == ["batch"]
    sharded.assign(np.zeros(8))
    assert sharded.layout.sharding_specs == ["batch"]
    assert sharded._array().addressable_shards[0].data.shape == (1,)


def test_it_runs_inside_of_jit(count):
    add = dtensor.function(lambda x: count + jnp.sum(x))
    count.assign(1)
    assert float(jax.jit(lambda x: 2 * add(x))(jnp.ones(3))) == 8


def test_a_variable_may_be_what_a_model_is_called_with(mesh):
    model = make(mesh)[0]
    image = dtensor.DVariable(jnp.ones((8, 6)), layout=dtensor.Layout.replicated(mesh, 2))
    total = dtensor.function(lambda: jnp.sum(model(image)))

    def gradient_of(x):
        return dtensor.value_and_grad(lambda: jnp.sum(model(x())), [image])[1][0]

    np.testing.assert_allclose(gradient_of(lambda: image), gradient_of(lambda: image * 1), rtol=1e-6)
    np.testing.assert_allclose(total(), jnp.sum(model(np.ones((8, 6), np.float32))), rtol=1e-6)
    image.assign(jnp.zeros((8, 6)))
    np.testing.assert_allclose(total(), jnp.sum(model(np.zeros((8, 6), np.float32))), rtol=1e-6)


def test_few_runs_are_in_flight_and_others_of_the_job_know_of_each(count, monkeypatch):
    module = importlib.import_module("keras_dist.dtensor.function")
    finished, noted = [], []
    monkeypatch.setattr(module.job, "are_shared", lambda devices: True)
    monitor = module.heartbeat.current()
    monkeypatch.setattr(monitor, "note_step", lambda: finished.append(None))
    monkeypatch.setattr(monitor, "note_shared_steps", lambda *step: noted.append(step))

    def add(x):
        count.assign_add(jnp.sum(x))  # and returns nothing

    functions = [dtensor.function(add), dtensor.function(functools.partial(add))]
    x = jax.device_put(np.ones(3, np.float32), jax.devices()[0])
    for _ in range(3):
        for each in functions:
            each(x)
    assert len(finished) >= 4
    assert len(module._in_flight) == 2
    assert noted == [(add.__qualname__, 1), ("partial", 1)] * 3


def test_different_meshes_are_refused(mesh):
    one = dtensor.DVariable(jnp.ones(8), name="one", layout=dtensor.Layout(["batch"], mesh))
    other = dtensor.DVariable(
        jnp.ones(8), name="other", layout=dtensor.Layout(["x"], dtensor.Mesh(["x"], np.arange(4)))
    )
    with pytest.raises(LayoutError, match=r"mixes arrays of different meshes") as error:
        dtensor.function(lambda: one + other)()
    assert "variable 'one' of shape (8,) on mesh {batch: 8}" in error.value.given
    assert "variable 'other' of shape (8,) on mesh {x: 4}" in error.value.given
    plain = jax.device_put(np.ones(8), jax.devices()[1])
    with pytest.raises(LayoutError, match="copy_to_mesh"):
        dtensor.function(lambda x: one + x)(plain)


def test_variables_that_are_made_in_each_trace_are_refused():
    w = dtensor.DVariable(np.ones(2))

    @dtensor.function
    def train(x):
        kd.optimizers.SGD(0.1).apply([x], [w])

    with pytest.raises(ModelError, match="reads other variables each time"):
        train(np.ones(2, np.float32))


@pytest.mark.parametrize("wrong", [np.ones(3), "text"])
def test_what_a_variable_cannot_hold_is_refused(wrong):
    variable = dtensor.DVariable(jnp.ones(2), name="w")
    with pytest.raises(ModelError, match="'w'"):
        variable.assign(wrong)


def test_threads_may_share_variables(mesh):
    w = dtensor.DVariable(jnp.zeros(16), layout=dtensor.Layout(["batch"], mesh))
    optimizer = kd.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build([w])
    increase = dtensor.function(lambda: w.assign_add(jnp.ones(16)))
    train = dtensor.function(lambda: optimizer.apply([jnp.zeros(16)], [w]))
    calls = [increase, increase, train, lambda: np.asarray(w.value), lambda: np.asarray(optimizer.variables[-1].value)]

    def repeat(call):
        for _ in range(20):
            call()

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as threads:
        for done in [threads.submit(repeat, call) for call in calls]:
            done.result(timeout=60)
    assert w.numpy().tolist() == [40] * 16


def test_threads_that_read_models_in_other_orders_do_not_wait_for_each_other(mesh):
    one, other = (make(mesh)[0] for _ in range(2))
    x = np.ones((8, 6), np.float32)
    functions = [
        dtensor.function(lambda x: jnp.sum(one(x)) + jnp.sum(other(x))),
        dtensor.function(lambda x: jnp.sum(other(x)) + jnp.sum(one(x))),
    ]
    expected = [float(function(x)) for function in functions]
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        results = [threads.submit(lambda run=run: [float(run(x)) for _ in range(50)][-1]) for run in functions]
        assert [result.result(timeout=60) for result in results] == expected


def test_what_was_read_outlives_later_calls(mesh):
    w = dtensor.DVariable(jnp.zeros(8), layout=dtensor.Layout(["batch"], mesh))
    train = dtensor.function(lambda: w.assign_add(jnp.ones(8)))
    held = [w.value, w[...], *dtensor.unpack(w), jax.tree.leaves(w)[0], w.assign(np.zeros(8)), train()]
    before = [np.asarray(array).copy() for array in held]
    for _ in range(3):
        train()
    for array, value in zip(held, before, strict=True):
        np.testing.assert_array_equal(array, value)


def test_each_variable_keeps_its_memory(mesh):
    one, other = (dtensor.DVariable(jnp.ones(64), layout=dtensor.Layout(["batch"], mesh)) for _ in range(2))

    @dtensor.function
    def train():
        read = one * 2
        other.assign_add(read)
        one.assign_add(other)
        return read

    def memory():
        return [variable._array().addressable_shards[3].data.unsafe_buffer_pointer() for variable in (one, other)]

    before = memory()
    read = train()
    assert memory() == before, "otherwise XLA copies one into the memory of the other"
    assert (float(read[0]), float(one[0]), float(other[0])) == (2, 4, 3)


def test_a_function_that_fails_tells_of_what_is_lost(count):
    def fail(x):
        raise RuntimeError("a callback fails")

    add = dtensor.function(lambda x: count.assign_add(jax.pure_callback(fail, jax.ShapeDtypeStruct((), "float32"), x)))
    with pytest.raises(jax.errors.JaxRuntimeError, match="a callback fails") as error:
        jax.block_until_ready(add(jnp.ones(())))
    assert "restore a checkpoint" in "".join(getattr(error.value, "__notes__", ()))
    count.assign(1)
    assert float(count) == 1


def test_numbers_are_told_apart(mesh):
    one_over = dtensor.function(lambda number: 1 / (jnp.ones(()) * number))
    assert [float(one_over(number)) for number in (0.0, -0.0)] == [np.inf, -np.inf]
    traces = []
    rank = dtensor.function(lambda layout: traces.append(layout) or jnp.ones(()))
    for _ in range(2):
        rank(dtensor.Layout(["batch"], mesh))
    seen = len(traces)
    rank(dtensor.Layout(["batch"], mesh))
    assert len(traces) == seen


def test_state_of_python_is_refused():
    class Count(dtensor.Module):
        def __init__(self):
            self.t = 1.0

        def __call__(self):
            self.t += 1
            return jnp.ones(()) * self.t

    with pytest.raises(ModelError, match="sets an attribute") as error:
        dtensor.function(lambda count: count())(Count())
    assert "DVariable" in error.value.fix


@pytest.mark.parametrize(
    "compute",
    [
        lambda add: jax.lax.scan(lambda total, x: (total, add(x)), 0, jnp.ones(3)),
        lambda add: jax.lax.cond(True, add, lambda x: x, jnp.ones(())),
        lambda add: jax.jit(add)(jnp.ones(())),
    ],
    ids=["scan", "cond", "jit"],
)
@pytest.mark.parametrize("compiled", [dtensor.function, lambda step: step], ids=["function", "eager"])
def test_what_jax_traces_on_its_own_assigns_nothing(count, compute, compiled):
    with pytest.raises(ModelError, match="is assigned inside of a function that JAX traces separately"):
        compiled(lambda: compute(count.assign_add))()
    assert float(count) == 0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda variable: pickle.loads(pickle.dumps(variable))])
@pytest.mark.parametrize("trainable", [True, False])
def test_copies_of_a_variable_have_its_layout(mesh, copied, trainable):
    layout = dtensor.Layout(["batch"], mesh)
    variable = dtensor.DVariable(jnp.arange(8.0), trainable, "w", layout=layout)
    copy_of_it = copied(variable)
    variable.assign(jnp.zeros(8))
    assert (copy_of_it.layout, copy_of_it.name, copy_of_it.trainable) == (layout, "w", trainable)
    assert copy_of_it.numpy().tolist() == list(range(8))


@pytest.mark.parametrize("combine", [lambda one, x: one + x, lambda one, x: one - x, lambda one, x: one @ x])
def test_different_meshes_are_refused_also_eagerly(mesh, combine):
    one = dtensor.DVariable(jnp.ones(8), layout=dtensor.Layout(["batch"], mesh))
    other = dtensor.DVariable(jnp.ones(8), layout=dtensor.Layout(["x"], dtensor.Mesh(["x"], np.arange(4))))
    devices = [f"cpu:{index}" for index in reversed(range(8))]
    turned = dtensor.Layout(["batch"], dtensor.Mesh(["batch"], np.arange(8), local_devices=devices))
    for x in (other, dtensor.DVariable(jnp.ones(8), layout=turned), jax.device_put(np.ones(8), jax.devices()[1])):
        with pytest.raises(LayoutError, match="different meshes") as error:
            combine(one, x)
        assert "copy_to_mesh" in error.value.fix


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: dtensor.value_and_grad(lambda: 1.0, [jnp.ones(2)]), ModelError, "`variables`"),
        (
            lambda: dtensor.value_and_grad(lambda: jnp.ones(()), [], has_aux=True),
            ModelError,
            "`fn` must be a function that returns a pair",
        ),
        (lambda: dtensor.function(lambda x: x)(np.array([2**40])), DataError, "32"),
    ],
)
def test_wrong_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
