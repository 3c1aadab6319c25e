"""What Shardy finds in a step: collectives, FLOPs and memory, beside the textbook, other programs and XLA's own."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import keras_dist as kd
from keras_dist.planner import propagate

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
    assert [each.nbytes for each in found.collectives] == [4 * ROWS * WIDTH]
    found = propagate(step.trace(x, columns, columns, columns).lower(lowering_platforms=("cpu",)))
    assert [each.nbytes for each in found.collectives] == [4 * ROWS * WIDTH] * 3

    def both(x, query, key):
        first, second = (jax.grad(lambda x, kernel: jnp.sum((x @ kernel) ** 2))(x, kernel) for kernel in (query, key))
        return first, first + second

    kept = jax.jit(both, out_shardings=NamedSharding(mesh, P())).trace(x, columns, columns)
    found = propagate(kept.lower(lowering_platforms=("tpu",)))
    assert [each.nbytes for each in found.collectives] == [4 * ROWS * WIDTH] * 2, "one of them is a result itself"


@pytest.mark.parametrize("rows", [1, 7, 8])
def test_slices_of_fewer_rows_than_devices_are_estimates(rows):
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((32, 64), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    step = propagate(jax.jit(lambda x: x[1 : 1 + rows] * 2).trace(x).lower(lowering_platforms=("cpu",)))
    assert [each.operation for each in step.estimates] == ["slice"] * (rows < 8)
    assert any(each.kind == "collective_permute" for each in step.collectives) == (rows == 8)


def test_kernels_count_what_they_read_and_write():
    def double(source, target):
        target[...] = 2 * source[...]

    x = jax.ShapeDtypeStruct((256, 128), jnp.float32)
    kernel = pl.pallas_call(double, out_shape=x)
    program = jax.jit(lambda x: jnp.sin(kernel(jnp.sin(x)))).trace(x).lower(lowering_platforms=("tpu",))
    array = 4 * 256 * 128
    assert propagate(program).accessed_nbytes == 2 * array + 2 * array  # of the step, and of the kernel
