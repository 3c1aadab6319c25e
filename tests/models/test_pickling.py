"""Models, and layers of models, for `pickle` and `copy`."""

import contextlib
import copy
import pickle

import jax
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ConfigError

X, Y = np.arange(12.0).reshape(4, 3), np.ones((4, 1))


class Own(kd.Model):
    """A model of a class that is not registered."""

    def __init__(self, units):
        super().__init__()
        self.dense, self.dropout = layers.Dense(units), layers.Dropout(0.5)

    def call(self, x, training=None):
        """Dropout of a dense layer."""
        return self.dropout(self.dense(x), training=training)


def unpickled(made):
    """What comes out of a pickle."""
    return pickle.loads(pickle.dumps(made))


@pytest.mark.parametrize(("make", "again"), [(lambda: Own(1), copy.deepcopy), (lambda: functional(), unpickled)])
def test_a_copy_has_all_of_the_model_and_is_its_own(make, again):
    with kd.DataParallel(devices=kd.list_devices()[:2]).scope():
        model = make()
        model.compile("adam", loss="mse", metrics=["mae"])
        model.fit(X, Y, verbose=0)
    with model.distribution.scope() if again is unpickled else contextlib.nullcontext():
        made = again(model)
    assert (made.name, made.distribution, made.get_compile_config()) == (
        model.name,
        model.distribution,
        model.get_compile_config(),
    )
    ours, theirs = made.snapshot(), model.snapshot()
    assert (ours.step, ours.documents["model"]) == (theirs.step, theirs.documents["model"])
    jax.tree.map(np.testing.assert_array_equal, ours.arrays, theirs.arrays)
    made.set_weights([0 * weight for weight in made.get_weights()])
    assert np.any(model.get_weights()[0])
    layer = next(layer for layer in model.layers if layer.weights)
    for again in (copy.copy, copy.deepcopy, unpickled):
        alone = again(layer)
        np.testing.assert_equal(alone.get_weights(), layer.get_weights())
        alone.kernel.assign(np.zeros((3, 1)))
        assert np.any(model.get_weights()[0])


def functional():
    """A model between symbolic tensors."""
    inputs = kd.Input((3,))
    return kd.Model(inputs, layers.Dense(1)(inputs))


def test_a_copy_before_the_weights_are_born_and_one_that_needs_code():
    assert not copy.copy(kd.Sequential([layers.Dense(1)])).built
    with pytest.raises(ConfigError, match=r"flax\.nnx module has no config"):
        copy.deepcopy(kd.Model.from_nnx(lambda rngs: nnx.Linear(3, 1, rngs=rngs)))
