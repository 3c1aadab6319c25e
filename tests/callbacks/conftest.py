"""What the tests of this room share."""

import pytest

import keras_dist as kd
from tests import layouts
from tests.networks import Plain


@pytest.fixture(scope="module")
def model():
    """A model on a mesh, with a loss and a metric."""
    with layouts.on("data=4,model=2").scope():
        model = kd.Model.from_nnx(Plain, seed=0)
    model.compile("sgd", loss=kd.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model
