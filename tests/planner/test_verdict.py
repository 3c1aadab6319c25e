"""Whether a step fits on a machine that is not there, and how long it takes there, by tier."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ConfigError, MeshError, UnknownNameError

GIB = 2**30
SIZE = 16384


def factory():
    up = layers.Dense(4 * SIZE, "relu", use_bias=False, name="up")
    return kd.Sequential([kd.Input((SIZE,)), up, layers.Dense(SIZE, use_bias=False, name="down")])


def planned(rows, target="v5e:2x4", mesh="data=1,model=8", **options):
    layout_map = kd.LayoutMap(kd.DeviceMesh(mesh, devices=kd.planner.devices(target)))
    layout_map["up/kernel"], layout_map["down/kernel"] = (None, "model"), ("model", None)
    x = jax.ShapeDtypeStruct((rows, SIZE), np.float32)
    return kd.plan(factory, (x, x), kd.ModelParallel(layout_map), "adam", "mse", target, **options)


def test_it_fits_where_the_upper_bound_does():
    report = planned(8)
    state = 3 * 2 * 4 * SIZE * 4 * SIZE // 8  # weights and two slots
    assert report.fits is True and report.exit_code == 0
    assert report.verdict.limit_nbytes == 16 * GIB
    assert state < report.verdict.least_nbytes < state + 2**22
    most = report.verdict.least_nbytes + report.batch.nbytes_per_device + 2 * report.step.activation_nbytes
    assert report.verdict.most_nbytes == most, "a second batch, and twice the estimate"
    assert "fits (at most" in str(report)


def test_it_does_not_fit_where_the_state_alone_is_too_large():
    report = planned(8, "v5e:1x2", "data=2,model=1")
    assert report.fits is False and report.exit_code == 1
    assert report.verdict.short_by_nbytes == report.verdict.least_nbytes - 16 * GIB > 0
    assert "does not fit (short by" in str(report) and "exact" in str(report.verdict)
    assert report.to_dict()["verdict"]["fits"] is False


def test_between_the_bounds_only_compiling_tells():
    report = planned(2**16)
    assert report.fits is None and report.exit_code == 0
    assert "compile to decide" in str(report.verdict)
    enough = dataclasses.replace(report.verdict, limit_nbytes=report.verdict.most_nbytes)
    assert enough.fits is True and enough.short_by_nbytes == 0


def test_the_time_is_of_what_the_step_computes_and_moves():
    report = planned(4096)
    line = report.verdict.roofline
    assert line.compute_seconds == pytest.approx(report.step.flops / 197e12)
    assert line.bottleneck in str(report.verdict) and "(propagated)" in str(report.verdict)
    assert set(line.communication_seconds) == {("model",)}
    assert report.step.dtype == "float32"
    assert line.memory_seconds == pytest.approx(report.step.accessed_nbytes / 819e9)


def test_without_the_extra_the_other_tiers_remain():
    verdict = planned(8).verdict
    assert verdict.compiled is None and "jax[tpu]" in verdict.note and "jax[tpu]" in str(verdict)
    assert planned(8, compiles=False).verdict.note == "not asked for"


@pytest.mark.multiprocess
def test_a_program_that_is_compiled():
    x = jax.ShapeDtypeStruct((32, 16), np.float32)

    def small():
        return kd.Sequential([kd.Input((16,)), layers.Dense(64, "relu"), layers.Dense(16)])

    report = kd.plan(small, (x, x), optimizer="sgd", loss="mse", target="cpu:4")
    compiled = report.verdict.compiled
    assert report.state.mesh.axis_sizes == {"batch": 4}
    assert compiled.argument_nbytes >= report.verdict.least_nbytes
    assert compiled.nbytes_by_axes() == report.step.nbytes_by_axes()
    text = str(report)
    assert "compiled" in text and "none" in text and report.fits is None
    found = json.loads(report.to_json())["verdict"]
    assert found["compiled"]["flops"] == compiled.flops and found["compiled"]["roofline"]["bottleneck"]


@pytest.mark.parametrize(
    ("target", "error", "said"),
    [
        ("v5x:2x4", UnknownNameError, "`target`: unknown chip"),
        ("v5e:", ConfigError, "`target` must be"),
        (3, ConfigError, "`target` must be"),
    ],
)
def test_targets_that_are_none(target, error, said):
    x = jax.ShapeDtypeStruct((32, SIZE), np.float32)
    with pytest.raises(error, match=said):
        kd.plan(factory, x, target=target)


def test_a_mesh_of_another_size():
    with pytest.raises(MeshError, match="must have all of its 8 devices"):
        kd.plan(
            factory,
            jax.ShapeDtypeStruct((32, SIZE), np.float32),
            kd.DataParallel(kd.DeviceMesh("data=16", devices=kd.planner.devices("v5e:4x4"))),
            target="v5e:2x4",
        )
