"""Whether a step fits on a machine that is not there, and how long it takes there, by tier."""

import dataclasses
import functools
import html
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers

GIB = 2**30
SIZE = 16384
MESH = kd.DeviceMesh("data=8", devices=kd.planner.devices("v5e:2x4"))


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
    verdict = report.verdict
    assert verdict.ahead_nbytes == report.batch.nbytes_per_device, "a second batch"
    assert verdict.resident_nbytes == (16 * GIB - report.state.nbytes_per_device) // 8, "a dataset that fit keeps"
    known = verdict.ahead_nbytes + verdict.resident_nbytes + 16 * GIB // 64
    assert verdict.most_nbytes == verdict.peak_bounds_nbytes[1] + known
    assert "fits (at most" in str(report)


def small(**options):
    """The verdict of a small model for a TPU, compiled with these options."""
    with kd.DataParallel(kd.DeviceMesh("data=8")).scope():
        model = kd.Sequential([kd.Input((64,)), layers.Dense(64, use_bias=False)])
    model.compile("sgd", "mse", **options)
    x = jax.ShapeDtypeStruct((512, 64), np.float32)
    return kd.plan(model, (x, x), kd.DataParallel(MESH), target="v5e:2x4", compiles=False).verdict


def test_executions_ahead_hold_their_batches():
    batch = 2 * 4 * 512 * 64 // 8
    assert small().ahead_nbytes == batch
    assert small(prefetch=4).ahead_nbytes == 3 * batch
    assert small(prefetch=2, steps_per_execution=5).ahead_nbytes == 9 * batch
    assert small(prefetch=1).ahead_nbytes == 0


def test_a_dataset_is_kept_where_several_steps_may_run_at_once():
    assert small().resident_nbytes > GIB
    assert small(steps_per_execution=1).resident_nbytes == 0
    assert planned(8, "v5e:4x4", "data=2,model=8").verdict.resident_nbytes == 0, "several processes"


def test_results_of_two_steps_in_flight_are_held_where_the_state_is_not_donated():
    kept, donated = small(donate=False), small()
    assert kept.ahead_nbytes - donated.ahead_nbytes >= 4 * 64 * 64


def compiled_to(peak, limit=16 * GIB):
    """A verdict with the figures of a compiled program."""
    known = dict(argument_nbytes=0, output_nbytes=0, alias_nbytes=0, temp_nbytes=0, collectives=(), flops=0)
    known |= dict(accessed_nbytes=0, seconds_to_compile=0.0, peak_nbytes=peak, limit_nbytes=limit)
    return dataclasses.replace(small(), compiled=kd.planner.CompiledFigures("v5e:2x4", **known))


def test_a_compiled_step_fits_with_what_fit_adds():
    extra = small()
    assert compiled_to(GIB).fits is True
    least = compiled_to(16 * GIB - extra.ahead_nbytes + 1)
    assert least.fits is False and least.short_by_nbytes == 1
    between = compiled_to(16 * GIB - extra.resident_nbytes)
    assert between.fits is None and "steps_per_execution=1" in str(between)
    assert compiled_to(int(15.9 * GIB), int(15.75 * GIB)).fits is False, "the limit of XLA's message"


class Kernel(nnx.Module):
    """A layer that calls a kernel, or maps a function over shards."""

    def __init__(self, rngs, call):
        self.first, self.call = nnx.Linear(64, 64, rngs=rngs), call

    def __call__(self, x):
        return self.call(self.first(x))


OPAQUE = {
    "the kernel of_mine": lambda x: jax.ffi.ffi_call("of_mine", x)(jax.lax.stop_gradient(x)) + x,
    "cholesky": lambda x: jnp.linalg.cholesky(jax.lax.stop_gradient(x.T @ x)) @ x.T,
}


@pytest.mark.parametrize("name", OPAQUE)
def test_a_step_with_operations_of_unknown_memory_is_never_said_to_fit(name):
    x = jax.ShapeDtypeStruct((512, 64), np.float32)
    factory = functools.partial(Kernel, call=OPAQUE[name])
    report = kd.plan(factory, x, kd.DataParallel(MESH), "sgd", target="v5e:2x4", compiles=False)
    assert report.fits is None and report.exit_code == 4
    assert report.verdict.most_nbytes < 16 * GIB and any(name in each for each in report.verdict.opaque)
    text = str(report.verdict)
    assert "v5e:2x4: unknown (" in text and f"without the memory of {report.verdict.opaque[0]}" in text
    assert "keras-dist plan --compile" in text and text in html.unescape(report._repr_html_())
    assert report.to_dict()["verdict"]["propagated"]["opaque"] == list(report.verdict.opaque)
    assert dataclasses.replace(report.verdict, compiled=compiled_to(GIB).compiled).fits is True
    assert dataclasses.replace(report.verdict, limit_nbytes=1).fits is False, "the state alone is too large"


def test_it_does_not_fit_where_the_state_alone_is_too_large():
    report = planned(8, "v5e:1x2", "data=2,model=1")
    assert report.fits is False and report.exit_code == 1
    stored = report.verdict.least_nbytes + report.verdict.padding_nbytes
    assert report.verdict.short_by_nbytes == stored - 16 * GIB > 0
    assert "does not fit (short by" in str(report) and "propagated: state and batch alone" in str(report.verdict)
    assert report.to_dict()["verdict"]["fits"] is False


