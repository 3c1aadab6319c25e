from typing import Any

import jax
import jax.numpy as jnp
import pytest

import keras_dist as kd
from keras_dist.distribution.abstract import abstract_meshes
from keras_dist.errors import DistributionError, LayoutError, LayoutWarning
from tests.distribution.shapes import axes_of, f32

FLAT = "data=8"


def test_the_map_comes_first(rules: kd.LayoutMap, mesh: kd.DeviceMesh) -> None:
    rules["up/kernel"] = (None, "model")
    rules["down/kernel"] = ("model", None)
    plan = kd.FullySharded(mesh, axis="data", rules=rules, batch_dim_name=("data", "model")).plan(
        {"up": {"kernel": f32(8, 64), "bias": f32(64)}, "down": {"kernel": f32(64, 8)}}
    )
    assert axes_of(plan) == {"up/kernel": ("data", "model"), "up/bias": ("data",), "down/kernel": ("model", "data")}
    assert plan.row("up/kernel").rule == "up/kernel, sharded over 'data'"
    assert plan.row("up/bias").rule == "sharded over 'data'"


def test_a_dim_that_the_map_put_on_the_axis_stays(rules: kd.LayoutMap, mesh: kd.DeviceMesh) -> None:
    rules["kernel"] = ("data", None)
    assert axes_of(kd.FullySharded(mesh, "data", rules).plan({"kernel": f32(8, 64)})) == {"kernel": ("data", None)}


def test_over_several_axes(mesh: kd.DeviceMesh) -> None:
    distribution = kd.FullySharded(mesh, axis=("data", "model"))
    plan = distribution.plan({"kernel": f32(12, 64), "odd": f32(12, 4)})
    assert axes_of(plan) == {"kernel": (None, ("data", "model")), "odd": (None, None)}
    assert distribution.num_model_replicas == 8
    assert distribution.get_data_layout((8, 2)).axes == (("data", "model"), None)


@pytest.mark.parametrize(
    ("options", "batch"),
    [({}, "data"), ({"axis": "model"}, "model"), ({"axis": "model", "batch_dim_name": "data"}, "data")],
)
def test_the_batch_lies_over_the_axis_by_default(mesh: kd.DeviceMesh, options: dict[str, Any], batch: str) -> None:
    assert kd.FullySharded(mesh, **options).get_data_layout((8, 2)).axes == (batch, None)


def test_small_variables_stay(rules: kd.LayoutMap, mesh: kd.DeviceMesh) -> None:
    rules["by_rule"] = ("model",)
    tree = {"at": f32(256), "below": f32(248), "by_rule": f32(248), "half": jax.ShapeDtypeStruct((256,), jnp.bfloat16)}
    plan = kd.FullySharded(mesh, rules=rules, min_size_bytes=1024).plan(tree)
    assert axes_of(plan) == {"at": ("data",), "below": (None,), "by_rule": ("model",), "half": (None,)}


def test_parameters_are_computed_with_as_the_rules_say(rules: kd.LayoutMap, mesh: kd.DeviceMesh) -> None:
    rules["both"], rules["all"] = ("model", None), (("model", "data"), None)
    plan = kd.FullySharded(mesh, rules=rules).plan({name: f32(64, 128) for name in ("both", "all", "none")})
    assert {row.path: row.compute_axes for row in plan.rows} == {
        "both": ("model", None),
        "all": ("model", None),
        "none": (None, None),
    }
    by_rules = kd.ModelParallel(rules).plan({name: f32(64, 128) for name in ("both", "all")})
    assert all(row.compute_axes == row.axes for row in by_rules.rows)


