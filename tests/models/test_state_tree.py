"""The state of a model as nested dicts, and what its graph runs."""

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ModelError


def model_of():
    model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1, name="head")])
    model.compile("adam", "mse", metrics=["mae"])
    return model


def test_state_tree_has_all_variables_and_sets_them():
    model = model_of()
    model.fit(np.ones((8, 3), "float32"), np.ones((8, 1), "float32"), batch_size=8, verbose=0)
    tree = model.get_state_tree("numpy_array")
    assert isinstance(tree["trainable_variables"]["head"]["kernel"], np.ndarray)
    assert tree["non_trainable_variables"] == {}
    assert tree["optimizer_variables"]["adam"]["iteration"] == 1
    assert float(tree["optimizer_variables"]["adam"]["learning_rate"]) == pytest.approx(1e-3)
    assert set(tree["metrics_variables"]["loss"]) == {"total", "count"}
    assert {"adam/iteration", "adam/learning_rate"} <= {one.path for one in model.optimizer.variables}
    paths = ["loss/total", "loss/count", "mean_absolute_error/total", "mean_absolute_error/count"]
    assert [one.path for one in model.metrics_variables] == paths
    other = model_of()
    tree["optimizer_variables"]["adam"]["learning_rate"] = 0.5
    other.set_state_tree({kind: tree[kind] for kind in ("trainable_variables", "optimizer_variables")})
    np.testing.assert_array_equal(other.layers[-1].kernel, tree["trainable_variables"]["head"]["kernel"])
    assert (float(other.optimizer.learning_rate), int(other.optimizer.iterations)) == (0.5, 1)


def test_state_tree_tells_wrong_names():
    with pytest.raises(ModelError, match="unknown variable name"):
        model_of().set_state_tree({"weights": {}})
    with pytest.raises(ModelError, match="value_format"):
        model_of().get_state_tree("list")


def test_operations_are_layers_and_operations_of_the_graph():
    inputs = kd.Input((3,))
    dense = kd.layers.Dense(2)
    model = kd.Model(inputs, dense(inputs) + 1)
    first, second, third = model.operations
    assert (type(first).__name__, second.name, third.name) == ("InputLayer", "dense", "add")
    assert model_of().operations[-1].name == "head"
