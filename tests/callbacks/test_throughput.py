"""`Throughput`: measured figures in the logs and in a table, beside the plan."""

import dataclasses

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.callbacks import Throughput
from keras_dist.errors import MeshError, ModelError

LENGTH, SIZE = 8, 16
TOKENS = np.random.default_rng(0).integers(0, SIZE, (32, LENGTH)).astype("int32")
OPTIONS = {"batch_size": 16, "verbose": 0}


@pytest.fixture(scope="module")
def model():
    with kd.DataParallel().scope():
        model = kd.Sequential([kd.Input((LENGTH,), dtype="int32"), layers.Embedding(SIZE, 8), layers.Dense(SIZE)])
    model.compile("sgd", "causal_lm")
    return model


def test_tokens_and_steps_of_each_epoch_are_logged(model):
    history = model.fit(TOKENS, TOKENS, epochs=2, callbacks=Throughput(verbose=False), **OPTIONS)
    found = history.history
    assert list(found) == ["loss", "step_seconds", "tokens_per_second"]  # the peak of CPUs is not known
    tokens = [16 * LENGTH / seconds for seconds in found["step_seconds"]]
    np.testing.assert_allclose(found["tokens_per_second"], tokens, rtol=1e-6)
    timing = history.timing
    assert (timing.steps, timing.rows) == (4, 64)
    np.testing.assert_allclose(2 * sum(found["step_seconds"]), timing.wall_seconds, rtol=1e-6)


def test_utilization_is_of_the_planned_flops(model, capsys):
    history = model.fit(TOKENS, TOKENS, callbacks=Throughput("cpu:8"), **OPTIONS).history
    flops = 3 * 2 * 16 * LENGTH * 8 * SIZE / 8  # forward and backward, of one device
    peak = kd.planner.target("cpu:8").chip.flops_per_second["float32"]
    np.testing.assert_allclose(history["mfu"][0] * history["step_seconds"][0], flops / peak, rtol=1e-6)
    lines = [line.split("│") for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert [line[0].strip() for line in lines] == ["throughput", "step_seconds", "tokens_per_second", "mfu"]
    assert [cell.strip() for cell in lines[0]] == ["throughput", "measured", "planned, at best"]
    assert lines[-1][2].strip().endswith("%")


@pytest.mark.slow
def test_recomputation_does_not_count(model):
    before = model.plan(TOKENS[:16], TOKENS[:16], target="cpu:8", compiles=False)
    model.compile("sgd", "causal_lm", remat="full")
    recomputed = model.plan(TOKENS[:16], TOKENS[:16], compiles=False).step.flops
    history = model.fit(TOKENS, TOKENS, callbacks=Throughput("cpu:8", verbose=False), **OPTIONS).history
    model.compile("sgd", "causal_lm")
    assert recomputed > before.step.flops
    seconds = before.verdict.rooflines["propagated"].compute_seconds
    np.testing.assert_allclose(history["mfu"][0] * history["step_seconds"][0], seconds, rtol=1e-6)


def test_rows_where_there_are_no_tokens_and_names_that_are_reported():
    model = kd.Sequential([kd.Input((4,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((16, 4), "f4")
    logged = model.fit(x, x[:, :1], callbacks=Throughput(verbose=False), **OPTIONS).history
    assert list(logged) == ["loss", "step_seconds", "examples_per_second"]
    model.compile("sgd", "mse", report=["examples_per_second"])
    logged = model.fit(x, x[:, :1], callbacks=Throughput(verbose=False), **OPTIONS).history
    assert list(logged) == ["loss", "examples_per_second", "step_seconds"]


def test_another_number_of_devices_is_an_error_before_training(model):
    with pytest.raises(MeshError, match="must have all of its 4 devices"):
        model.fit(TOKENS, TOKENS, callbacks=Throughput("cpu:4"), **OPTIONS)


def test_the_plan_of_the_last_fit():
    model = kd.Sequential([kd.Input((4,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ModelError, match="plan needs a batch"):
        model.plan()
    x = np.ones((16, 4), "f4")
    model.fit(x, x[:, :1], batch_size=8, verbose=0)
    assert [row.shape for row in model.plan(compiles=False).batch.rows] == [(8, 4), (8, 1)]


@pytest.mark.parametrize("name", ["v5e:4x4", "v5e:1x1", "v4:4x4x4", "v5p:2x2", "v3:2x2", "v5e:4x4*2", "h100:2x4x8"])
def test_the_machine_of_devices(name):
    machine = kd.planner.target(name)
    assert kd.planner.target_of(machine.places) == machine


def test_the_memory_of_gpus_here_is_what_jax_takes_of_it():
    class Live:
        def __init__(self, place, limit, process_index=0):
            self.device_kind, self.process_index, self.limit = place.device_kind, process_index, limit

        def memory_stats(self):
            assert self.process_index == 0, "devices of other processes cannot be asked"
            return self.limit and {"bytes_limit": self.limit, "bytes_in_use": 0}

    published = kd.planner.target("h100:1x1x2")
    for limits, expected in (((60 * 2**30, 59 * 2**30), 59 * 2**30), ((None, None), published.hbm_nbytes)):
        machine = kd.planner.target_of(list(map(Live, published.places, limits)))
        assert (machine.name, machine.hbm_nbytes) == (published.name, expected)
    live = [Live(place, 60 * 2**30, index) for index, place in enumerate(kd.planner.target("h100:1x2x1").places)]
    assert kd.planner.target_of(live).hbm_nbytes == 60 * 2**30


def test_unknown_devices_are_of_no_machine():
    places = kd.planner.target("v5e:4x4").places
    assert kd.planner.target_of(places[1:]) is None  # a mesh without one of the devices
    assert kd.planner.target_of([*places[1:], dataclasses.replace(places[0], device_kind="TPU v4")]) is None
    assert kd.planner.target_of(kd.planner.target("cpu:2").places) is None
