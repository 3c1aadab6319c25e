"""Programs compiled for machines that are not there: here for CPUs; `benchmarks.bench_plan` compiles for TPUs."""

import dataclasses
import json
import sys
import types
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import keras_dist as kd
from keras_dist.planner import compile_for, compilers, devices, figures, propagate, target, trace_step
from keras_dist.planner.compiled import gpu_target_config
from keras_dist.planner.compilers import Compilers
from keras_dist.planner.targets import CHIPS, places_in_mesh

WIDTH, HIDDEN, ROWS = 16, 64, 8
MESH = {"data": 2, "model": 4}
OUT_OF_MEMORY = (  # by libtpu 0.0.42, by 0.0.50, and as its run-time says it
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (19.50G) exceeds "
    "available HBM (15.75G).",
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
    "temporaries (19.50G) exceeds available HBM (15.75G). HLO module: jit_step.\nSee https://openxla.org/xla/errors",
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 19.50G of 15.75G hbm. Exceeded hbm capacity by "
    "3.75G.",
)


def mlp():
    up = kd.layers.Dense(HIDDEN, "relu", name="up")
    return kd.Sequential([kd.Input((WIDTH,)), up, kd.layers.Dense(WIDTH, name="down")])


@pytest.fixture(scope="module")
def step():
    """The train step of a Megatron MLP for a mesh of devices in another order than that of their numbers."""
    mesh = kd.DeviceMesh(MESH, devices=devices("cpu:8")[::-1])
    rules = kd.LayoutMap(mesh)
    rules["up/kernel"], rules["up/bias"], rules["down/kernel"] = (None, "model"), ("model",), ("model", None)
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), "float32")
    return trace_step(mlp, (x, x), kd.ModelParallel(rules), "adam", "mse")


@pytest.fixture(scope="module")
def found(step):
    return figures(step, "cpu:8")


@pytest.mark.multiprocess
def test_arguments_are_the_state_and_the_batch(step, found):
    rows = [*step.state.rows, *step.batch.rows]
    assert {row.path for row in rows} == set(filter(None, step.arguments))
    sums_of_the_loss = 4 * step.arguments.count("")
    assert found.argument_nbytes == sum(row.nbytes_per_device for row in rows) + sums_of_the_loss


@pytest.mark.multiprocess
def test_the_state_takes_the_place_of_the_state(step, found):
    assert found.alias_nbytes >= sum(row.nbytes_per_device for row in step.state.rows if row.role != "counter")
    used = found.argument_nbytes + found.output_nbytes - found.alias_nbytes + found.temp_nbytes
    assert found.peak_nbytes == used
    assert found.temp_nbytes > 0


@pytest.mark.multiprocess
def test_collectives_and_flops_are_those_that_were_propagated(step, found):
    expected = propagate(step.lowered)
    assert found.nbytes_by_axes() == expected.nbytes_by_axes()
    assert set(found.nbytes_by_axes()) == {("all_reduce", ("data",)), ("all_reduce", ("model",))}
    assert found.flops == expected.flops
    (forward,) = (each for each in found.collectives if each.axes == ("model",))
    assert (forward.layer, forward.operation, forward.turns) == ("down", "dot_general", 1)


@pytest.mark.multiprocess
def test_cpus_have_no_limit_of_memory_and_figures_are_numbers(found):
    assert (found.limit_nbytes, found.fits, found.short_by_nbytes, found.note) == (0, None, 0, "")
    assert found.accessed_nbytes > found.argument_nbytes
    assert found.seconds_to_compile > 0
    json.dumps(dataclasses.asdict(found))


def lowered(function, shape=(4, 2), platform="cpu", rows=64):
    """A program of rows that are split over the first axis of an abstract mesh."""
    mesh = AbstractMesh(shape, ("rows", "columns"), axis_types=(AxisType.Auto,) * 2)
    x = jax.ShapeDtypeStruct((rows, 8), jnp.float32, sharding=NamedSharding(mesh, P("rows")))
    return jax.jit(function).trace(x).lower(lowering_platforms=(platform,))


@pytest.mark.multiprocess
def test_abstract_meshes_of_more_devices_than_this_process_has():
    def scanned(x):
        sums, _ = jax.lax.scan(lambda total, _: (total + jnp.sum(jnp.sin(x + total)), None), 0.0, length=5)
        return sums

    found = compile_for(lowered(scanned, (16, 2)), "cpu:32")
    assert found.argument_nbytes == 4 * 64 * 8 // 16
    assert [(each.kind, each.axes, each.nbytes, each.turns) for each in found.collectives] == [
        ("all_reduce", ("rows",), 4, 5)
    ]


@pytest.mark.multiprocess
def test_what_xla_does_not_compile_is_said_with_its_reason():
    call = jax.ffi.ffi_call("no_such_kernel", jax.ShapeDtypeStruct((), jnp.float32))
    with pytest.raises(kd.errors.CompilationError, match="cannot be compiled for 'cpu:8'") as caught:
        compile_for(lowered(call), "cpu:8")
    assert "no_such_kernel" in caught.value.given
    assert "lowering_platforms=('cpu',)" in caught.value.fix


@pytest.mark.parametrize(
    ("name", "package", "extra"), [("v5e:2x4", "libtpu", "tpu"), ("h100:1x1x8", "jax_cuda12_plugin", "cuda12")]
)
def test_without_the_extra_the_error_names_it(monkeypatch, name, package, extra):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(kd.errors.MissingExtraError, match=f"needs the package {package}") as caught:
        compile_for(lowered(jnp.sum, platform=target(name).platform), name)
    assert caught.value.fix == f"pip install 'jax[{extra}]'"


