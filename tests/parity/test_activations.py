"""Activations give Keras's values and gradients."""

import functools
import itertools
from typing import Any

import numpy as np
import pytest

from keras_dist import activations
from tests.parity.compare import compare_functions

# Odd multiples of 1/64 are never on a kink
NUMBERS = ((2 * np.arange(-300, 300) + 1) / 64).astype("float32")
SHAPES = [(4, 6), (2, 4, 3)]
SLOPES = [0.0, 0.1, 0.5]
LIMITS = [0.25, 0.5, 1.0, 3.0]
PLAIN = [
    *("exponential", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "linear", "log_sigmoid", "mish", "relu"),
    *("relu6", "selu", "sigmoid", "silu", "softplus", "softsign", "sparse_plus", "sparse_sigmoid", "swish", "tanh"),
    *("tanh_shrink", "leaky_relu", "gelu", "elu", "squareplus", "soft_shrink", "hard_shrink", "celu"),
]


def products(**choices: list[Any]) -> list[dict[str, Any]]:
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


OPTIONS = {
    "relu": products(negative_slope=SLOPES, max_value=[None, 0.5, 6], threshold=[0.0, 1.0, -0.5]),
    "leaky_relu": products(negative_slope=SLOPES),
    "elu": products(alpha=LIMITS),
    "celu": products(alpha=LIMITS),
    "squareplus": products(b=[0.5, 1, 4, 9.0]),
    "gelu": products(approximate=[False, True]),
    "soft_shrink": products(threshold=LIMITS),
    "hard_shrink": products(threshold=LIMITS),
    "threshold": products(threshold=LIMITS, default_value=SLOPES),
}


def agree(keras: Any, x: np.ndarray, **options: list[dict[str, Any]]) -> None:
    """Values and gradients of the activations of these names are Keras's, with each of their options."""
    ours, theirs = (
        {
            f"{name} of {arguments}": functools.partial(getattr(package, name), **arguments)
            for name, several in options.items()
            for arguments in several
        }
        for package in (activations, keras.activations)
    )
    compare_functions(ours, theirs, x)


def test_number_by_number(keras):
    agree(keras, NUMBERS, **{name: [{}] for name in PLAIN})
    agree(keras, NUMBERS, **OPTIONS)


def test_gradients_at_zero(keras):
    names = ["relu", "leaky_relu", "elu", "celu", "selu", "silu", "relu6"]
    agree(keras, np.zeros((2, 3), "float32"), **{name: [{}] for name in names})


@pytest.mark.parametrize("shape", SHAPES)
def test_along_an_axis(keras, shape):
    x = np.random.default_rng(0).choice(NUMBERS, shape)
    axes = products(axis=[-1, 0, 1])
    agree(keras, x, softmax=axes, log_softmax=axes, glu=[{"axis": -1 if len(shape) == 2 else 1}])


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_sparsemax_of_one_class(keras, axis):
    # where more than one is left, Keras's values do not add up to 1
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32")
    np.moveaxis(x, axis, -1)[..., 0] += 20
    agree(keras, x, sparsemax=[{"axis": axis}])


def test_names_that_configs_hold(keras):
    for name in set(activations.__all__) - {"get", "serialize", "deserialize"}:
        ours, theirs = (package.serialize(getattr(package, name)) for package in (activations, keras.activations))
        assert ours == theirs, name
