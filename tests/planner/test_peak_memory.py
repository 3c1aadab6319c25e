"""The estimate of the peak of intermediate results: of small programs by hand, of a bank of models against XLA."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from keras_dist.planner import propagate
from tests.planner import memory_bank
from tests.soak import LARGE

ROWS, WIDTH, TURNS = 64, 8, 16
NBYTES = 4 * ROWS * WIDTH


def peak(function, *shapes, donated=()):
    mesh = AbstractMesh((1,), ("data",), axis_types=(AxisType.Auto,))
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P())) for shape in shapes]
    step = jax.jit(function, donate_argnums=donated)
    return propagate(step.trace(*arrays).lower(lowering_platforms=("cpu",))).activation_nbytes


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


def test_stacked_results_of_a_loop_are_held():
    def function(x, kernel):
        _, stacked = jax.lax.scan(lambda x, _: (x @ kernel, x), x, length=TURNS)
        return stacked

    found = peak(function, (ROWS, WIDTH), (WIDTH, WIDTH))
    assert TURNS * NBYTES < found <= (TURNS + 3) * NBYTES, "the stack, what is carried, and a product"


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
    assert deep == deeper <= 3 * NBYTES


def test_cheap_operations_are_computed_again_and_costly_ones_kept():
    def of(operation):
        def function(x, kernel):
            hidden = x @ kernel
            first = operation(hidden) @ kernel
            return jnp.sum(jnp.sort(first, 0) * operation(hidden))

        return peak(function, (ROWS, WIDTH), (WIDTH, WIDTH))

    assert of(jnp.negative) <= of(jnp.exp)


# XLA for CPUs removes the barriers of `remat` outside of loops, and then merges what is computed twice
_BANK = [name for name in memory_bank.BANK if name != "decoder, remat"]


@pytest.mark.soak
@pytest.mark.multiprocess
@pytest.mark.parametrize("name", _BANK if LARGE else ["8 LSTM", "scanned stages", "24 linear layers"])
def test_the_bound_is_above_the_peak_of_the_compiled_program(name):
    found = memory_bank.compared(name, "data", "cpu:8")
    assert found.state + 2 * found.estimate >= 0.95 * (found.state + found.compiled)
