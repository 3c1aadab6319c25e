"""Gradients of kernels on several devices: the same values, summed up in the shape of the kernel."""

import re

import jax
import numpy as np
import pytest
from jax import lax

import keras_dist as kd
from keras_dist import layers
from keras_dist.training.kernel_gradients import like_kernel

FORMS = {
    "a kernel's gradient": ((5, 3), (5, 4), (0,), (0,), (), ()),
    "over two dims": ((5, 2, 3), (5, 2, 4), (0, 1), (0, 1), (), ()),
    "in another order": ((5, 2, 3, 7), (2, 5, 4), (0, 1), (1, 0), (), ()),
    "forward": ((5, 3), (3, 4), (1,), (0,), (), ()),
    "of batches": ((5, 3, 2), (5, 3, 4), (1,), (1,), (0,), (0,)),
    "of vectors": ((5,), (5,), (0,), (0,), (), ()),
    "of a vector": ((5, 2), (5,), (0,), (0,), (), ()),
    "outer": ((5,), (3,), (), (), (), ()),
}


@pytest.mark.parametrize("form", FORMS)
def test_values_are_those_of_jax(form):
    a_shape, b_shape, *dims = FORMS[form]
    a, b = (np.random.default_rng(0).normal(size=shape).astype("f4") for shape in (a_shape, b_shape))
    numbers = (tuple(dims[:2]), tuple(dims[2:]))
    precision = (lax.Precision.HIGHEST, lax.Precision.DEFAULT)
    rest = {"dimension_numbers": numbers, "precision": precision, "preferred_element_type": np.dtype("f4")}
    ours, theirs = jax.jit(lambda a, b: (like_kernel(a, b, **rest, out_sharding=None), lax.dot_general(a, b, **rest)))(
        a, b
    )
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_devices_sum_up_gradients_in_the_shape_of_the_kernel():
    with kd.DataParallel(devices=kd.list_devices()[:2]).scope():
        model = kd.Sequential([kd.Input((7,)), layers.Dense(5)])
        model.compile("sgd", "mse")
    lowered = model.lower_train_step(np.ones((4, 7), "f4"), np.ones((4, 5), "f4"))
    summed = re.findall(r"= (.*) all-reduce\(", lowered.compile().as_text())
    assert "f32[7,5]" in " ".join(summed)
    assert "f32[5,7]" not in " ".join(summed)
