"""Masks of layers that join arrays; `tests/parity` compares values with Keras."""

import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError
from keras_dist.variables import call_context


def test_arrays_of_fewer_dims_are_widened_behind_the_batch_with_their_masks() -> None:
    random = np.random.default_rng(0)
    long, short = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in ((2, 3, 4), (2, 4)))
    np.testing.assert_allclose(layers.Add()([short, long]), long + short[:, None], rtol=1e-6)
    with call_context.entered() as context:
        context.set_mask([short, long], [jnp.array([True, False]), jnp.array([[True, False, False]] * 2)])
        outputs = layers.Maximum()([short, long])
        assert context.mask_of(outputs).tolist() == [[True, True, True], [True, False, False]]
    np.testing.assert_array_equal(outputs[0, 1], short[0])
    np.testing.assert_array_equal(outputs[1, 0], long[1, 0])


@pytest.mark.parametrize("layer", [layers.Add(), layers.Concatenate()])
@pytest.mark.parametrize(("count", "masks"), [(2, np.ones((2, 3))), (None, [None, None]), (2, [None])])
def test_masks_are_a_list_of_one_for_each_input(layer, count, masks):
    inputs = [kd.Input((3, 4))] * count if count else kd.Input((3, 4))
    with pytest.raises(ModelError, match="must get a list of inputs, and a mask or None for each"):
        layer.compute_mask(inputs, masks)


def test_masks_of_arrays_are_concatenated_for_symbolic_inputs():
    inputs = [kd.Input((2, 3)), kd.Input((2, 3))]
    masks = [np.ones((5, 2, 3), bool), np.zeros((5, 2, 3), bool)]
    np.testing.assert_array_equal(layers.Concatenate().compute_mask(inputs, masks), np.ones((5, 2), bool))
