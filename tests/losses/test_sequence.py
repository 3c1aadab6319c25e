"""CTC by counting alignments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import losses
from keras_dist.errors import ModelError


def test_it_adds_up_all_alignments():
    # each of three classes has 1/3 in every step: of 9 paths of two steps, 1-1, 1-0 and 0-1 mean the sequence 1
    y_true, y_pred = [[1, 0], [1, 2]], np.zeros((2, 2, 3), "float32")
    several = [losses.ctc, losses.CTC(reduction="sum"), losses.CTC()]
    found = jax.jit(lambda y_pred: [loss(y_true, y_pred) for loss in several])(y_pred)
    for one, expected in zip(found, ([np.log(3), np.log(9)], np.log(27), np.log(27) / 2), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-5)


@pytest.mark.parametrize(("y_true", "y_pred"), [((2,), (2, 5, 3)), ((2, 4), (2, 5)), ((3, 4), (2, 5, 3))])
def test_shapes_that_do_not_fit_are_refused(y_true, y_pred):
    with pytest.raises(ModelError, match="ctc: `y_true` must be class indices") as caught:
        losses.ctc(jnp.ones(y_true, int), jnp.ones(y_pred))
    assert str(y_true) in caught.value.given and str(y_pred) in caught.value.given and caught.value.fix
