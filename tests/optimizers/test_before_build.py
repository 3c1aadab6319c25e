"""What an optimizer without state has, and takes."""

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import optimizers
from keras_dist.errors import ModelError


def test_variables_are_the_steps_and_the_rate():
    optimizer = optimizers.Adam(0.5)
    assert [float(value) for value in optimizer.variables] == [0.0, 0.5]
    optimizer.learning_rate = optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    assert len(optimizer.variables) == 1
    weight = kd.Variable(np.ones(2, "float32"))
    optimizer.apply([np.ones(2, "float32")], [weight])
    optimizer.apply([np.ones(2, "float32")], [weight])
    np.testing.assert_allclose(weight.numpy(), 1 - 0.5 - 0.25, atol=1e-5)
    assert optimizer.get_config()["learning_rate"]["class_name"] == "ExponentialDecay"


def test_none_is_no_optimizer():
    assert optimizers.get(None) is None
    model = kd.Sequential([kd.Input((2,)), kd.layers.Dense(1)])
    with pytest.raises(ModelError, match="`optimizer` is missing"):
        model.compile(None, loss="mse")


def test_the_constraint_of_a_variable_is_applied():
    weight = kd.Variable(np.array([-1.0, 2.0], "float32"))
    weight.constraint = kd.constraints.NonNeg()
    optimizers.SGD(0.5).apply([np.zeros(2, "float32")], [weight])
    np.testing.assert_array_equal(weight.numpy(), [0, 2])


def test_arguments_of_old_configs_of_loss_scale_optimizers():
    inner = optimizers.SGD(0.5)
    optimizers.LossScaleOptimizer(inner, dynamic=True, use_ema=False, ema_momentum=0.99, clipnorm=None)
    with pytest.raises(ModelError, match="loss_scale_factor"):
        optimizers.LossScaleOptimizer(inner, dynamic=False)
    with pytest.raises(ModelError, match="ema_momentum"):
        optimizers.LossScaleOptimizer(inner, ema_momentum=0.5)


def test_scopes_of_names_tell_optimizers_of_variables():
    with kd.name_scope("encoder"), kd.name_scope("dense"):
        first = kd.Variable(np.ones(1, "float32"), name="kernel")
    second = kd.Variable(np.ones(1, "float32"), name="kernel")
    assert (first.path, second.path, first.name) == ("encoder/dense/kernel", "kernel", "kernel")
    chosen = optimizers.OptimizerMap(optimizers.SGD(0.5), {"encoder/.*": optimizers.SGD(0.25)})
    optimizers.MultiOptimizer(chosen).apply([np.ones(1, "float32")] * 2, [first, second])
    np.testing.assert_array_equal([first.numpy(), second.numpy()], [[0.75], [0.5]])


def test_callbacks_set_the_rates_of_all_parts_of_a_multi_optimizer():
    parts = optimizers.SGD(0.5), optimizers.SGD(0.25)
    model = kd.Sequential([kd.Input((2,)), kd.layers.Dense(2, name="body"), kd.layers.Dense(1, name="head")])
    model.compile(optimizers.MultiOptimizer(optimizers.OptimizerMap(parts[0], {"head/.*": parts[1]})), loss="mse")
    halved = kd.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    x, y = np.ones((4, 2), "float32"), np.zeros((4, 1), "float32")
    logs = model.fit(x, y, verbose=0, callbacks=[halved]).history
    assert [float(part.learning_rate) for part in parts] == [0.25, 0.125]
    assert logs["learning_rate_sgd"] == [0.125] and logs["learning_rate_sgd_1"] == [0.25]
