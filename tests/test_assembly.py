"""Distributions from config files."""

import pytest

import keras_dist as kd
from keras_dist.errors import ConfigError

TOML = """
[mesh]
shape = {data = 2, model = 4}

[distribution]
strategy = "model_parallel"
batch_axis = "data"

[distribution.layout]
"d1/kernel" = ["-", "model"]
"d2/kernel" = [["data", "model"], "-"]
"""


def from_text(tmp_path, text, name="run.toml"):
    path = tmp_path / name
    path.write_text(text)
    return kd.distribution_from_config(path)


def test_model_parallel(tmp_path):
    found = from_text(tmp_path, TOML)
    rules = kd.LayoutMap(kd.DeviceMesh((2, 4), ("data", "model")))
    rules["d1/kernel"] = (None, "model")
    rules["d2/kernel"] = (("data", "model"), None)
    assert found == kd.ModelParallel(rules, "data")
    assert found.batch_dim_name == "data"
    assert not found.strict


def test_data_parallel_with_sharded_optimizer(tmp_path):
    found = from_text(tmp_path, "[mesh]\nshape = {data = -1}\n[distribution]\nshard_optimizer = true\n")
    assert found == kd.DataParallel(kd.DeviceMesh("data=8"), shard_optimizer=True)


def test_fully_sharded(tmp_path):
    text = '[mesh]\nshape = {data = 4, model = 2}\n[distribution]\nstrategy = "fully_sharded"\naxis = "data"\n'
    found = from_text(tmp_path, text + 'min_size_bytes = 1024\nstrict = true\n[distribution.layout]\nk = ["model"]\n')
    mesh = kd.DeviceMesh("data=4,model=2")
    rules = kd.LayoutMap(mesh)
    rules["k"] = ("model",)
    assert found == kd.FullySharded(mesh, "data", rules, min_size_bytes=1024, strict=True)


def test_batch_over_two_axes(tmp_path):
    text = TOML.replace('batch_axis = "data"', 'batch_axis = ["data", "model"]').replace(
        '["data", "model"], "-"', '"-", "-"'
    )
    assert from_text(tmp_path, text).batch_dim_name == ("data", "model")


def test_the_environment_overrides_the_shape(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_DIST_MESH", "data=4,model=2")
    assert from_text(tmp_path, TOML).device_mesh == kd.DeviceMesh("data=4,model=2")


def test_data_parallel_takes_the_batch_on_the_first_axis_only(tmp_path):
    text = '[mesh]\nshape = {model = 2, data = 4}\n[distribution]\nbatch_axis = "data"\n'
    with pytest.raises(ConfigError, match=r"run\.toml: distribution\.batch_axis") as caught:
        from_text(tmp_path, text)
    assert "'model'" in caught.value.summary


def test_a_shape_that_the_devices_do_not_fill(tmp_path):
    with pytest.raises(ConfigError, match=r"run\.toml: mesh\.shape: Shape does not match the number of devices"):
        from_text(tmp_path, "[mesh]\nshape = {data = 5}\n")


def test_a_shape_from_the_environment_that_the_devices_do_not_fill(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_DIST_MESH", "data=3,model=1")
    with pytest.raises(ConfigError, match="KERAS_DIST_MESH='data=3,model=1': Shape does not match"):
        from_text(tmp_path, TOML)


def test_fully_sharded_over_two_axes(tmp_path):
    text = (
        '[mesh]\nshape = {data = 4, model = 2}\n[distribution]\nstrategy = "fully_sharded"\naxis = ["data", "model"]\n'
    )
    assert from_text(tmp_path, text) == kd.FullySharded(kd.DeviceMesh("data=4,model=2"), ("data", "model"))
