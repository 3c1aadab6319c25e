"""The estimate of the peak of intermediate results, of small programs by hand; `test_memory_records` has models."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from keras_dist.planner import propagate

ROWS, WIDTH, TURNS = 64, 128, 16
NBYTES = 4 * ROWS * WIDTH


def peak(function, *shapes, donated=(), platform="cpu"):
    return figures_of(function, *shapes, donated=donated, platform=platform).activation_nbytes


def figures_of(function, *shapes, donated=(), platform="cpu"):
    mesh = AbstractMesh((1,), ("data",), axis_types=(AxisType.Auto,))
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P())) for shape in shapes]
    step = jax.jit(function, donate_argnums=donated)
    return propagate(step.trace(*arrays).lower(lowering_platforms=(platform,)))


def test_a_donated_argument_holds_the_result():
    assert peak(lambda x: x + 1, (ROWS, WIDTH), donated=(0,)) == 0
    assert peak(lambda x: x + 1, (ROWS, WIDTH)) == NBYTES


def test_a_view_keeps_its_array_alive():
    def function(x, kernel):
        product = x @ kernel
        view = product.reshape(-1)
        later = (jnp.sort(x, 0) @ kernel).reshape(-1)
        return view[:1] + later[-1:]

    assert peak(function, (ROWS, WIDTH), (WIDTH, WIDTH)) == 3 * NBYTES, "both products, and the sorted array"


def test_the_backward_pass_of_a_loop_reads_what_the_forward_pass_stacked():
    def loss(kernel, x):
        x, _ = jax.lax.scan(lambda x, _: (jnp.tanh(x @ kernel), None), x, length=TURNS)
        return jnp.sum(x)

    found = peak(jax.grad(loss), (WIDTH, WIDTH), (ROWS, WIDTH))
    assert found >= 2 * TURNS * NBYTES, "inputs and outputs of each turn"


def test_a_scanned_stack_is_not_counted_for_each_turn():
    def function(kernels, x):
        return jax.lax.scan(lambda x, kernel: (x @ kernel, None), x, kernels)[0]

    deep, deeper = (peak(function, (depth, WIDTH, WIDTH), (ROWS, WIDTH)) for depth in (4, 400))
    assert deep == deeper <= 2 * NBYTES + 4 * WIDTH * WIDTH


def test_tpus_hold_rounded_what_only_products_read():
    def function(x, kernel):
        first = x @ kernel
        second = jnp.sort((first + 1).reshape(ROWS, WIDTH) @ kernel, 0)
        return jnp.sum(second @ kernel) + jnp.sum(first @ kernel)

    def precise(x, kernel):
        with jax.default_matmul_precision("highest"):
            return function(x, kernel)

    shapes = (ROWS, WIDTH), (WIDTH, WIDTH)
    assert peak(precise, *shapes, platform="tpu") > peak(function, *shapes, platform="tpu")


def test_tpus_hold_rounded_what_loops_stack_for_products():
    def stacked(x, kernel):
        last, before = jax.lax.scan(lambda x, _: (jnp.tanh(x @ kernel), x), x, length=TURNS)
        return last, before

    def loss(kernel, x):
        last, before = stacked(x, kernel)
        return jnp.sum(jax.lax.scan(lambda total, x: (total + x @ kernel, None), last, before)[0])

    shapes = (WIDTH, WIDTH), (ROWS, WIDTH)
    on_cpu, on_tpu = peak(loss, *shapes), peak(loss, *shapes, platform="tpu")
    assert on_cpu >= TURNS * NBYTES
    assert TURNS * NBYTES // 2 <= on_tpu <= on_cpu - TURNS * NBYTES // 2


def test_tpus_compute_operands_of_products_in_the_product():
    def function(x, kernel):
        hidden = x @ kernel
        return jnp.sort(jnp.exp(hidden) @ kernel * hidden, 0)

    shapes = (ROWS, WIDTH), (WIDTH, WIDTH)
    assert peak(function, *shapes) == 3 * NBYTES, "the first product, its exponential, and the second product"
    assert peak(function, *shapes, platform="tpu") == 2 * NBYTES


def test_tpus_store_a_sum_in_place_of_the_products_in_it():
    def of(depth):
        def function(x, kernel):
            for _ in range(depth):
                x = x + jnp.tanh(x) @ kernel
            return x

        return peak(function, (ROWS, WIDTH), (WIDTH, WIDTH), platform="tpu")

    assert of(9) == of(30) == 3 * NBYTES, "not the product of each turn"


def test_sums_over_devices_take_the_place_of_the_product():
    mesh = AbstractMesh((2,), ("model",), axis_types=(AxisType.Auto,))

    def array(shape, *axes):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*axes)))

    step = jax.jit(jnp.matmul, out_shardings=NamedSharding(mesh, P()))
    program = step.trace(array((ROWS, WIDTH), None, "model"), array((WIDTH, WIDTH), "model"))
    found = {name: propagate(program.lower(lowering_platforms=(name,))).activation_nbytes for name in ("cuda", "tpu")}
    assert found == {"cuda": NBYTES, "tpu": NBYTES}


def test_tpus_store_what_remat_keeps_for_the_backward_pass():
    def of(keep):
        def function(x, kernel):
            hidden = x @ kernel
            positive, hidden = keep((jax.nn.relu(hidden), hidden))
            return jnp.sum(positive @ kernel * hidden)

        return peak(function, (ROWS, WIDTH), (WIDTH, WIDTH), platform="tpu")

    def of_kernel(keep):
        def function(x, kernel):
            kernel, hidden = keep((kernel, jnp.sort(x, 0)))
            return jnp.sum(x @ kernel) + jnp.sum(jnp.sort(hidden, 1) * hidden)

        return peak(function, (ROWS, WIDTH), (WIDTH, WIDTH), platform="tpu")

    barrier = jax.lax.optimization_barrier
    more = of(barrier) - of(lambda values: values)
    assert more == pytest.approx(NBYTES // 2, abs=512), "rounded for the product; 512 bytes of the sum"
    assert of_kernel(barrier) == of_kernel(lambda values: values), "only the kernel is read by a product alone"


def test_tpus_may_store_few_features_as_128_lanes():
    def of(features, platform="tpu"):
        found = figures_of(lambda x: jnp.sort(jnp.sort(x, 0), 1), (256, 64, features), platform=platform).memory
        return found.nbytes, found.most_nbytes

    assert of(128) == (2 * 4 * 256 * 64 * 128,) * 2
    assert of(32) == (2 * 4 * 256 * 64 * 32, 2 * 4 * 256 * 64 * 128), "256 rows are lanes, or 32 features"
    assert of(32, "cpu") == (2 * 4 * 256 * 64 * 32,) * 2


def test_cpus_may_store_bfloat16_as_float32():
    def function(x):
        return jnp.sort(jnp.sort(x.astype(jnp.bfloat16), 0), 1)

    for name, times in (("cpu", 2), ("cuda", 1)):
        found = figures_of(function, (ROWS, WIDTH), platform=name).memory
        assert found.most_nbytes == times * found.nbytes


def test_padding_of_arguments_is_what_tiles_add():
    def of(*shape, donated=()):
        return figures_of(lambda x: x + 1, shape, donated=donated, platform="tpu").memory.padding_nbytes

    assert of(256, 128) == of(256, 128, 8) == 0
    assert of(64, 4) == of(64, 4, donated=(0,)) == 64 * 4 * 4, "64 of 128 lanes"
    assert figures_of(lambda x: x + 1, (64, 4)).memory.padding_nbytes == 0


def test_remat_needs_less_where_xla_keeps_it():
    """XLA for CPUs merges the repeated operations of the backward pass with the first ones."""

    def loss(kernel, x, call):
        for _ in range(6):
            x = call(lambda x: jnp.tanh(x @ kernel) @ kernel)(x)
        return jnp.sum(x)

    def of(call, platform):
        gradient = jax.grad(lambda *arrays: loss(*arrays, call))
        return peak(gradient, (WIDTH, WIDTH), (4 * ROWS, WIDTH), platform=platform)

    for name in ("tpu", "cuda"):
        assert of(jax.checkpoint, name) < 0.9 * of(lambda function: function, name)
    assert of(jax.checkpoint, "cpu") == of(lambda function: function, "cpu")


def test_arrays_that_loops_fill_may_be_allocated_before_the_first_loop():
    def function(x):
        for _ in range(3):
            _, filled = jax.lax.scan(lambda state, _: (state + 1, state), x, length=TURNS)
            x = filled.sum(0)
        return x

    found = figures_of(function, (ROWS, WIDTH)).memory
    assert found.nbytes < 2.2 * TURNS * NBYTES and found.most_nbytes > 3 * TURNS * NBYTES


def test_operations_of_unknown_memory_are_named():
    shapes = ((ROWS, WIDTH),)
    assert figures_of(jnp.sin, *shapes).opaque == ()
    assert figures_of(lambda x: jnp.fft.fft(x), *shapes).opaque == ("fft",)
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
    mapped = jax.jit(jax.shard_map(jnp.sin, mesh=mesh, in_specs=P("data"), out_specs=P("data")))
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    assert propagate(mapped.trace(x).lower(lowering_platforms=("tpu",))).opaque == ()

    assert figures_of(lambda x: jax.lax.associative_scan(jnp.multiply, x), *shapes).opaque[:1] == ("slice",)
    assert figures_of(lambda x: jnp.sort(x[0]) + x @ (x.T @ x), *shapes).opaque == (), "a small one"
    for name, expected in (("tpu_custom_call", ()), ("__cudnn$fmhaSoftmax", ("the kernel __cudnn$fmhaSoftmax",))):
        assert figures_of(lambda x, name=name: jax.ffi.ffi_call(name, x)(x), *shapes).opaque == expected


def test_a_long_chain_before_products_is_estimated():
    def chain(x, w):
        for _ in range(600):
            x = x * 1.0001 + 0.1
        return x @ w

    assert peak(chain, (64, 64), (64, 64), platform="tpu") > 0


def test_cpus_hold_all_sums_that_are_only_added():
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((TURNS, ROWS, WIDTH), jnp.float32, sharding=NamedSharding(mesh, P(None, "data")))
    w = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32, sharding=NamedSharding(mesh, P()))

    def loss(w, x):
        return sum(jnp.tanh(each @ w).sum() for each in x)

    def peak_for(platform):
        step = jax.jit(jax.grad(loss), out_shardings=w.sharding).trace(w, x)
        return propagate(step.lower(lowering_platforms=(platform,))).memory.nbytes

    assert peak_for("cpu") >= 2 * TURNS * 4 * WIDTH * WIDTH > 4 * peak_for("tpu")
