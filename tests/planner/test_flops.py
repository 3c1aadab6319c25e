"""FLOPs of convolutions, beside products counted by hand: without padding and inserted zeros."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import keras_dist as kd
from keras_dist.planner import propagate

ROWS, INPUTS, OUTPUTS = 8, 4, 6
NAMES = ("NWC", "WIO", "NWC")
WHOLE = P()


def products(size, kernel, ends, stride=1, dilation=1, before=0):
    """Pairs of an input and an output that a weight connects, one by one."""
    return sum(
        0 <= place * stride + weight * dilation - before < size for place in range(ends) for weight in range(kernel)
    )


def step_flops(function, x, kernel, layout=WHOLE, axis_size=1, weight_layout=WHOLE):
    """FLOPs of the convolution, and with the gradients of both arguments."""
    mesh = AbstractMesh((axis_size,), ("data",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct(x, jnp.float32, sharding=NamedSharding(mesh, layout))
    kernel = jax.ShapeDtypeStruct(kernel, jnp.float32, sharding=NamedSharding(mesh, weight_layout))
    step = jax.grad(lambda *arguments: jnp.sum(function(*arguments) ** 2), argnums=(0, 1))
    lower = [jax.jit(each).trace(x, kernel).lower(lowering_platforms=("cpu",)) for each in (function, step)]
    return [propagate(each).flops for each in lower]


CONVOLUTIONS = {
    "same": ({"window_strides": (1,), "padding": "SAME"}, products(16, 3, 16, before=1)),
    "strided": ({"window_strides": (2,), "padding": "SAME"}, products(16, 3, 8, 2)),
    "valid": ({"window_strides": (1,), "padding": "VALID"}, 14 * 3),
    "dilated": ({"window_strides": (1,), "padding": "SAME", "rhs_dilation": (2,)}, products(16, 3, 16, 1, 2, 2)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("shards", [1, 2])
def test_each_product_with_an_input_counts_three_times_in_a_step(name, shards):
    options, pairs = CONVOLUTIONS[name]

    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, dimension_numbers=NAMES, **options)

    forward, step = step_flops(convolve, (ROWS, 16, INPUTS), (3, INPUTS, OUTPUTS), P("data"), shards)
    by_hand = 2 * ROWS * INPUTS * OUTPUTS * pairs // shards
    assert (forward, step) == (by_hand, 3 * by_hand)


@pytest.mark.parametrize("stride", [2, 3])
def test_a_transposed_convolution_multiplies_each_input_with_the_kernel(stride):
    def convolve(x, kernel):
        return jax.lax.conv_transpose(x, kernel, (stride,), "VALID", dimension_numbers=NAMES)

    forward, step = step_flops(convolve, (ROWS, 16, INPUTS), (3, INPUTS, OUTPUTS))
    by_hand = 2 * ROWS * INPUTS * OUTPUTS * 16 * 3  # each input meets each weight once
    assert (forward, step) == (by_hand, 3 * by_hand)


def test_a_depthwise_convolution_multiplies_no_other_features():
    """XLA for CPUs computes the gradient of its kernel as a dense convolution, of which it keeps the diagonal."""

    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (1,), "VALID", None, None, NAMES, feature_group_count=OUTPUTS)

    forward, step = step_flops(convolve, (ROWS, 16, OUTPUTS), (4, 1, OUTPUTS))
    by_hand = 2 * ROWS * OUTPUTS * 13 * 4
    assert (forward, step) == (by_hand, 3 * by_hand)


def test_rows_and_features_over_devices_share_the_products():
    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (1,), "SAME", None, None, NAMES)

    whole = 2 * ROWS * 8 * 8 * products(16, 3, 16, before=1)
    for layout, weight_layout in ((P(None, "data"), P()), (P(), P(None, None, "data")), (P("data"), P())):
        forward, step = step_flops(convolve, (ROWS, 16, 8), (3, 8, 8), layout, 4, weight_layout)
        assert (forward, step) == (whole // 4, 3 * whole // 4)


def test_products_in_a_scan_count_in_each_turn():
    """XLA's own `cost_analysis` counts the body of a loop once."""

    def scanned(x, kernel):
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ kernel), None), x, length=7)[0]

    forward, step = step_flops(scanned, (ROWS, 16), (16, 16))
    assert (forward, step) == (7 * 2 * ROWS * 16 * 16, 3 * 7 * 2 * ROWS * 16 * 16)


def test_layers_with_strides_and_the_transposed_layer():
    def factory():
        down = kd.layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False)
        up = kd.layers.Conv2DTranspose(3, 3, strides=2, padding="same", use_bias=False)
        return kd.Sequential([kd.Input((16, 16, 3)), down, up])

    x = np.zeros((8, 16, 16, 3), "float32")
    with kd.DataParallel(kd.DeviceMesh("data=8")).scope():
        found = kd.plan(factory, x, optimizer="sgd").step.flops
    pairs = products(16, 3, 8, 2) ** 2  # of both: the transposed layer connects the same inputs and outputs
    assert found == (2 + 3) * 2 * 3 * 8 * pairs  # the first layer has no gradient of its input
