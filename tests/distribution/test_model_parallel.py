from typing import Any

import pytest

import keras_dist as kd
from keras_dist.errors import DistributionError
from keras_dist.jobs import job
from tests.distribution.shapes import model_parallel, variable


def test_a_variable_keeps_a_layout_of_its_own(mesh: kd.DeviceMesh) -> None:
    own = kd.TensorLayout(["x"], kd.DeviceMesh((8,), ["x"]))
    layout = model_parallel(mesh, {".*kernel": ("model",)}).get_variable_layout(variable("kernel", 8, layout=own))
    assert layout == own


def test_activations_lie_by_rule(mesh: kd.DeviceMesh) -> None:
    distribution = model_parallel(mesh, {".*kernel": (None, "model"), "/model/layer/tensor": ("data", None)})
    layout = distribution.get_tensor_layout("/model/layer/tensor")
    assert layout == kd.TensorLayout(("data", None), mesh)
    assert distribution.get_tensor_layout("/model/layer/other_tensor") is None


@pytest.mark.parametrize(
    ("name", "axes", "replicas"),
    [
        (None, ("data", None, None), 2),
        ("data", ("data", None, None), 2),
        ("model", ("model", None, None), 4),
        (("data", "model"), (("data", "model"), None, None), 8),
        (["data", "model"], (("data", "model"), None, None), 8),
        (("model",), ("model", None, None), 4),
    ],
)
def test_the_batch_lies_over_one_axis_or_several(
    rules: kd.LayoutMap, mesh: kd.DeviceMesh, name: Any, axes: tuple, replicas: int
) -> None:
    distribution = kd.ModelParallel(rules, name)
    assert distribution.get_data_layout((8, 2, 2)) == kd.TensorLayout(axes, mesh)
    assert distribution.num_model_replicas == replicas


@pytest.mark.parametrize(
    ("layout_map", "words"),
    [
        (None, "You must specify a layout_map argument"),
        ({"kernel": (None, "model")}, "Argument `layout_map` must be a `LayoutMap` instance"),
        (kd.LayoutMap(None), "the layout map must have a mesh"),
    ],
)
def test_a_layout_map_is_needed(layout_map: Any, words: str) -> None:
    with pytest.raises(DistributionError, match=words):
        kd.ModelParallel(layout_map=layout_map)


def test_processes_divide_among_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "process_count", lambda: 4)
    rules = kd.LayoutMap(kd.DeviceMesh((3, 2), ["data", "model"], [f"cpu:{index}" for index in range(6)]))
    with pytest.raises(DistributionError, match="`num_processes` must be divisible by `num_model_replicas`"):
        kd.ModelParallel(layout_map=rules, batch_dim_name="data", auto_shard_dataset=True)
