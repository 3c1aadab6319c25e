"""Defects of JAX, Flax and XLA around which `keras_dist._unstable` works: each test fails as long as its defect exists.

A test that passes says that its work-around, which its reason names, can go. So it runs with the oldest and the newest
supported versions.
"""

import contextlib
import importlib.util
import inspect
import io
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax._src import checkify, core, distributed, xla_bridge
from jax._src.shard_map import shard_map_p
from jax.sharding import PartitionSpec as P

from keras_dist._unstable import jax_internals, sharding_origins, shardy
from tests.processes import Job, free_address

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.normal(size=(4, 16, 8, 3)).astype("f4")
KERNEL = RANDOM.normal(size=(3, 3, 3, 4)).astype("f4")
DIMS = ("NHWC", "HWIO", "NHWC")


def avoided_by(name):
    return pytest.mark.xfail(reason=name, strict=True, raises=(AssertionError, subprocess.CalledProcessError))


def sharding(*spec):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("a", "b"))
    return jax.sharding.NamedSharding(mesh, P(*spec))


def assert_same(function, shardings, *arguments):
    """The program gives on a mesh of 2 by 4 devices what it gives on one."""
    found = jax.jit(function, in_shardings=shardings)(*arguments)
    np.testing.assert_allclose(found, jax.jit(function)(*arguments), rtol=1e-4, atol=1e-4)


@pytest.mark.xfail(jax.__version_info__ < (0, 12), strict=True, reason="xla_workarounds.with_one_layout")
def test_an_all_to_all_takes_a_transposed_operand():
    mesh = sharding().mesh

    def exchanged(x):
        parts = (x @ x.mT @ x).reshape(2, 16, 4, 8).transpose(2, 0, 1, 3)
        parts = jnp.broadcast_to(parts[None], (2, 4, 2, 16, 8)).reshape(8, 2, 16, 8)
        return lax.all_to_all(parts, ("a", "b"), 0, 0, tiled=True).reshape(-1, 16, 8)

    layouts = {"in_specs": P(("a", "b")), "out_specs": P(None, None, "b"), "check_vma": False}
    jax.jit(jax.shard_map(exchanged, mesh=mesh, **layouts))(np.ones((16, 16, 32), "f4"))


@avoided_by("xla_workarounds.avoid_multiplied_kernel_gradients")
@pytest.mark.parametrize(
    ("images", "kernel", "spec", "stride", "groups"),
    [
        pytest.param(IMAGES, KERNEL, (None, "b"), 1, 1, id="each part of space on two devices"),
        pytest.param(IMAGES[:, :8], KERNEL, (None, ("a", "b")), 2, 1, id="parts of the output that differ in size"),
        pytest.param(IMAGES, KERNEL[:, :, :1, :3], ("a",), 1, 3, id="groups, each part of the batch on four devices"),
    ],
)
def test_gradients_of_kernels_are_added_up_once(images, kernel, spec, stride, groups):
    def loss(kernel, images):
        strides = (stride, stride)
        outputs = lax.conv_general_dilated(
            images, kernel, strides, "SAME", dimension_numbers=DIMS, feature_group_count=groups
        )
        return jnp.sum(jnp.tanh(outputs))

    assert_same(jax.grad(loss), [sharding(), sharding(*spec)], kernel, images)


