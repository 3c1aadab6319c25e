"""Classes as rows, rows of norm 1, sequences of one length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import utils
from keras_dist.errors import DataError


def test_arrays_of_jax_stay_on_their_devices():
    rows = utils.to_categorical(jnp.array([[0], [2]]))
    assert isinstance(rows, jax.Array) and rows.tolist() == [[1, 0, 0], [0, 0, 1]]
    normal = utils.normalize(jnp.array([[3.0, 4.0], [0.0, 0.0]]))
    assert isinstance(normal, jax.Array) and np.allclose(normal, [[0.6, 0.8], [0.0, 0.0]])


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: utils.to_categorical([0, 3], 3), ["3", "num_classes=3", "0 to 2"]),
        (lambda: utils.to_categorical([0, -1]), ["-1"]),
        (lambda: utils.pad_sequences([[1]], padding="left"), ["`padding`", "'left'", "post"]),
        (lambda: utils.pad_sequences([[1]], truncating="left"), ["`truncating`", "'left'"]),
        (lambda: utils.pad_sequences([[1], 2]), ["`sequences[1]`", "2"]),
        (lambda: utils.pad_sequences([[[1, 2]], [[1]]]), ["`sequences[1]`", "(2,)"]),
        (lambda: utils.pad_sequences([["a"]], value="<pad>"), ["`dtype`", "dtype='object'"]),
    ],
)
def test_mistakes_are_named(make, parts):
    with pytest.raises(DataError) as error:
        make()
    for part in parts:
        assert part in str(error.value)