def test_between_the_bounds_only_compiling_tells():
    report = planned(2**16)
    assert report.fits is None and report.exit_code == 4
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
    step, kept = report.step, 2**27 / report.step.activation_nbytes  # the share of 128 MiB of vector memory
    moved = step.interface_nbytes + (step.accessed_nbytes - step.interface_nbytes) * (1 - kept)
    assert 0 < kept < 1 and line.memory_seconds == pytest.approx(moved / 819e9)


def test_without_the_extra_the_other_tiers_remain():
    verdict = planned(8).verdict
    assert verdict.compiled is None and "jax[tpu]" in verdict.note and "jax[tpu]" in str(verdict)
    assert planned(8, compiles=False).verdict.note == "not asked for"


def test_tiles_of_the_batch_count():
    """XLA stores a batch of 16 images of 16 x 16 x 3 in 8 times its bytes, as `memory_experiments` records."""
    with kd.DataParallel(kd.DeviceMesh("data=8")).scope():
        model = kd.Sequential([kd.Input((16, 16, 3)), layers.Dense(3, use_bias=False)])
    model.compile("sgd", "mse")
    x = jax.ShapeDtypeStruct((128, 16, 16, 3), np.float32)

    def of(target):
        distribution = kd.DataParallel(kd.DeviceMesh("data=8", devices=kd.planner.devices(target)))
        return kd.plan(model, (x, x), distribution, target=target, compiles=False).verdict

    images, verdict = 2 * 16 * 16 * 16 * 3 * 4, of("v5e:2x4")
    assert verdict.least_nbytes < 1.01 * images, "exact bytes of the arrays"
    assert 7 * images <= verdict.padding_nbytes < 7.2 * images
    assert verdict.peak_bounds_nbytes[0] == verdict.least_nbytes + verdict.padding_nbytes, "all else may be in VMEM"
    exact = kd.distribution.render.render_bytes(verdict.least_nbytes)
    assert f"{exact} of state and batch are stored as" in str(verdict) and "in tiles of 8 x 128" in str(verdict)
    limited = dataclasses.replace(verdict, limit_nbytes=6 * images)
    assert limited.fits is False and limited.short_by_nbytes > images
    assert of("cpu:8").padding_nbytes == 0 and "tiles" not in str(of("cpu:8"))


def test_memory_of_cpus_is_propagated_with_the_way_to_the_exact_peak():
    with kd.DataParallel(kd.DeviceMesh("data=8")).scope():
        model = kd.Sequential([kd.Input((64,)), layers.Dense(64, "tanh"), layers.Dense(64, "tanh")])
    x = jax.ShapeDtypeStruct((512, 64), np.float32)
    report = kd.plan(model, (x, x), None, "sgd", "mse", "cpu:8", compiles=False)
    verdict = report.verdict
    least, most = verdict.peak_bounds_nbytes
    assert verdict.least_nbytes < least <= most and verdict.fits is None
    assert verdict.most_nbytes == most + verdict.ahead_nbytes
    render = kd.distribution.render.render_bytes
    text = str(verdict)
    assert f"uses memory of the host: between {render(least)} and {render(most)} at the peak, propagated; the" in text
    assert "; the exact peak: plan(..., compiles=True), or keras-dist plan --compile;" in text


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
    assert "at the peak, compiled;" in text and "none" in text and report.fits is None
    found = json.loads(report.to_json())["verdict"]
    assert found["compiled"]["flops"] == compiled.flops and found["compiled"]["roofline"]["bottleneck"]


def test_least_times_use_the_least_bytes_of_estimates():
    """The time of a step is never above what XLA may exchange; the most is beside it."""
    mesh = kd.DeviceMesh("model=8", devices=kd.planner.devices("v5e:2x4", (8,)))
    rules = kd.LayoutMap(mesh)
    rules["up/kernel"] = (None, "model")
    x = jax.ShapeDtypeStruct((64, 4096), "float32")

    def factory():
        up = kd.layers.Dense(4096, name="up")
        return kd.Sequential([kd.Input((4096,)), up, kd.layers.Lambda(lambda x: jax.lax.sort(x)[:, ::-1])])

    report = kd.plan(factory, (x, x), kd.ModelParallel(rules), "sgd", "mse", target="v5e:2x4", compiles=False)
    step, verdict = report.step, report.verdict
    moved = [[each.at(end) for each in step.collectives] for end in (0, 1)]
    least, most = (sum(each.nbytes_per_step for each in collectives) for collectives in moved)
    assert least < sum(step.nbytes_by_axes().values()) < most
    options = {"flops": 0, "accessed_nbytes": 0}
    ends = [
        kd.planner.roofline("v5e:2x4", {"model": 8}, collectives=collectives, **options).step_seconds
        for collectives in moved
    ]
    (seconds,) = verdict.rooflines["propagated"].communication_seconds.values()
    assert seconds == ends[0] and verdict.most_step_seconds >= ends[1] > ends[0]
    assert verdict.to_dict()["propagated"]["most_step_seconds"] == verdict.most_step_seconds
    assert "with the most of estimates" in str(verdict)
