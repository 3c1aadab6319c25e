"""Plans of runs from config files, and layouts that are found for them."""

import gc
import pathlib
import types

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import assembly, config
from keras_dist.errors import ConfigError
from tests.assembly.my_run import SEQUENTIAL, built, settings


def test_what_a_plan_needs_is_that_of_the_run():
    run = built()
    gc.collect()
    before = {id(array) for array in jax.live_arrays()}
    inputs = assembly.plan_inputs(settings())
    report = kd.plan(**vars(inputs))
    assert {id(array) for array in jax.live_arrays()} <= before
    assert [(one.shape, one.dtype.name) for one in inputs.batch[:2]] == [((16, 8), "float32"), ((16, 2), "float32")]
    assert inputs.distribution == run.distribution
    x, y = (array[:16] for array in run.examples)
    assert report.nbytes_by_role == run.model.plan(x, y).nbytes_by_role
    assert report.to_dict() == run.model.plan(x, y).to_dict()


def test_a_plan_knows_what_is_computed_again():
    again = kd.plan(**vars(assembly.plan_inputs(settings("training.remat=full"))))
    assert again.step.flops > kd.plan(**vars(assembly.plan_inputs(settings()))).step.flops


def test_a_plan_computes_again_what_the_search_has_chosen(monkeypatch):
    def search(auto, *_, **__):
        found = kd.DataParallel(kd.DeviceMesh("data=8"))
        return types.SimpleNamespace(distribution=found, best=types.SimpleNamespace(remat="full"))

    monkeypatch.setattr(kd.AutoParallel, "search", search)
    plain = kd.plan(**vars(assembly.plan_inputs(settings("distribution={}", "mesh.shape=data=8"))))
    again = kd.plan(**vars(assembly.plan_inputs(settings("distribution={strategy='auto'}", "mesh.shape=data=8"))))
    assert again.step.flops > plain.step.flops


@pytest.mark.parametrize(
    ("target", "mesh", "platform"),
    [
        (None, "mesh.shape=data=16,model=4", "cpu"),
        (None, "mesh={shape='data=4,model=4', dcn_shape='data=4'}", "cpu"),
        ("v5e:8x8", "mesh.shape=data=16,model=4", "tpu"),
        ("v5e:8x8", "mesh.shape=data=-1,model=4", "tpu"),
        ("v5e:4x4*4", "mesh={shape='data=4,model=4', dcn_shape='data=4'}", "tpu"),
    ],
)
def test_a_plan_for_devices_that_are_not_here(target, mesh, platform):
    inputs = assembly.plan_inputs(settings(mesh, "model={name='my_run:sequential', width=64}"), target)
    found = inputs.distribution.device_mesh
    assert (found.shape, found.platform) == ((16, 4), platform)
    if target is not None:
        assert list(found.devices.flat) == kd.planner.devices(target, (16, 4))
    assert kd.plan(**vars(inputs)).nbytes_by_role["parameter"] > 0


def test_a_mesh_of_another_size_than_the_target():
    with pytest.raises(ConfigError, match=r"mesh\.shape"):
        assembly.plan_inputs(settings("mesh.shape=data=16,model=4"), "v5e:2x4")


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("distribution", "model", "axes"),
    [
        ("{strategy='auto'}", SEQUENTIAL, None),
        ("{strategy='tensor_parallel', axis='data'}", "model={name='my_run:Net', width=16}", (None, "data")),
        ("{strategy='hybrid', fsdp='data', tensor='model'}", SEQUENTIAL, ("data", "model")),
    ],
)
def test_layouts_that_are_found_in_the_step(distribution, model, axes):
    overrides = [model, f"distribution={distribution}", "mesh.shape={data=2, model=4}"]
    expected = assembly.train(settings(model, "distribution={layout={}}", "mesh.shape={data=8}"))
    run = built(*overrides)
    np.testing.assert_allclose(run.train().history["loss"], expected.history["loss"], rtol=1e-5)
    assert run.distribution == assembly.distribution_of(settings(*overrides))
    if axes is not None:
        assert run.model.layout_plan.row("up/kernel").axes == axes


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("distribution", "kind"),
    [
        ("{strategy='auto', objective='memory'}", None),
        ("{strategy='tensor_parallel', axis='model'}", "model_parallel"),
        ("{strategy='zero1'}", "data_parallel"),
        ("{strategy='data_parallel'}", "data_parallel"),
    ],
)
def test_what_was_inferred_and_found_is_saved(distribution, kind):
    mesh = "data=-1" if "zero1" in distribution or "data_par" in distribution else "data=-1,model=4"
    run = assembly.build(
        settings(f"mesh.shape={mesh}", f"distribution={distribution}", "model={name='my_run:Net', width=16}")
    )
    pathlib.Path("resolved.json").write_text(run.config.to_json())
    again = config.load("resolved.json", environ={})
    assert -1 not in again.mesh.shape.values() and again.distribution.strategy != "auto"
    assert kind is None or again.distribution.strategy == kind
    repeated = assembly.build(again)
    assert repeated.distribution == run.distribution
    assert [row.axes for row in repeated.model.layout_plan.rows] == [row.axes for row in run.model.layout_plan.rows]
    assert again.training.remat == repeated.config.training.remat == run.config.training.remat


def test_an_automatic_layout_without_a_model_is_found_by_fit(tmp_path):
    (tmp_path / "auto.toml").write_text(
        'mesh.shape = "data=8"\n[distribution]\nstrategy = "auto"\nobjective = "memory"\ntarget = "cpu:8"\n'
        "memory_limit = 1_000_000"
    )
    found = kd.distribution_from_config("auto.toml")
    assert type(found) is kd.AutoParallel
    assert (found.objective, found.target.name, found.memory_limit) == ("memory", "cpu:8", 1_000_000)


def test_zero1_needs_no_model(tmp_path):
    (tmp_path / "zero1.toml").write_text('mesh.shape = "data=8"\ndistribution.strategy = "zero1"')
    assert kd.distribution_from_config("zero1.toml") == kd.presets.zero1(kd.DeviceMesh("data=8"))
    (tmp_path / "found.toml").write_text('mesh.shape = "data=2,model=4"\ndistribution.strategy = "tensor_parallel"')
    with pytest.raises(ConfigError, match="data: is missing"):
        kd.distribution_from_config("found.toml")