@avoided_by("xla_workarounds.avoid_wrong_pooling_gradients")
def test_gradients_of_max_pooling_are_right_at_the_borders_of_shards():
    def loss(images):
        return jnp.sum(jnp.sin(lax.reduce_window(images, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")))

    assert_same(jax.grad(loss), [sharding("a", "b")], IMAGES)


@avoided_by("xla_workarounds.avoid_added_padding")
def test_gradients_of_lookups_count_no_padding():
    table, weights, indices = IMAGES[0, :8, :4, 0], KERNEL[0, 0].T, RANDOM.integers(0, 8, (5, 5))

    def gradient(table, indices):
        indices = lax.with_sharding_constraint(indices, sharding("b"))
        return jax.grad(lambda table: jnp.mean((table[indices] @ weights) ** 2))(table)

    assert_same(gradient, [sharding(None, "b"), sharding()], table, indices)


@avoided_by("xla_workarounds.avoid_slow_convolutions_in_loops")
def test_convolutions_have_the_same_bits_in_a_loop():
    def gradient(kernel, images):
        def loss(kernel):
            outputs = lax.conv_general_dilated(
                images, kernel, (1, 1), "SAME", rhs_dilation=(2, 2), dimension_numbers=DIMS
            )
            return jnp.sum(jnp.tanh(outputs))

        return jax.grad(loss)(kernel)

    def in_loop(kernel, images):
        return lax.fori_loop(0, 2, lambda _, found: gradient(kernel + 0 * found, images), jnp.zeros_like(kernel))

    options = {"xla_backend_optimization_level": 3}
    alone, loop = (jax.jit(each).lower(KERNEL, IMAGES).compile(options)(KERNEL, IMAGES) for each in (gradient, in_loop))
    np.testing.assert_array_equal(alone, loop)


@pytest.mark.parametrize(
    "name",
    [
        "flax_internals._RngStream",
        "jaxprs.parts_of_scan",
        "xla_workarounds.shard_alike: JAX's own",
        "xla_workarounds.with_one_layout",
    ],
)
@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_jax_before_0_12_is_not_supported(name):
    project = (pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert int(re.findall(r'"jax>=0\.(\d+)', project)[0]) >= 12, f"the branch for older versions in {name}"


@avoided_by("xla_workarounds.shard_alike") if jax.__version_info__ >= (0, 12) else lambda test: test
def test_jax_ties_the_layouts_of_two_arrays():
    assert importlib.util.find_spec("jax.experimental.shard_alike") is not None


def doubled_in_a_loop(x):
    jax_internals.check(x[0] > 0, "not positive")
    double = jax.shard_map(lambda x: 2 * x, mesh=sharding().mesh, in_specs=P("a"), out_specs=P("a"))
    return jax.lax.scan(lambda x, _: (double(x), None), x, length=2)[0]


@pytest.mark.parametrize(("first", "failed"), [(1.0, None), (-1.0, "not positive")])
def test_a_function_with_checks_may_call_shard_map_in_a_loop(first, failed):
    error, found = jax.jit(jax_internals.with_checks(doubled_in_a_loop))(jnp.full(4, first))
    assert jax_internals.failed_check(error) == failed
    np.testing.assert_array_equal(found, np.full(4, 4 * first))


@pytest.mark.xfail(reason="jax_internals._checks_of_shard_map", strict=True, raises=TypeError)
def test_jax_checks_shard_map_in_a_loop(monkeypatch):
    monkeypatch.setitem(checkify.error_checks, shard_map_p, jax_internals._jax_checks_of_shard_map)
    jax.jit(checkify.checkify(doubled_in_a_loop))(jnp.ones(4))


class Reordered(nnx.Module):
    def __init__(self):
        self.b, self.a = nnx.Param(jnp.zeros(2)), nnx.Param(jnp.zeros(3))


@avoided_by("flax_internals.restore_order")
def test_merging_a_module_keeps_the_order_of_its_attributes():
    merged = nnx.merge(*nnx.split(Reordered()))
    assert [name for name in vars(merged) if name in ("a", "b")] == ["b", "a"]


class Table(nnx.Module):
    def __init__(self):
        self.table = jnp.arange(8)


@avoided_by("flax_internals.adopt_traced_buffers")
def test_arrays_that_a_module_makes_in_a_trace_are_data():
    assert jax.eval_shape(lambda: nnx.state(Table())) == jax.eval_shape(nnx.state, Table())


class Read(nnx.Variable):
    def get_raw_value(self):
        raise LookupError


@avoided_by("flax_internals.InterceptedVariable")
def test_variables_are_read_by_their_public_method():
    with contextlib.suppress(LookupError):
        _ = Read(jnp.ones(2)) + 1
        raise AssertionError("flax reads `_raw_value` itself")


@avoided_by("flax_internals.is_data_attribute")
def test_flax_says_in_public_which_attributes_are_data():
    assert "name" in inspect.signature(nnx.is_data).parameters


@avoided_by("flax_internals._RngStream")
def test_a_stream_does_not_ask_traced_counts_for_their_sharding(monkeypatch):
    asked = []
    sharding = core.Tracer.sharding.fget
    monkeypatch.setattr(core.Tracer, "sharding", property(lambda self: asked.append(self) or sharding(self)))
    jax.make_jaxpr(lambda: nnx.Rngs(0).params())()
    assert not asked


@avoided_by("shardy.copy_of: products replace operations of CHLO")
def test_layouts_propagate_through_square():
    mesh = jax.sharding.AbstractMesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=jax.sharding.NamedSharding(mesh, P("data")))
    lowered = jax.jit(lambda x: jax.lax.square(jnp.sin(x))).trace(x).lower(lowering_platforms=("cpu",))
    module = lowered.compiler_ir("stablehlo").operation.clone()
    shardy.run_passes(module, "sdy-propagation-pipeline")
    square = next(line for line in str(module).splitlines() if "square" in line)
    assert "sdy.sharding" in square


@avoided_by("shardy.with_origins: a process of its own")
def test_the_pass_that_notes_origins_of_layouts_survives_seven_heads_over_sixteen_devices():
    mesh = jax.sharding.AbstractMesh((2, 16), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def attention(x, query, key):
        query, key = (x @ query).reshape(16, 8, 7, 4, 64), (x @ key).reshape(16, 8, 7, 64)
        scores = jnp.einsum("bqkgh,bskh->bkgqs", query, key)
        return jnp.einsum("bkgqs,bskh->bqkgh", scores, key).reshape(x.shape)

    def layers(x, *weights):
        for query, key in zip(weights[::2], weights[1::2], strict=True):
            x = x + attention(x, query, key)
        return x

    weights = [jax.ShapeDtypeStruct((1792, features), jnp.float32) for features in (1792, 448)] * 6
    specs = [P("data"), *[P(None, "model")] * len(weights)]
    program = jax.jit(layers, in_shardings=[jax.sharding.NamedSharding(mesh, spec) for spec in specs])
    lowered = program.trace(jax.ShapeDtypeStruct((16, 8, 1792), jnp.float32), *weights).lower(
        lowering_platforms=("cpu",)
    )
    written = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(written)
    for _ in range(3):  # it reads memory that it has freed, and sometimes survives
        subprocess.run(
            [sys.executable, "-P", sharding_origins.__file__], input=written.getvalue(), capture_output=True, check=True
        )


@avoided_by("jax_runtime.join_job: Gloo listens on the address of the connection to the coordinator")
def test_jax_tells_gloo_an_address():
    assert "hostname" in inspect.getsource(xla_bridge.make_cpu_client)


@avoided_by("jax_runtime.job_client, jax_runtime.place_in_job, jax_runtime.coordinator_address")
def test_jax_names_in_public_the_job_that_it_has_joined():
    assert {"client", "process_id", "coordinator_address"} & {*dir(jax.distributed)}


@avoided_by("jax_runtime.join_job: state is reset")
def test_nothing_is_left_of_a_failed_attempt_to_join_a_job(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError

    state, runtime = distributed.State(), type("Runtime", (), {"get_distributed_runtime_client": refuse})
    monkeypatch.setattr(distributed, "_jax", runtime)
    with pytest.raises(RuntimeError):
        state.initialize(free_address(), 2, 1, cluster_detection_method="deactivate")
    assert (state.coordinator_address, state.process_id) == (None, 0)


CONNECT = """
from jaxlib import _jax
client = _jax.get_distributed_runtime_client(sys.argv[4], 1, init_timeout=1, shutdown_on_destruction=False)
try:
    client.connect()
except RuntimeError:
    pass
"""


@pytest.mark.multiprocess
@avoided_by("jax_runtime.join_job: a callback turns time-outs into exceptions")
def test_a_coordinator_that_does_not_answer_is_an_exception():
    ((code, _, _),) = Job(CONNECT, free_address(), processes=1).outcomes()
    assert code == 0


DIE = """
import os, time
if process == 0:
    os._exit(0)
time.sleep(5)
os._exit(0)
"""


@pytest.mark.multiprocess
@avoided_by("coordination_service, jax_runtime.abandon_job")
def test_processes_outlive_the_first_one_for_a_moment():
    assert [code for code, _, _ in Job(DIE).outcomes()] == [0, 0]
