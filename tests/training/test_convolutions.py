"""Convolutions on CPUs: the same values with their dims moved, and the same bits in a loop as without."""

import itertools

import jax
import numpy as np
import pytest
from jax import lax

import keras_dist as kd
from keras_dist import layers
from keras_dist._unstable.xla_workarounds import avoid_slow_convolutions_in_loops
from tests import layouts
from tests.soak import LARGE, few, repeated

PARAMS = {"window_strides": (2, 1), "padding": ((1, 0), (2, 1)), "lhs_dilation": (1, 2), "rhs_dilation": (2, 1)}
LHS, RHS, OUT = ["NHWC", "NCHW", "CHWN", "HNCW"], ["HWIO", "OIHW", "IHWO"], ["NHWC", "WNCH"]
FORMS = [*zip(LHS, itertools.cycle(RHS), itertools.cycle(OUT), [1, 2, 2, 1], strict=False)]
if LARGE:
    FORMS = [*itertools.product(LHS, RHS, OUT, [1, 2])]


def shaped(form: str, **sizes: int) -> np.ndarray:
    shape = [sizes[dim] for dim in form]
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@repeated
@pytest.mark.parametrize(("lhs", "rhs", "out", "groups"), FORMS)
def test_wherever_the_dims_are_the_values_are_those_of_jax(lhs, rhs, out, groups):
    a, b = shaped(lhs, N=3, H=7, W=6, C=4), shaped(rhs, H=3, W=2, I=4 // groups, O=6)
    plain = lax.conv_general_dilated(a, b, **PARAMS, dimension_numbers=(lhs, rhs, out), feature_group_count=groups)
    rest = {"batch_group_count": 1, "precision": None, "preferred_element_type": None, "out_sharding": None}
    dims = lax.conv_dimension_numbers(a.shape, b.shape, (lhs, rhs, out))
    moved = jax.jit(
        lambda a, b: avoid_slow_convolutions_in_loops(
            a, b, dimension_numbers=dims, **PARAMS, feature_group_count=groups, **rest
        )
    )(a, b)
    np.testing.assert_allclose(moved, plain, rtol=1e-5, atol=1e-5)


NETWORKS = {
    "dilated, then strided": [
        layers.Conv2D(8, 3, dilation_rate=2, activation="relu"),
        layers.Conv2D(8, 3, strides=2),
        layers.Flatten(),
    ],
    "transposed": [layers.Conv2DTranspose(4, 3, strides=2), layers.Flatten()],
    "1d": [layers.Reshape((16, 12)), layers.Conv1D(8, 3, padding="causal"), layers.GlobalAveragePooling1D()],
    "3d": [layers.Reshape((8, 4, 2, 3)), layers.Conv3D(4, 2), layers.Flatten()],
    "normalized": [layers.Conv2D(8, 3, padding="same"), layers.BatchNormalization(), layers.ReLU(), layers.Flatten()],
}


@pytest.mark.first_cases(1)
@pytest.mark.soak
@pytest.mark.parametrize("name", few(NETWORKS, "normalized", "transposed"))
def test_several_steps_in_one_execution_give_the_bits_of_single_ones(name):
    generator = np.random.default_rng(0)
    x, y = generator.random((20, 8, 8, 3), np.float32), generator.integers(0, 10, 20)

    def trained(steps_per_execution):
        network = [layer.from_config(layer.get_config() | {"name": None}) for layer in NETWORKS[name]]
        with layouts.one_device().scope():
            kd.utils.set_random_seed(0)
            model = kd.Sequential([kd.Input((8, 8, 3)), *network, layers.Dense(10)])
        loss = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss=loss, steps_per_execution=steps_per_execution)
        return model.fit(x, y, batch_size=4, epochs=2, verbose=0).history, model.get_weights()

    logs, weights = trained(1)
    for steps_per_execution in (3, "auto") if LARGE else ("auto",):
        other_logs, other_weights = trained(steps_per_execution)
        assert other_logs == logs
        for ours, single in zip(other_weights, weights, strict=True):
            np.testing.assert_array_equal(ours, single)
