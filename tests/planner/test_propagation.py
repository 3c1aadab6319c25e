"""What Shardy finds in a step: collectives, FLOPs and memory, beside the textbook, other programs and XLA's own."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental import pallas as pl
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import keras_dist as kd
from keras_dist import layers
from keras_dist.planner import peak_memory, propagate
from tests.training.collectives import collectives_of

BLOCKS, WIDTH, HIDDEN, ROWS = 3, 16, 64, 8
MESH = {"data": 2, "model": 4}
LAYOUTS = {
    "data parallel": ({}, {"data": 4 * (2 * BLOCKS * WIDTH * HIDDEN + 1)}),
    "tensor parallel": (
        {"up": (None, "model"), "down": ("model", None)},
        {"data": 4 * (2 * BLOCKS * WIDTH * HIDDEN // 4 + 1), "model": 2 * BLOCKS * 4 * ROWS // 2 * WIDTH},
    ),
}
"""Layouts of the kernels of blocks, and what the textbook says that a step reduces over each axis, in bytes."""


def block(x, kernels):
    return x + jax.nn.relu(x @ kernels["up"]) @ kernels["down"], None


def scanned(kernels, x):
    return jnp.mean(jax.lax.scan(block, x, kernels)[0] ** 2)


def unrolled(kernels, x):
    for index in range(BLOCKS):
        x, _ = block(x, {name: kernel[index] for name, kernel in kernels.items()})
    return jnp.mean(x**2)


def lowered(loss, layout, sizes=None, rows=ROWS):
    """The gradients of a loss, lowered for a mesh without devices; those of the input, too."""
    sizes = sizes or MESH
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))

    def array(shape, *axes):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*axes)))

    shapes = {"up": (BLOCKS, WIDTH, HIDDEN), "down": (BLOCKS, HIDDEN, WIDTH)}
    kernels = {name: array(shape, None, *layout.get(name, ())) for name, shape in shapes.items()}
    x = array((rows, WIDTH), "data")
    shardings = jax.tree.map(lambda leaf: leaf.sharding, (kernels, x))
    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)), out_shardings=(NamedSharding(mesh, P()), shardings))
    return step.trace(kernels, x).lower(lowering_platforms=("cpu",))


@pytest.mark.parametrize("loss", [scanned, unrolled])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_step_moves_what_the_textbook_says(loss, name):
    layout, expected = LAYOUTS[name]
    found = propagate(lowered(loss, layout))
    assert found.nbytes_by_axes() == {("all_reduce", (axis,)): nbytes for axis, nbytes in expected.items()}
    assert {each.turns for each in found.collectives} == ({1, BLOCKS} if loss is scanned else {1})


@pytest.mark.parametrize("loss", [scanned, unrolled])
@pytest.mark.parametrize("name", LAYOUTS)
def test_flops_are_shared_by_the_devices(loss, name):
    products = BLOCKS * 2 * WIDTH * HIDDEN * ROWS * 3  # forward, and for two gradients
    shards = {"data parallel": 2, "tensor parallel": 8}[name]
    assert propagate(lowered(loss, LAYOUTS[name][0])).flops == 2 * products // shards


def test_a_thousand_devices_need_no_device():
    found = propagate(lowered(scanned, LAYOUTS["tensor parallel"][0], {"data": 64, "model": 16}, rows=128))
    assert found.nbytes_by_axes() == {
        ("all_reduce", ("data",)): 4 * (2 * BLOCKS * WIDTH * HIDDEN // 16 + 1),
        ("all_reduce", ("model",)): 2 * BLOCKS * 4 * 2 * WIDTH,
    }


def test_memory_is_that_of_the_results_that_are_live_at_once():
    mesh = AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((64, 8), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    shard = 4 * 64 * 8 // 4

    def peak(function):
        step = jax.jit(function, out_shardings=NamedSharding(mesh, P("data")))
        nbytes = propagate(step.trace(x).lower(lowering_platforms=("cpu",))).activation_nbytes
        return round(nbytes / peak_memory.GAPS)

    assert peak(jnp.sin) == shard
    assert peak(lambda x: jnp.cos(jnp.exp(jnp.sin(x)))) == shard, "one fusion"
    assert peak(lambda x: jnp.sin(x) + jnp.cos(x)) == shard
    assert peak(lambda x: (jnp.sin(x) @ jnp.ones((8, 8))) @ jnp.ones((8, 8))) == 2 * shard + 4 * 8 * 8
    assert peak(lambda x: jnp.sort(x, axis=1) + 1) == shard, "in place"
    reshaped = peak(lambda x: jnp.sort(x, axis=1).reshape(64, 4, 2) + 1)
    assert reshaped == 2 * shard, "XLA for CPUs has the sorted array as a temporary one"
    turns = peak(lambda x: jax.lax.fori_loop(0, 100, lambda _, x: jnp.cos(jnp.exp(jnp.sin(x))), x))
    assert turns == shard + 4, "the turns of a loop share their memory, and there is a counter"


KINDS = {
    "all_gather": (P("data"), lambda x, to: to(x, P()), 4 * 64),
    "all_to_all": (P("data"), lambda x, to: to(x, P(None, "data")), 4 * 64 // 8),
    "reduce_scatter": (P(None, "data"), lambda x, to: to(x @ x.T, P("data")), 4 * 64),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_and_bytes(kind):
    spec, function, nbytes = KINDS[kind]
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(mesh, spec))

    def step(x):
        return function(x, lambda x, spec: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec)))

    found = propagate(jax.jit(step).trace(x).lower(lowering_platforms=("cpu",)))
    if kind == "reduce_scatter":  # Shardy reduces everywhere, and then takes a slice
        assert found.nbytes_by_axes() == {("all_reduce", ("data",)): nbytes}
    else:
        assert found.nbytes_by_axes() == {(kind, ("data",)): nbytes}


def test_loops_whose_turns_are_not_known_count_once_and_say_so():
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(mesh, P("data")))

    def step(x):
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 100, lambda x: x * 2, x)

    found = propagate(jax.jit(step).trace(x).lower(lowering_platforms=("cpu",)))
    assert {each.turns for each in found.collectives} == {0}
    assert found.nbytes_by_axes() == {("all_reduce", ("data",)): 4 * len(found.collectives)}


class Foreign(nnx.Module):
    """Modules of Flax, one of them in a list."""

    def __init__(self, rngs):
        self.up = nnx.List([nnx.Linear(WIDTH, HIDDEN, rngs=rngs)])
        self.down = nnx.Linear(HIDDEN, WIDTH, rngs=rngs)

    def __call__(self, x):
        return self.down(nnx.relu(self.up[0](x)))


def sequential():
    return kd.Sequential(
        [kd.Input((WIDTH,)), layers.Dense(HIDDEN, activation="relu", name="up"), layers.Dense(WIDTH, name="down")]
    )


def distributed(name):
    if name == "data parallel":
        return kd.DataParallel()
    rules = kd.LayoutMap(kd.DeviceMesh(MESH))
    rules[".*up.*/kernel"], rules[".*up.*/bias"], rules[".*down/kernel"] = (None, "model"), ("model",), ("model", None)
    return kd.ModelParallel(rules)


@functools.cache
def model(kind, name):
    with distributed(name).scope():
        made = sequential() if kind == "own" else kd.Model.from_nnx(Foreign, seed=0)
    made.compile("adam", "mse")
    return made


X = np.zeros((ROWS, WIDTH), np.float32)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("kind", ["own", "foreign"])
def test_xla_moves_as_much(kind, name):
    reduced = collectives_of(model(kind, name).lower_train_step(X, X))
    assert {of for of, _ in reduced} == {"all-reduce"}
    found = model(kind, name).plan(X, X).step.nbytes_by_axes()
    assert sum(found.values()) == sum(4 * math.prod(shape) for _, shapes in reduced for shape in shapes)


@pytest.mark.parametrize(("kind", "up"), [("own", "up"), ("foreign", "up/0")])
def test_layers_are_named_also_in_the_backward_pass(kind, up):
    found = model(kind, "tensor parallel").plan(X, X).step.collectives
    over = {axis: [each.layer for each in found if each.axes == (axis,) and each.nbytes > 4] for axis in MESH}
    assert over["model"] == ["down"]
    assert set(over["data"]) == {up, "down"}


def test_what_is_not_lowered_is_refused():
    with pytest.raises(kd.errors.ModelError, match="`lowered` must be a lowered program"):
        propagate(jax.jit(jnp.sum))


def test_reductions_that_are_only_added_are_one_for_tpus():
    """The gradient of what several column-parallel kernels read: XLA reduces it once."""
    mesh = AbstractMesh((8,), ("model",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32, sharding=NamedSharding(mesh, P()))
    columns = jax.ShapeDtypeStruct((WIDTH, HIDDEN), jnp.float32, sharding=NamedSharding(mesh, P(None, "model")))

    def loss(x, query, key, value):
        return sum(jnp.sum((x @ kernel) ** 2) for kernel in (query, key, value))

    step = jax.jit(jax.grad(loss), out_shardings=NamedSharding(mesh, P()))
    found = propagate(step.trace(x, columns, columns, columns).lower(lowering_platforms=("tpu",)))
    reduced = [each for each in found.collectives if each.nbytes == 4 * ROWS * WIDTH]
    assert sorted(each.is_joined for each in reduced) == [False, True, True]
    sizes, all_of_them = {"model": 8}, {"flops": 0, "accessed_nbytes": 0, "collectives": found.collectives}
    once = dict(all_of_them, collectives=[each for each in found.collectives if not each.is_joined])
    for target, joins in (("v5e:2x4", True), ("cpu:8", False)):
        lines = [kd.planner.roofline(target, sizes, **options).step_seconds for options in (all_of_them, once)]
        assert (lines[0] == lines[1]) == joins

    def both(x, query, key):
        first, second = (jax.grad(lambda x, kernel: jnp.sum((x @ kernel) ** 2))(x, kernel) for kernel in (query, key))
        return first, first + second

    kept = jax.jit(both, out_shardings=NamedSharding(mesh, P())).trace(x, columns, columns)
    found = propagate(kept.lower(lowering_platforms=("tpu",)))
    assert not any(each.is_joined for each in found.collectives), "one of them is a result itself"


def test_kernels_count_what_they_read_and_write():
    def double(source, target):
        target[...] = 2 * source[...]

    x = jax.ShapeDtypeStruct((256, 128), jnp.float32)
    kernel = pl.pallas_call(double, out_shape=x)
    program = jax.jit(lambda x: jnp.sin(kernel(jnp.sin(x)))).trace(x).lower(lowering_platforms=("tpu",))
    array = 4 * 256 * 128
    assert propagate(program).accessed_nbytes == 2 * array + 2 * array  # of the step, and of the kernel
