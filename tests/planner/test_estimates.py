"""Steps whose collectives are not marked as estimates move in XLA's program what was propagated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import keras_dist as kd
from keras_dist import layers
from keras_dist.distribution.render import render_interval
from keras_dist.planner import exchanges, html, propagate
from keras_dist.planner.estimates import interval_of
from keras_dist.planner.hlo import parse_program
from keras_dist.planner.propagated import nbytes_by_axes
from keras_dist.planner.tracing import trace_step

ROWS, LENGTH, WIDTH, HEADS, HEAD = 4, 8, 16, 4, 4
SIZES = {"data": 2, "model": 4}
COLUMNS, ROWS_OF = P(None, "model"), P("model", None)


def attend(query, key, value):
    heads = (each.reshape(*each.shape[:2], -1, HEAD) for each in (query, key, value))
    return jax.nn.dot_product_attention(*heads).reshape(query.shape)


def fused(x, into, out):
    return attend(*jnp.split(x @ into, 3, axis=-1)) @ out


def grouped(x, query, key, value, out):
    return attend(x @ query, x @ key, x @ value) @ out


def halves(x, into, out):
    value, gate = jnp.split(x @ into, 2, axis=-1)
    return (value * jax.nn.silu(gate)) @ out


def biased(x, into, bias, out):
    return jax.nn.relu(x @ into + bias) @ out


def joined(x, up, gate, out):
    return jnp.concatenate([x @ up, x @ gate], -1) @ out


def rotated_whole(x, into, out):
    rotated, rest = jnp.split(x @ into, (into.shape[-1],), axis=-1)
    return jnp.concatenate([jnp.sin(rotated), rest], -1) @ out


def mamba(x, into, kernel, out):
    value, gate = jnp.split(x @ into, 2, axis=-1)
    padded = jnp.pad(value, ((0, 0), (3, 0), (0, 0)))
    names = ("NWC", "WIO", "NWC")
    groups = value.shape[-1]
    mixed = jax.lax.conv_general_dilated(padded, kernel, (1,), "VALID", None, None, names, feature_group_count=groups)
    return (jax.nn.silu(mixed) * gate) @ out


def convolved(x, *kernels, stride=1):
    for kernel in kernels:
        x = jax.lax.conv_general_dilated(x, kernel, (stride,) * 2, "SAME", None, None, ("NHWC", "HWIO", "NHWC"))
    return x


def normalized(x, kernel):
    y = x @ kernel
    return (y - y.mean(0)) * jax.lax.rsqrt(jnp.var(y, 0) + 1e-3)


def curved(x, up, down):
    return jax.nn.gelu(x @ up, approximate=False) @ down


def looked_up(x, table, head):
    ids = jnp.abs(jnp.argmax(jax.lax.stop_gradient(x), -1))
    return (table[ids] + x) @ head


def rolled(x, kernel):
    return jnp.roll(x @ kernel, 1, axis=1)


def largest(x, kernel):
    return jax.lax.top_k(x @ kernel, 2)[0]


X = (ROWS, LENGTH, WIDTH)
IMAGE = (ROWS, 16, 8, 4)
SEQUENCE = P("data", "model")
EXACT = {
    "fused queries, keys and values": (fused, X, P("data"), [((16, 48), COLUMNS), ((16, 16), ROWS_OF)]),
    "heads that the mesh divides": (grouped, X, P("data"), [*[((16, 16), COLUMNS)] * 3, ((16, 16), ROWS_OF)]),
    "gated halves": (halves, X, P("data"), [((16, 64), COLUMNS), ((32, 16), ROWS_OF)]),
    "a whole bias of split features": (biased, X, P("data"), [((16, 64), COLUMNS), ((64,), P()), ((64, 16), ROWS_OF)]),
    "joined features": (joined, X, P("data"), [((16, 32), COLUMNS), ((16, 16), COLUMNS), ((48, 16), P())]),
    "rows of images": (convolved, IMAGE, P("data", "model"), [((3, 3, 4, 8), P()), ((3, 3, 8, 4), P())]),
    "statistics of batches": (normalized, (8, 16), P(("data", "model")), [((16, 8), P())]),
    "erf": (curved, X, P("data"), [((16, 64), COLUMNS), ((64, 16), ROWS_OF)]),
    "a split vocabulary": (looked_up, X, P("data"), [((16, 16), ROWS_OF), ((16, 32), COLUMNS)]),
    "positions": (halves, X, SEQUENCE, [((16, 64), P()), ((32, 16), P())]),
}
MARKED = {
    "grouped heads": (
        (grouped, X, P("data"), [((16, 16), COLUMNS), *[((16, 8), COLUMNS)] * 2, ((16, 16), ROWS_OF)]),
        "dot_general",
    ),
    "a depthwise convolution": (
        (mamba, X, P("data"), [((16, 64), COLUMNS), ((4, 1, 32), P(None, None, "model")), ((32, 16), ROWS_OF)]),
        "conv_general_dilated",
    ),
    "strides over rows": (
        (lambda x, kernel: convolved(x, kernel, stride=2), IMAGE, P("data", "model"), [((3, 3, 4, 8), P())]),
        "conv_general_dilated",
    ),
    "a shift of positions": ((rolled, X, SEQUENCE, [((16, 16), P())]), "concatenate"),
    "largest features": ((largest, X, P("data"), [((16, 16), COLUMNS)]), "top_k"),
    "attention over positions": ((grouped, X, SEQUENCE, [((16, 16), P())] * 4), "dot_general"),
}


def lowered(function, shape, layout, weights, platform="cpu"):
    mesh = jax.make_mesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(AxisType.Auto,) * 2)

    def array(shape, spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

    arguments = [array(shape, layout), *(array(*weight) for weight in weights)]
    shardings = tuple(each.sharding for each in arguments)

    def loss(*arguments):
        return jnp.sum(function(*arguments) ** 2)

    step = jax.value_and_grad(loss, argnums=tuple(range(len(arguments))))
    return (
        jax.jit(step, out_shardings=(NamedSharding(mesh, P()), shardings))
        .trace(*arguments)
        .lower(lowering_platforms=(platform,))
    )


def compiled_nbytes(program):
    return nbytes_by_axes(parse_program(program.compile().as_text()).collectives(SIZES))


@pytest.mark.parametrize("name", EXACT)
def test_the_compiled_step_moves_what_is_not_an_estimate(name):
    program = lowered(*EXACT[name])
    found = propagate(program)
    assert not found.estimates
    assert found.nbytes_by_axes() == compiled_nbytes(program)


@pytest.mark.parametrize("name", MARKED)
def test_an_estimate_names_the_operation_and_its_line(name):
    case, operation = MARKED[name]
    found = propagate(lowered(*case)).estimates
    assert operation in {each.operation for each in found}
    sources = {each.source for each in found if each.operation == operation and each.kind != "neighbour"}
    assert operation == "concatenate" or all("test_estimates.py:" in source for source in sources)  # in jnp.roll


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", MARKED)
def test_intervals_contain_what_xla_moves(name):
    program = lowered(*MARKED[name][0])
    found, moved = propagate(program), sum(compiled_nbytes(program).values())
    least, most = found.moved_interval
    assert least <= moved <= most and least < most


class Recurrence(nnx.Module):
    """The time mix of RWKV."""

    def __init__(self, rngs):
        self.key, self.value, self.out = (nnx.Linear(128, 128, use_bias=False, rngs=rngs) for _ in range(3))
        self.decay, self.first = nnx.Param(jnp.ones(128)), nnx.Param(jnp.ones(128))

    def __call__(self, x):
        decay, first = -jnp.exp(self.decay[...]), self.first[...]

        def turn(state, now):
            (above, below, most), (key, value) = state, now
            larger = jnp.maximum(most, first + key)
            old, new = jnp.exp(most - larger), jnp.exp(first + key - larger)
            out = (old * above + new * value) / (old * below + new)
            larger = jnp.maximum(most + decay, key)
            old, new = jnp.exp(most + decay - larger), jnp.exp(key - larger)
            return (old * above + new * value, old * below + new, larger), out

        over_time = (jnp.swapaxes(each(x), 0, 1) for each in (self.key, self.value))
        zero = jnp.zeros_like(x[:, 0])
        mixed = jax.lax.scan(turn, (zero, zero, zero - 1e9), tuple(over_time))[1]
        return x + self.out(jnp.swapaxes(mixed, 0, 1))


@pytest.mark.full
def test_the_interval_of_a_fully_sharded_recurrence_contains_what_xla_moves():
    """Features of the state are sharded in the loop by propagation, which XLA does not follow."""
    x = jax.ShapeDtypeStruct((16, 64, 128), "float32")
    mesh = kd.DeviceMesh("data=8")
    program = trace_step(Recurrence, (x, x), kd.FullySharded(mesh, min_size_bytes=0), "adam", "mse", platform="cpu")
    found = propagate(program.lowered)
    moved = sum(kd.planner.compile_for(program.lowered, "cpu:8").nbytes_by_axes().values())
    least, most = found.moved_interval
    assert least <= moved <= most and sum(found.nbytes_by_axes().values()) > 1.5 * moved


def test_sums_of_a_loop_may_leave_it():
    """libtpu 0.0.42 gathers weights of a stack before the loop, and reduces gradients after it."""
    assert interval_of(1000, "stack", 1) == (200, 1000)
    assert interval_of(1000, "stack", 64) == (0, 1000)
    assert interval_of(1000, "statistic", 64) == (500, 1000)
    assert interval_of(1000, "") == (1000, 1000)


def test_random_layouts_are_exact_or_estimates():
    rng = np.random.default_rng(0)
    choices = [P(), P("data"), P("model"), P(None, "model"), P(None, "data"), P("model", "data")]
    exact = 0
    for _ in range(6):
        weights = [((16, 64), choices[rng.integers(6)]), ((32, 16), choices[rng.integers(6)])]
        program = lowered(halves, X, P("data"), weights)
        found = propagate(program)
        is_equal = found.nbytes_by_axes() == compiled_nbytes(program)
        assert is_equal or found.estimates, weights
        exact += not found.estimates
    assert exact


def test_exchanges_of_slices_count_as_xla_groups_them():
    found = propagate(lowered(*EXACT["fused queries, keys and values"])).collectives
    permuted = [each for each in found if each.kind == "collective_permute"]
    column = 4 * ROWS // 2 * LENGTH
    # shards of 12 columns: queries from shards 0, 0, 1 in parts of 4; keys from both neighbours; values from 2, 3, 3
    assert sorted(each.nbytes // column for each in permuted) == [4, 4, 4, 4, 8, 8, 8]
    assert {(each.axes, each.operation) for each in permuted} == {(("model",), "split")}


def test_slices_without_elements_exchange_nothing():
    found = propagate(lowered(rotated_whole, X, P("data"), [((16, 32), COLUMNS), ((32, 16), ROWS_OF)]))
    assert "collective_permute" not in {each.kind for each in found.collectives}


def test_the_report_says_which_figures_are_estimates():
    class Mixed(nnx.Module):
        def __init__(self, rngs):
            self.up, self.down = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 8, rngs=rngs)

        def __call__(self, x):
            return self.down(jax.lax.sort(self.up(x)))

    rules = kd.LayoutMap(kd.DeviceMesh(SIZES))
    rules["up/kernel"], rules["down/kernel"] = (None, "model"), ("model", None)
    x = np.zeros((8, 8), "float32")
    report = kd.plan(Mixed, x, kd.ModelParallel(rules))
    assert {each.operation for each in report.step.estimates} >= {"sort"}
    text, found = str(report), report.to_dict()["propagated"]
    assert "Collectives of a step (estimate)" in text
    assert "estimate: sort (test_estimates.py:" in text
    assert found["estimates"][0]["count"] >= 1
    least, most = report.step.moved_interval
    assert found["moved_nbytes"] == [least, most] and least < most
    total = next(line for line in text.splitlines() if line.startswith("total") and " to " in line)
    assert render_interval(least, most) in total
    assert {tuple(each["axes"]): each["nbytes"] for each in found["moved"] if each["kind"] == "all_gather"} == {
        axes: list(interval) for (kind, axes), interval in report.step.intervals().items() if kind == "all_gather"
    }
    page = html.page_of(report)
    assert f"<b>{render_interval(least, most)}</b>moved in a step" in page
    plain = kd.Sequential([kd.Input((8,)), layers.Dense(16, "relu", name="up"), layers.Dense(8, name="down")])
    assert "estimate" not in str(kd.plan(lambda: plain, x, kd.ModelParallel(rules)))


def test_xla_for_cpus_reduces_axes_of_different_dims_one_after_the_other():
    on_cpu, on_tpu = (
        propagate(lowered(*EXACT["positions"], platform=name)).nbytes_by_axes() for name in ("cpu", "tpu")
    )
    nbytes = 4 * (16 * 64 + 32 * 16 + 1)
    assert on_cpu == {("all_reduce", ("data",)): nbytes, ("all_reduce", ("model",)): nbytes}
    assert on_tpu == {("all_reduce", ("data", "model")): nbytes}  # as libtpu 0.0.42 compiles it


def test_borders_of_images_are_estimates_on_tpus():
    """libtpu 0.0.42 permutes 3,072 bytes instead of 4,608: gradients use the borders of the forward pass."""
    found = propagate(lowered(*EXACT["rows of images"], platform="tpu"))
    assert found.nbytes_by_axes()["collective_permute", ("model",)] == 4608
    assert {each.operation for each in found.estimates} == {"conv_general_dilated"}


def test_batch_statistics_are_estimates_on_tpus():
    """libtpu 0.0.42 sums 11,972 bytes instead of 12,100: two of the six sums of 32 features are equal."""

    def factory():
        convolution = layers.Conv2D(32, 3, padding="same", use_bias=False)
        pooled = [layers.ReLU(), layers.GlobalAveragePooling2D(), layers.Dense(16)]
        return kd.Sequential([kd.Input((16, 16, 8)), convolution, layers.BatchNormalization(name="norm"), *pooled])

    batch = np.zeros((64, 16, 16, 8), "float32"), np.zeros((64, 16), "float32")
    on_cpu, on_tpu = (
        propagate(trace_step(factory, batch, kd.DataParallel(), "adam", "mse", platform=name).lowered)
        for name in ("cpu", "tpu")
    )
    assert on_cpu.nbytes_by_axes() == on_tpu.nbytes_by_axes() == {("all_reduce", ("batch",)): 12100}
    assert on_cpu.estimates == () and [each.layer for each in on_tpu.estimates] == ["norm"]


def test_weights_that_compute_in_bfloat16_move_in_bfloat16():
    """XLA compiled this step for v5e:2x4 (libtpu 0.0.42) with the same collectives: half of the bytes of float32.

    Slices of 128 lanes of bfloat16 are all-reduced.
    """

    class Mixed(nnx.Module):
        def __init__(self, rngs):
            options = {"use_bias": False, "dtype": jnp.bfloat16, "rngs": rngs}
            self.up, self.down = nnx.Linear(256, 1024, **options), nnx.Linear(1024, 256, **options)

        def __call__(self, x):
            return self.down(nnx.relu(self.up(x)))

    x = jax.ShapeDtypeStruct((4096, 256), "float32")
    mesh = kd.DeviceMesh("data=8", devices=kd.planner.devices("v5e:2x4", (8,)))
    found = kd.plan(Mixed, (x, x), kd.FullySharded(mesh, min_size_bytes=0), "adam", "mse").step
    weight = 2 * 256 * 1024
    reduced = {("all_reduce", ("data",)): weight + 4, ("reduce_scatter", ("data",)): weight}
    assert found.nbytes_by_axes() == {("all_gather", ("data",)): 3 * weight, **reduced}
    assert not found.estimates


def test_a_dim_that_one_shard_covers_is_not_permuted():
    assert exchanges.permute_widths(8, 8, [(0, 8)]) == []
