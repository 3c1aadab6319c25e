"""What is wrong with layout rules is found all at once, for models that are not created."""

import json

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import errors

X = jax.ShapeDtypeStruct((8, 6), "float32")


def factory():
    return kd.Sequential([kd.Input((6,)), kd.layers.Dense(12, name="d1"), kd.layers.Dense(4, name="d2")])


def checked(layouts, batch=(X, X), strategy=kd.ModelParallel, **options):
    mesh = kd.DeviceMesh("data=64,model=4", devices=[f"tpu:{index}" for index in range(256)])
    rules = kd.LayoutMap(mesh)
    for rule, axes in layouts.items():
        rules[rule] = axes
    return kd.planner.check(factory, batch, strategy(rules, batch_dim_name="data", **options))


def test_rules_that_all_decide_are_no_problem():
    report = checked({"d1/kernel": (None, "model"), "d2/output": ("data", None), "input/x": ("data", None)})
    assert report.problems == ()
    assert str(report) == "no problems: 3 layout rules, 4 weights, mesh {data: 64, model: 4}"
    assert report.weights["d1/kernel"][0] == "d1/kernel"
    assert {"d1/output", "d2/output", "input/x"} <= set(report.tensors)


@pytest.mark.parametrize("strict", [False, True])
def test_all_problems_are_found_at_once(strict):
    layouts = {"d1/kernel": ("model", None), "d2/kernal": (None,), "d3/output": ("data", None), "d2/bias": ("data",)}
    report = checked(layouts, strict=strict)
    assert sorted((problem.kind, problem.path) for problem in report.problems) == [
        ("dead", "d2/kernal"),
        ("dead", "d3/output"),
        ("indivisible", "d1/kernel"),
        ("indivisible", "d2/bias"),
    ]
    assert "dim 0 = 6 divisible by axis 'model' = 4" in str(report)
    assert len(json.loads(json.dumps(report.to_dict()))["problems"]) == 4


def test_rules_for_activations_are_tried_on_the_step():
    report = checked({"d1/output": ("data",)})
    assert [(problem.kind, problem.path) for problem in report.problems] == [("rank", "d1/output")]


def test_nothing_is_allocated_or_left_behind():
    before = {id(array) for array in jax.live_arrays()}
    checked({"d1/kernel": (None, "model")}, batch=np.zeros((8, 6), np.float32))
    assert {id(array) for array in jax.live_arrays()} <= before  # others may be collected meanwhile
    assert kd.distribution.distribution() is None


def test_what_is_no_model_is_an_error():
    with pytest.raises(errors.ModelError, match=r"needs a keras_dist.Model"):
        kd.planner.check(3, X, kd.DataParallel())