def test_the_plugin_for_cuda_13_compiles_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax_cuda13_plugin", types.ModuleType("jax_cuda13_plugin"))
    request, _ = asked(monkeypatch, "h100:1x1x8", (4, 2), cuda12=None)
    assert request["topology"]["platform"] == "cuda"


def asked(monkeypatch, name, shape=(16, 2), cuda12=types.ModuleType("jax_cuda12_plugin"), **options):  # noqa: B008
    """The request to the process that compiles for a target, and its environment."""
    for package, module in (("libtpu", types.ModuleType("libtpu")), ("jax_cuda12_plugin", cuda12)):
        monkeypatch.setitem(sys.modules, package, module)
    seen = []

    def submit(self, request, bytecode, timeout_seconds):
        seen.append((request, compilers._environment_of(self.target)))
        raise Asked

    with monkeypatch.context() as patch, pytest.raises(Asked):
        patch.setattr(Compilers, "submit", submit)
        compile_for(lowered(jnp.sum, shape, target(name).platform), name, **options)
    return seen[0]


class Asked(Exception):
    """A request was made."""


def answered(monkeypatch, answer):
    """What `compile_for` makes of an answer of the process that compiles for v5e:2x4."""
    monkeypatch.setitem(sys.modules, "libtpu", types.ModuleType("libtpu"))
    future = Future()
    future.set_result(answer)
    monkeypatch.setattr(Compilers, "submit", lambda *_: future)
    return compile_for(lowered(jnp.sum, (4, 2), "tpu"), "v5e:2x4")


def test_tpus_are_asked_for_by_topology_and_nobody_waits_for_their_metadata(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    request, environment = asked(monkeypatch, "v5e:4x4*2")
    assert request["topology"] == {
        "platform": "tpu",
        "topology_name": "v5e:4x4",
        "num_slices": 2,
        "chips_per_host_bounds": [2, 2, 1],
    }
    assert environment["TPU_SKIP_MDS_QUERY"] == "1"
    assert environment["JAX_PLATFORMS"] == "cpu"
    assert "XLA_FLAGS" not in environment


@pytest.mark.parametrize(
    ("name", "default"), [("jax_optimization_level", "UNKNOWN"), ("jax_memory_fitting_level", "O2")]
)
def test_the_program_is_compiled_as_training_compiles_it(monkeypatch, name, default):
    monkeypatch.setenv(name.upper(), "O1")  # it was read when JAX was imported
    assert asked(monkeypatch, "v5e:4x4*2")[1][name.upper()] == default
    before = getattr(jax.config, name)
    jax.config.update(name, "O3")
    try:
        assert asked(monkeypatch, "v5e:4x4*2")[1][name.upper()] == "O3"
    finally:
        jax.config.update(name, before)


@pytest.mark.parametrize(
    ("temp", "peak", "expected"),
    [(5000, 3000, 3000), (500, 3000, 1500), (500, 0, 1500)],
    ids=["loops counted twice", "results counted twice", "not known"],
)
def test_the_peak_on_tpus_is_the_smaller_of_the_figures_of_xla(monkeypatch, temp, peak, expected):
    sizes = {"argument": 1000, "output": 900, "alias": 900, "temp": temp, "peak": peak, "generated_code": 7}
    answer = {f"{name}_nbytes": size for name, size in sizes.items()}
    answer |= {"collectives": [], "flops": 1, "accessed_nbytes": 1, "kernels": {}, "seconds": 1.5, "host_nbytes": 0}
    found = answered(monkeypatch, answer)
    assert (found.peak_nbytes, found.temp_nbytes) == (expected + 7, expected - 1000)


def test_gpus_are_described_to_xla(monkeypatch):
    topology = asked(monkeypatch, "h100:2x2x8")[0]["topology"]
    assert (topology["platform"], topology["topology"]) == ("cuda", "2x2x8")
    assert "core_count: 132\n" in topology["target_config"]
    assert "cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }" in topology["target_config"]
    assert f"device_memory_size: {79 * 2**30}\n" in topology["target_config"]


@pytest.mark.parametrize("name", [name for name, chip in CHIPS.items() if chip.platform == "cuda"])
def test_each_gpu_has_a_description(name):
    assert f"memory_bandwidth: {int(CHIPS[name].hbm_bytes_per_second)}\n" in gpu_target_config(CHIPS[name])


def test_devices_stand_in_the_order_of_the_mesh_or_by_default_along_the_wires(monkeypatch):
    by_default = [place.id for place in places_in_mesh(target("v5e:4x4*2"), (16, 2)).flat]
    assert asked(monkeypatch, "v5e:4x4*2")[0]["devices"] == by_default
    assert asked(monkeypatch, "v5e:4x4*2")[0]["slices"] == [0] * 16 + [1] * 16
    assert asked(monkeypatch, "v5e:4x4*2", devices=["cpu:0"])[0]["devices"] == by_default
    names = devices("v5e:4x4*2")[::-1]
    assert asked(monkeypatch, "v5e:4x4*2", devices=names)[0]["devices"] == [int(name[4:]) for name in names]


@pytest.mark.parametrize("text", OUT_OF_MEMORY)
def test_a_program_that_needs_more_memory_than_there_is_has_figures(monkeypatch, text):
    found = answered(monkeypatch, {"error": text, "seconds": 1.5})
    assert (found.peak_nbytes, found.limit_nbytes) == (int(19.5 * 2**30), int(15.75 * 2**30))
    assert (found.fits, found.short_by_nbytes) == (False, int(3.75 * 2**30))
    assert found.argument_nbytes == 4 * 64 * 8 // 4
    assert found.note == text.splitlines()[0]