def test_rng_and_counters_are_replicated() -> None:
    tree = {"key": jax.random.split(jax.random.key(0), 8), "step": jnp.int32(0), "kernel": f32(8)}
    assert axes_of(kd.FullySharded(kd.DeviceMesh(FLAT)).plan(tree)) == {"key": (None,), "step": (), "kernel": ("data",)}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda mesh: kd.FullySharded("data=8"), "`device_mesh` must be a keras_dist.DeviceMesh"),  # type: ignore[arg-type]
        (lambda mesh: kd.FullySharded(mesh, axis="dta"), "or a nonempty tuple of them \\(did you mean 'data'\\?\\)"),
        (lambda mesh: kd.FullySharded(mesh, axis=("data", "data")), "`axis` must be one of"),
        (lambda mesh: kd.FullySharded(), r"(?s)`device_mesh` must be .* for example DeviceMesh\("),
        (lambda mesh: kd.FullySharded(mesh, batch_dim_name="batch"), "`batch_dim_name` must be one of"),
        (lambda mesh: kd.FullySharded(mesh, batch_dim_name=()), "`batch_dim_name` must be .* a nonempty tuple"),
        (lambda mesh: kd.FullySharded(mesh, strict="no"), "`strict` must be True or False"),  # type: ignore[arg-type]
        (lambda mesh: kd.FullySharded(mesh, auto_shard_dataset="no"), "`auto_shard_dataset` must be True or"),  # type: ignore
        (lambda mesh: kd.DataParallel(mesh, auto_shard_dataset="no"), "`auto_shard_dataset` must be True or"),  # type: ignore
        (lambda mesh: kd.DataParallel(mesh, shard_optimizer="no"), "`shard_optimizer` must be True or"),  # type: ignore
        (lambda mesh: kd.ModelParallel(kd.LayoutMap(mesh), batch_dim_name=""), "`batch_dim_name` must be one of"),
        (lambda mesh: kd.FullySharded(mesh, rules={}), "`rules` must be a LayoutMap on mesh"),  # type: ignore
        (lambda mesh: kd.FullySharded(mesh, rules=kd.LayoutMap(kd.DeviceMesh(FLAT))), "must be a LayoutMap on mesh"),
    ],
)
def test_refuses_what_does_not_fit(mesh: kd.DeviceMesh, make: Any, words: str) -> None:
    with pytest.raises(DistributionError, match=words):
        make(mesh)


def test_large_weights_left_whole_are_a_problem_with_a_remedy() -> None:
    mesh = kd.DeviceMesh("data=560", devices=[f"tpu:{index}" for index in range(560)])
    tree = {
        "a": jax.ShapeDtypeStruct((16384, 16384), "float32"),
        "b": jax.ShapeDtypeStruct((16384, 53248), "float32"),
        "norm": jax.ShapeDtypeStruct((16384,), "float32"),
        "sharded": jax.ShapeDtypeStruct((5600, 8000), "float32"),
    }
    with (
        abstract_meshes("tpu"),
        pytest.warns(LayoutWarning, match=r"2 large weight\(s\), 4.2 GiB on each device, are not sharded"),
    ):
        (problem,) = kd.FullySharded(mesh).plan(tree).problems
    assert problem.kind == "whole"
    assert problem.given.startswith("'a' of shape (16384, 16384), 'b' of shape (16384, 53248); mesh")
    whole = "a mesh in which 'data' has 16 devices and another axis 35"
    assert problem.fix == f"{whole}, or make 'b' (16384, 53760)"
    with abstract_meshes("tpu"), pytest.raises(LayoutError, match="are not sharded over 'data'"):
        kd.FullySharded(mesh, strict=True).plan(tree)


def test_two_axes_may_divide_two_dims_where_one_divides_none() -> None:
    mesh = kd.DeviceMesh("data=3,model=70", devices=[f"tpu:{index}" for index in range(210)])
    tree = {"a": jax.ShapeDtypeStruct((350, 1002), "float32")}
    with abstract_meshes("tpu"), pytest.warns(LayoutWarning, match="1 large weight"):
        (problem,) = kd.FullySharded(mesh, ("data", "model")).plan(tree).problems
    assert "two axes of 3 and 70 devices, and a rule that shards dim 1 over the first" in problem.fix
    rules = kd.LayoutMap(mesh)
    rules["a"] = (None, "data")
    with abstract_meshes("tpu"):
        assert not kd.FullySharded(mesh, "model", rules, strict=True).plan(tree).problems


def test_slots_of_large_weights_left_whole_are_a_problem() -> None:
    tree = {"a": jax.ShapeDtypeStruct((1023, 1025), "float32"), "b": jax.ShapeDtypeStruct((1023, 1024), "float32")}
    with pytest.warns(LayoutWarning, match=r"the optimizer slots of 1 large weight\(s\), 4.0 MiB on each device"):
        (problem,) = kd.DataParallel(kd.DeviceMesh("batch=8"), shard_optimizer=True).plan(tree).problems
    assert (problem.kind, problem.path) == ("whole", "a")
    assert not kd.DataParallel(kd.DeviceMesh("batch=8")).plan(tree).problems


def test_small_weights_may_stay_whole() -> None:
    tree = {"kernel": jax.ShapeDtypeStruct((511, 511), "float32")}  # 1 MiB less 4 KiB
    assert not kd.FullySharded(kd.DeviceMesh("data=8")).plan(tree).problems
