"""Weights of fully sharded layouts are gathered in the operation that uses them: numbers, bytes and memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist.planner import propagate
from keras_dist.training.gathers import with_gathers
from tests.soak import few
from tests.training.collectives import nbytes_by_axes

MESH = {"data": 4, "model": 2}
LAYERS, WIDTH, HIDDEN, ROWS = 3, 8, 16, 8
SHAPES = {
    "up": (LAYERS, WIDTH, HIDDEN),
    "down": (LAYERS, HIDDEN, WIDTH),
    "table": (32, WIDTH),
    "bias": (WIDTH,),
    "odd": (4, 3),
}
STACK, TABLE = 4 * WIDTH * HIDDEN, 4 * 32 * WIDTH


def fully_sharded():
    rules = kd.LayoutMap(kd.DeviceMesh(MESH))
    rules["up"], rules["down"] = (None, None, "model"), (None, "model", None)
    return kd.FullySharded(rules.device_mesh, "data", rules)


@functools.cache
def plan():
    return fully_sharded().plan({name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in SHAPES.items()})


@functools.cache
def weights():
    random = np.random.default_rng(0)
    return plan().place({name: random.normal(0, 0.3, shape).astype("float32") for name, shape in SHAPES.items()})


X = np.random.default_rng(1).normal(size=(ROWS, WIDTH)).astype("float32")


def block(x, kernels):
    return x + jnp.tanh(x @ kernels["up"]) @ kernels["down"], None


def blocks(w):
    return {"up": w["up"], "down": w["down"]}


def scanned(w, x):
    return jax.lax.scan(block, x, blocks(w))[0]


def scanned_again(w, x):
    return jax.lax.scan(jax.checkpoint(block), x, blocks(w))[0]


def unrolled(w, x):
    for index in range(LAYERS):
        x, _ = block(x, {name: kernel[index] for name, kernel in blocks(w).items()})
    return x


def unrolled_again(w, x):
    for index in range(LAYERS):
        x, _ = jax.checkpoint(block)(x, {name: kernel[index] for name, kernel in blocks(w).items()})
    return x


def tied(w, x):
    return (w["table"][jnp.argmax(x, axis=1)] + w["bias"]) @ w["table"].T


def reshaped(w, x):
    return jnp.einsum("bhd,hdv->bv", x.reshape(ROWS, 2, WIDTH // 2), w["table"].T.reshape(2, WIDTH // 2, 32))


def penalty(w, x):
    return sum(jnp.sum(kernel * kernel) for kernel in w.values()) + 0 * x


@jax.custom_vjp
def own_rule(x, kernel):
    return x @ kernel


own_rule.defvjp(lambda x, k: (x @ k, (x, k)), lambda kept, ct: (ct @ kept[1].T, kept[0].T @ ct))


def with_own_rule(w, x):
    return own_rule(x, w["table"].T)


def constrained(w, x):
    return x @ jax.lax.with_sharding_constraint(w["table"], jax.sharding.PartitionSpec()).T


def nested(w, x):
    def inner(x, kernels):
        return jax.lax.scan(lambda x, _: (jax.checkpoint(block)(x, kernels)[0], None), x, None, 2)[0], None

    return jax.lax.scan(inner, x, blocks(w))[0]


def along_the_loop(w, x):
    """A stack of which no dim divides but that of the loop."""
    return jax.lax.scan(lambda x, part: (x * part, None), x[:, :3], w["odd"])[0]


USES = [scanned, scanned_again, unrolled, unrolled_again, tied, reshaped, penalty, with_own_rule, constrained, nested]
USES += [along_the_loop]


def step(function):
    """The gradients of the mean of squares of what a function of weights gives, jitted."""

    def loss(w, x):
        return jnp.mean(with_gathers(lambda w: function(w, x), plan(), sorted(SHAPES), (w,)) ** 2)

    def gradients(w, x):
        return jax.tree.map(jax.lax.with_sharding_constraint, jax.grad(loss)(w, x), plan().shardings)

    rows = jax.sharding.NamedSharding(plan().mesh.backend_mesh, jax.sharding.PartitionSpec("data"))
    return jax.jit(gradients, in_shardings=(plan().shardings, rows), out_shardings=plan().shardings)


@functools.cache
def lowered(function):
    with jax.set_mesh(plan().mesh.backend_mesh):
        return step(function).lower(weights(), X)


@functools.cache
def compiled(function):
    return lowered(function).compile()


def gathered(function):
    """`(bytes, turns)` of the gathers of a step, sorted."""
    found = propagate(lowered(function)).collectives
    return sorted((each.nbytes, each.turns) for each in found if each.kind == "all_gather" and each.axes == ("data",))


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("function", USES)
def test_the_gradients_stay_the_same_and_sharded(function):
    found = compiled(function)(weights(), X)
    with jax.set_mesh(plan().mesh.backend_mesh):
        expected = jax.jit(jax.grad(lambda w: jnp.mean(function(w, X) ** 2)))(jax.device_get(weights()))
    for name, gradient in found.items():
        scale = float(np.max(np.abs(expected[name]))) or 1.0
        assert np.max(np.abs(gradient - expected[name])) <= scale * 1e-5, name
        assert gradient.sharding.is_equivalent_to(plan().shardings[name], gradient.ndim)


KERNEL = STACK // MESH["model"]  # of one layer, as a device has it when it is gathered
GATHERED = {
    scanned: [(KERNEL, LAYERS)] * 4,
    scanned_again: [(KERNEL, LAYERS)] * 4,
    unrolled: [(KERNEL, 1)] * (4 * LAYERS - 1),  # the input needs no gradient
    penalty: [],
    reshaped: [(TABLE, 1)],
    constrained: [(TABLE, 1)],
    along_the_loop: [(4 * 4 * 3, 1)],
}


@pytest.mark.parametrize("function", GATHERED)
def test_what_is_gathered_how_often(function):
    assert gathered(function) == GATHERED[function]


@pytest.mark.parametrize("function", [scanned, scanned_again, unrolled, unrolled_again, tied, reshaped, along_the_loop])
def test_xla_moves_as_much(function):
    assert propagate(lowered(function)).nbytes_by_axes() == nbytes_by_axes(compiled(function), MESH)


@pytest.mark.parametrize("function", [scanned, scanned_again])
def test_no_stack_is_ever_whole(function):
    mesh, depth = kd.DeviceMesh("data=8"), 16
    shapes = {"up": (depth, 64, 256), "down": (depth, 256, 64)}
    deep = kd.FullySharded(mesh).plan({name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()})
    rows = jax.sharding.NamedSharding(mesh.backend_mesh, jax.sharding.PartitionSpec("data"))

    def loss(w, x):
        return jnp.mean(with_gathers(lambda w: function(w, x), deep, sorted(w), (w,)) ** 2)

    step = jax.jit(jax.grad(loss), in_shardings=(deep.shardings, rows), out_shardings=deep.shardings)
    compiled = step.lower(deep.treedef.unflatten(deep.rows), jax.ShapeDtypeStruct((8, 64), "float32")).compile()
    of_a_layer = deep.nbytes // depth
    assert compiled.memory_analysis().temp_size_in_bytes < deep.nbytes_per_device + of_a_layer < deep.nbytes // 4


sees_values = []


class Looking(nnx.Module):
    """Tells whether it sees values."""

    def __init__(self, rngs):
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), (WIDTH, WIDTH)))

    def __call__(self, x):
        sees_values.append(not isinstance(x, jax.core.Tracer))
        return x @ self.kernel[...]


@pytest.mark.parametrize("eagerly", few([True, False], False))
def test_steps_that_are_not_compiled_are_not_traced_for_gathers(eagerly):
    with kd.FullySharded(kd.DeviceMesh("data=8")).scope():
        model = kd.Model.from_nnx(Looking, seed=0)
    model.compile("sgd", "mse", run_eagerly=eagerly)
    expected = np.mean((X @ model.weights[0].numpy() - X) ** 2)
    sees_values.clear()
    assert model.train_on_batch(X, X) == pytest.approx(expected, rel=1e-5)
    assert any(sees_values) == eagerly
