"""`model.optimizer`: what Keras's users read of an optimizer."""

import numpy as np
import optax
import pytest

import keras_dist as kd
from keras_dist.errors import ConfigError, ModelError
from tests import layouts
from tests.networks import LOSS, Plain, blobs

X, Y = blobs(32)


@pytest.fixture(scope="module")
def model() -> kd.Model:
    model = layouts.model_on("data=2,model=4", Plain)
    model.compile(kd.optimizers.SGD(0.1, momentum=0.5, name="mine"), LOSS)
    return model


def test_its_variables_are_its_state(model):
    before = {variable.path: variable.numpy() for variable in model.optimizer.variables}
    model.fit(X, Y, batch_size=16, verbose=0)
    found = {variable.path: variable for variable in model.optimizer.variables}
    assert list(found) == list(before)
    assert found["mine/learning_rate"].numpy() == pytest.approx(0.1)
    assert found["mine/iteration"].numpy() == before["mine/iteration"] + 2
    momentum = next(variable for path, variable in found.items() if path.endswith("d1/kernel"))
    kernel = next(variable for variable in model.variables if variable.path == "d1/kernel")
    assert momentum.name == "kernel" and momentum.shape == kernel.shape and momentum.dtype == kernel.dtype
    assert momentum.value.sharding == kernel.value.sharding, "laid out as its weight"
    assert np.any(np.asarray(momentum)) and not np.array_equal(momentum.numpy(), before[momentum.path])


def test_a_transformation_of_optax_has_neither_name_nor_config():
    model = layouts.plain_on("one device")
    model.compile(optax.sgd(0.1), LOSS)
    assert model.optimizer.name == "optimizer"
    with pytest.raises(ConfigError, match="'optimizer' has no config"):
        model.optimizer.get_config()


def test_gradients_are_applied_in_steps_alone(model):
    for apply in (model.optimizer.apply, model.optimizer.apply_gradients):
        with pytest.raises(ModelError, match="can only be applied inside a train step") as caught:
            apply([(np.ones(2), model.variables[0])])
        assert "train_step" in caught.value.fix and "model.apply_gradients(state, grads)" in caught.value.fix
