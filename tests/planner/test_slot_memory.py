"""Optimizer slots in host memory in plans: bytes of the host, the verdict, and the advice where a step does not fit."""

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError

SIZE, LAYERS = 4096, 24
KERNELS = LAYERS * SIZE * SIZE * 4
MESH = kd.DeviceMesh("data=8", devices=kd.planner.devices("v5e:2x4"))


def factory():
    kernels = [layers.Dense(SIZE, "relu", use_bias=False, name=f"d{index}") for index in range(LAYERS)]
    return kd.Sequential([kd.Input((SIZE,)), *kernels])


def planned(memory=None, distribution=None, rows=64, **options):
    x = jax.ShapeDtypeStruct((rows, SIZE), np.float32)
    options = {"target": "v5e:2x4", "compiles": False, **options}
    return kd.plan(factory, (x, x), distribution or kd.DataParallel(MESH), "adam", "mse", slot_memory=memory, **options)


@pytest.fixture(scope="module")
def plain():
    return planned()


@pytest.fixture(scope="module")
def on_host():
    return planned("pinned_host")


def test_slots_are_bytes_of_the_host(plain, on_host):
    assert plain.nbytes_by_role["slot"] == 2 * KERNELS + 12
    assert on_host.nbytes_by_role["slot in pinned_host"] == 2 * KERNELS and on_host.nbytes_by_role["slot"] == 12
    assert plain.state.nbytes_per_device - on_host.state.nbytes_per_device == 2 * KERNELS
    verdict = on_host.verdict
    assert (verdict.host_nbytes, verdict.devices_per_host, verdict.slots_nbytes) == (2 * KERNELS, 4, 0)
    assert "optimizer slots take 12.0 GiB of each host (exact), and 3.0 GiB a device move" in str(on_host)
    assert on_host.state.row("optimizer/inner/slots/0/mu/d0/kernel").memory_kind == "pinned_host"
    kinds = [row.get("memory_kind") for row in on_host.to_dict()["exact"]["rows"]]
    assert kinds.count("pinned_host") == 2 * LAYERS


def test_transfers_need_the_memory_of_one_parameter(plain, on_host):
    kernel = SIZE * SIZE * 4
    more = on_host.step.activation_nbytes - plain.step.activation_nbytes
    assert 0 < more <= 4 * kernel
    assert on_host.step.nbytes_by_axes() == plain.step.nbytes_by_axes()
    assert on_host.fits is True and not on_host.step.opaque


@pytest.mark.slow
def test_a_step_that_does_not_fit_names_what_slots_would_save():
    rows = 2**20
    text = str(planned(rows=rows).verdict)
    needed = kd.distribution.render.render_bytes(KERNELS + 4 + 12 + 2 * rows * SIZE * 4 // 8)
    assert f"compile(slot_memory='pinned_host'), would save 3.0 GiB: state and batch would need {needed} of" in text
    assert "slot_memory" not in str(planned("pinned_host", rows=rows).verdict)
    assert "slot_memory" not in str(planned(rows=64).verdict), "it fits"


@pytest.mark.slow
def test_slots_of_shards(plain):
    sharded = planned("pinned_host", kd.FullySharded(MESH))
    assert sharded.verdict.host_nbytes == 2 * KERNELS // 8
    assert sharded.step.nbytes_by_axes() == planned(None, kd.FullySharded(MESH)).step.nbytes_by_axes()


def test_a_model_keeps_its_choice():
    with kd.DataParallel(kd.DeviceMesh("data=8")).scope():
        model = kd.Sequential([kd.Input((8,)), layers.Dense(16)])
    model.compile("adam", "mse", slot_memory="pinned_host")
    assert model.plan(np.zeros((8, 8)), np.zeros((8, 16))).nbytes_by_role["slot in pinned_host"] == 2 * 4 * 9 * 16
    with pytest.raises(ModelError, match="`slot_memory` must be"):
        model.plan(np.zeros((8, 8)), np.zeros((8, 16)), slot_memory="disk")
