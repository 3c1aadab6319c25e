"""Add, Subtract, Multiply, Average, Maximum, Minimum, Concatenate, Dot."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers, models
from keras_dist.errors import ModelError
from keras_dist.variables import call_context

MADE: dict[str, Any] = {
    "add": layers.Add,
    "subtract": layers.Subtract,
    "multiply": layers.Multiply,
    "average": layers.Average,
    "maximum": layers.Maximum,
    "minimum": layers.Minimum,
    "concatenate": lambda **options: layers.Concatenate(1, **options),
    "dot": lambda **options: layers.Dot((2, -1), True, **options),
}


def pair(*shapes: tuple[int, ...]) -> list[jnp.ndarray]:
    random = np.random.default_rng(0)
    return [jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes or ((2, 3, 4), (2, 3, 4))]


@pytest.mark.parametrize("kind", MADE)
def test_shapes_and_half_precision(kind: str) -> None:
    layer = MADE[kind]()
    expected = {"concatenate": (None, None, 4), "dot": (None, None, None)}.get(kind, (None, None, 4))
    assert layer([layers.Input((None, 4)), layers.Input((None, 4))]).shape == expected
    half = MADE[kind](dtype="bfloat16")(pair())
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(jnp.float32), layer(pair()), atol=0.1)


def test_functions_make_layers_of_a_model() -> None:
    first, second = layers.Input((2,)), layers.Input((2,))
    outputs = layers.concatenate([layers.add([first, second]), layers.maximum([first, second], name="larger")])
    model = models.Model([first, second], layers.dot([outputs, outputs], axes=1))
    x, y = np.array([[1.0, 2.0]]), np.array([[3.0, -1.0]])
    assert model.predict([x, y], verbose=0).tolist() == [[16.0 + 1 + 9 + 4]]
    assert model.get_layer("larger").name == "larger"


def test_arrays_of_fewer_dims_are_widened_behind_the_batch_with_their_masks() -> None:
    long, short = pair((2, 3, 4), (2, 4))
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
