"""Adam with moments of 8 bits: the codes of the paper, the training of optax's Adam, a quarter of its memory."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import keras_dist as kd
from keras_dist import layers, optimizers
from keras_dist.callbacks import BackupAndRestore
from keras_dist.data.arrays import ArraySource
from keras_dist.errors import ModelError
from keras_dist.optimizers import adam8bit
from tests.soak import repeated

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(83, 64)).astype("float32")  # batches of 32, 32 and 19 rows
Y = np.tanh(X @ RANDOM.normal(size=(64, 4)) / 4).astype("float32")


def dynamic_map(is_signed: bool) -> np.ndarray:
    """The 256 values of the paper's dynamic tree: in decade `e` the centers of equal parts of [0.1, 1], and 0 and 1."""
    values = [np.array([0.0, 1.0])]
    for e in range(7):
        edges = np.linspace(0.1, 1, 2 ** (e + (not is_signed)) + 1)
        centers = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (e - 6)
        values += [centers, -centers] if is_signed else [centers]
    return np.sort(np.concatenate(values))


KINDS = [(jnp.int8, True), (jnp.uint8, False)]


@pytest.mark.parametrize(("dtype", "is_signed"), KINDS)
def test_codes_are_the_values_of_the_dynamic_map(dtype: Any, is_signed: bool) -> None:
    codes = jnp.arange(-128 if is_signed else 0, 128 if is_signed else 256).astype(dtype)[None]
    moment = adam8bit.Quantized(codes, jnp.ones((1, 1)))
    values = adam8bit._dequantized(moment)
    np.testing.assert_allclose(np.sort(values[0]), dynamic_map(is_signed), rtol=1e-6)
    np.testing.assert_array_equal(adam8bit._quantized(values, dtype).codes, codes)


@pytest.mark.parametrize(("dtype", "is_signed"), KINDS)
def test_values_have_the_nearest_codes_and_the_error_of_half_a_part(dtype: Any, is_signed: bool) -> None:
    rng = np.random.default_rng(0)
    size = np.concatenate([10 ** rng.uniform(-9, 0, 256 * 40), rng.uniform(0, 1, 256 * 40)])
    values = (size * rng.choice([-1, 1] if is_signed else [1], size.shape)).astype("float32").reshape(-1, 256)
    scales = np.abs(values).max(-1, keepdims=True)
    found = np.asarray(adam8bit._dequantized(adam8bit._quantized(jnp.asarray(values), dtype)))
    known = dynamic_map(is_signed)
    nearest = known[np.abs((values / scales)[..., None] - known).argmin(-1)] * scales
    if not is_signed:
        nearest = np.maximum(nearest, known[1] * scales)  # zero is for zero alone
    is_near = np.isclose(found, nearest, rtol=1e-5, atol=0)
    assert is_near.mean() > 0.9995  # others are halfway between two values
    half = 0.45 / 64 / (1 if is_signed else 2)
    assert half * 0.99 < np.abs(found - values).max() / scales.max() < half * 1.001 < 0.0071
    largest_decade = np.abs(values) / scales > 0.1
    assert (np.abs(found - values) / np.abs(values))[largest_decade].max() < 10 * half


@pytest.mark.parametrize(
    ("size", "blocks"),
    [(1, (1, 1)), (48, (1, 48)), (251, (1, 251)), (256, (1, 256)), (384, (2, 192)), (768, (3, 256)), (1000, (4, 250)),
     (514, (3, 256)), (50257, (197, 256)), (151936, (1187, 128))],
)  # fmt: skip
def test_blocks_divide_a_dim_where_they_can(size: int, blocks: tuple[int, int]) -> None:
    assert adam8bit._blocks(size) == blocks


@pytest.mark.parametrize("size", [514, 1000])
def test_each_block_has_its_largest_value(size: int) -> None:
    values = np.random.default_rng(0).normal(size=(3, size)).astype("float32") * np.geomspace(1, 1e4, size)
    found = adam8bit._quantized(jnp.asarray(values, jnp.float32), jnp.int8)
    block = adam8bit._blocks(size)[1]
    for place in range(found.scales.shape[-1]):
        part = slice(place * block, (place + 1) * block)
        np.testing.assert_allclose(found.scales[:, place], np.abs(values[:, part]).max(-1), rtol=1e-6)
    error = np.abs(np.asarray(adam8bit._dequantized(found)) - values)
    assert (error / np.repeat(found.scales, block, -1)[:, :size]).max() < 0.0071


def steps_of(optimizer: Any, weights: Any, grads: Any) -> Any:
    state, update = optimizer.init(weights), jax.jit(optimizer.update)
    for each in grads:
        updates, state = update(each, state, weights)
        weights = optax.apply_updates(weights, updates)
    return weights, state


def test_small_and_narrow_weights_keep_32_bits_and_take_the_steps_of_adam() -> None:
    weights = {"small": np.ones((63, 65), "f"), "narrow": np.ones((512, 31), "f"), "scalar": np.ones((), "f")}
    grads = [jax.tree.map(lambda w: np.asarray(RANDOM.normal(size=w.shape), "float32"), weights) for _ in range(5)]
    found, state = steps_of(optimizers.Adam8bit(0.1), weights, grads)
    expected, _ = steps_of(optimizers.Adam(0.1), weights, grads)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert {leaf.dtype for leaf in jax.tree.leaves(state) if leaf.ndim} == {np.dtype("float32")}


@pytest.mark.parametrize("least", [0, 4097])
def test_min_8bit_size_decides(least: int) -> None:
    state: Any = optimizers.Adam8bit(min_8bit_size=least).init({"w": jnp.ones((64, 64)), "b": jnp.ones(64)})
    moments = state.inner.slots[0].mu
    assert [isinstance(moment, adam8bit.Quantized) for moment in moments.values()] == [least == 0] * 2


def test_a_stack_is_coded_as_its_slices_are() -> None:
    rng, names = (
        np.random.default_rng(0),
        {"s/w": ("layers", "inputs", "outputs"), "s/v": ("layers", "inputs", "outputs")},
    )
    draws = [{"w": rng.normal(size=(3, 64, 64)), "v": rng.normal(size=(3, 32, 64))} for _ in range(4)]
    weights, *grads = [jax.tree.map(np.float32, {"s": each}) for each in draws]
    together = optimizers.Adam8bit(0.1)
    together.know_dims(names)  # type: ignore[arg-type]
    stacked, state = steps_of(together, weights, grads)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.inner.slots[0].mu["s"]["v"])} == {np.dtype("float32")}
    assert state.inner.slots[0].mu["s"]["w"].scales.shape == (3, 64, 1)
    for place in range(3):
        alone = [jax.tree.map(lambda leaf, place=place: leaf[place], each) for each in (weights, *grads)]
        single, _ = steps_of(optimizers.Adam8bit(0.1), alone[0], alone[1:])
        for one, other in zip(jax.tree.leaves(stacked), jax.tree.leaves(single), strict=True):
            np.testing.assert_allclose(one[place], other, rtol=1e-6)


def test_rare_gradients_do_not_divide_by_epsilon() -> None:
    """`v` of a value a million times smaller than its block's largest is not rounded to zero."""
    weights = {"w": np.zeros((16, 256), "float32")}
    first = np.full((16, 256), 3e-4, "float32")
    first[:, 0] = 1.0
    grads = [{"w": first}, *[{"w": np.zeros_like(first)}] * 3]
    found, _ = steps_of(optimizers.Adam8bit(0.1), weights, grads)
    expected, _ = steps_of(optimizers.Adam(0.1), weights, grads)
    assert np.abs(found["w"]).max() < 2 * np.abs(expected["w"]).max()


def test_half_precision_weights_have_moments_of_their_float32_gradients() -> None:
    weights = {"w": jnp.ones((64, 64), jnp.bfloat16)}
    found, state = steps_of(optimizers.AdamW8bit(0.1), weights, [{"w": jnp.ones((64, 64), jnp.bfloat16)}])
    assert found["w"].dtype == jnp.bfloat16
    assert state.inner.slots[0].mu["w"].scales.dtype == jnp.float32


def test_decay_must_be_a_number() -> None:
    with pytest.raises(ModelError, match=r"weight_decay(.|\n)*use Adam8bit"):
        optimizers.AdamW8bit(weight_decay=None)  # type: ignore[arg-type]


def network(where: str = "one device", optimizer: Any = None) -> kd.Model:
    rules = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    rules.update({"d1/kernel": (None, "model"), "d2/kernel": ("model", None)})
    layout: Any = {
        "one device": lambda: kd.DataParallel(devices=kd.list_devices()[:1]),
        "fully": lambda: kd.FullySharded(kd.DeviceMesh("data=8")),
        "rules": lambda: kd.ModelParallel(rules, batch_dim_name="data"),
    }[where]()
    kd.set_random_seed(3)
    with layout.scope():
        body = [layers.Dense(1024, "tanh", name="d1"), layers.Dense(96, "tanh", name="d2"), layers.Dense(4, name="d3")]
        model = kd.Sequential([kd.Input((64,)), *body])
    model.compile(optimizer or optimizers.AdamW8bit(1e-3), "mse")
    return model


def fit(model: kd.Model, epochs: int = 3, **options: Any) -> list[float]:
    return model.fit(X, Y, batch_size=32, epochs=epochs, shuffle=False, verbose=0, **options).history["loss"]


def test_it_learns_as_optax_adam_does() -> None:
    found = fit(network(optimizer=optimizers.Adam8bit(1e-3, epsilon=1e-8)), epochs=8)
    expected = fit(network(optimizer=optax.adam(1e-3)), epochs=8)
    assert expected[-1] < expected[0] / 4
    np.testing.assert_allclose(found, expected, rtol=0.02)
    assert max(np.abs(np.subtract(found, expected))) > 1e-6  # not 32 bits


def test_slots_take_a_quarter_and_are_sharded_as_their_weights() -> None:
    nbytes = {}
    for optimizer in (optimizers.Adam8bit(), optimizers.Adam()):
        plan = network("fully", optimizer).state_plan
        nbytes[type(optimizer)] = sum(row.nbytes_per_device for row in plan.rows if row.role == "slot")
    assert nbytes[optimizers.Adam8bit] < 0.28 * nbytes[optimizers.Adam]
    plan = network("rules").state_plan
    prefix = "optimizer/inner/slots/0/mu"
    for kernel, axes in (("d1/kernel", (None, "model")), ("d2/kernel", ("model", None))):
        for part in ("codes", "scales"):
            row = plan.row(f"{prefix}/{kernel}/{part}")
            assert (row.axes, row.rule) == (axes, f"follows {kernel}")
    assert plan.row(f"{prefix}/d1/kernel/scales").shape == (64, 4)


def test_blocks_that_the_axes_do_not_divide_are_whole_in_the_last_dim_alone() -> None:
    rules = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    rules["w"] = ("data", "model")
    shape = jax.ShapeDtypeStruct
    plan = kd.ModelParallel(rules).plan({"w": shape((64, 768), jnp.float32)})
    found = plan.follow({"w": {"codes": shape((64, 768), jnp.int8), "scales": shape((64, 3), jnp.float32)}})
    assert found.row("w/codes").axes == ("data", "model")
    assert (found.row("w/scales").axes, "do not divide" in found.row("w/scales").rule) == (("data", None), True)


@pytest.mark.first_cases(1)
@repeated
@pytest.mark.parametrize("where", ["rules", "fully"])
def test_layouts_differ_by_rounding(where: str) -> None:
    """A gradient that rounds to a neighboring code changes one value; these are few, and change by a code."""
    one, many = network(), network(where)
    before = one.get_weights()
    np.testing.assert_allclose(fit(many), fit(one), rtol=1e-5)
    for start, a, b in zip(before, one.get_weights(), many.get_weights(), strict=True):
        assert np.mean(np.abs(a - b) > 1e-6) < 0.01
        assert np.abs(a - b).max() < 0.1 * np.abs(a - start).max()


@pytest.mark.slow
def test_moments_with_whole_blocks_are_updated_without_an_exchange() -> None:
    found = []
    for optimizer in (optimizers.Adam(), optimizers.Adam8bit()):
        runner: Any = network("rules", optimizer)._built.step_runner
        program = runner.lower(ArraySource(X[:32], Y[:32])).compile().as_text()
        found.append(re.findall(r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)\(", program))
    assert sorted(found[0]) == sorted(found[1])


@pytest.mark.slow
def test_moments_in_host_memory_are_equal() -> None:
    found = []
    for memory in (None, "pinned_host"):
        model = network("fully")
        model.compile(optimizers.Adam8bit(1e-3), "mse", slot_memory=memory)
        found.append(fit(model))
    np.testing.assert_allclose(*found, rtol=1e-6)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("layout", [lambda: kd.FullySharded(kd.DeviceMesh("data=8")), kd.DataParallel])
def test_tables_are_trained_by_the_rows_that_batches_look_up(layout: Any) -> None:
    """Batches that look up all rows take the steps of the whole table."""
    rng, trained = np.random.default_rng(0), []
    ids, y = rng.permuted(np.tile(np.arange(96), (3, 1)), axis=1).reshape(-1, 1), rng.normal(size=(288, 1, 64))
    table = rng.normal(size=(96, 64)).astype("float32")
    kd.set_distribution(layout())
    for rowwise in (None, "table/embeddings"):
        model = kd.Sequential([kd.Input((1,), dtype="int32"), layers.Embedding(96, 64, name="table")])
        model.compile(optimizers.Adam8bit(0.01), "mse", rowwise=rowwise)
        model.set_weights([table])
        model.fit(ids, y.astype("float32"), batch_size=96, epochs=2, shuffle=False, verbose=0)
        assert "int8" in {str(variable.dtype) for variable in model.optimizer.variables}
        trained.append(model.get_weights()[0])
    np.testing.assert_allclose(*trained, atol=1e-4)
    assert np.abs(trained[0] - table).max() > 0.03


class Interrupted(Exception):
    """Stands for a signal."""


class Interruption(kd.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 2:
            raise Interrupted


@pytest.mark.parametrize("there", ["fully", pytest.param("rules", marks=pytest.mark.slow)])
def test_training_resumes_bit_for_bit_and_on_another_mesh_to_rounding(there: str, tmp_path: Any) -> None:
    whole = network("fully")
    fit(whole, 3)
    backup = BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
    with pytest.raises(Interrupted):
        fit(network("fully"), 3, callbacks=[backup, Interruption()])
    resumed = network(there)
    fit(resumed, 3, callbacks=[BackupAndRestore(tmp_path / "backup")])
    for a, b in zip(whole.optimizer.variables, resumed.optimizer.variables, strict=True):
        if there == "fully":
            np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=a.path)
    for a, b in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=0 if there == "fully" else 1e-4)
    assert int(resumed.optimizer.iterations) == 9


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_visible(value: float) -> None:
    optimizer, weights = optimizers.Adam8bit(1.0), {"w": jnp.zeros((64, 512))}
    state, gradient = optimizer.init(weights), np.ones((64, 512), np.float32)
    bad = gradient.copy()
    bad[3, 5] = value
    _, state = optimizer.update({"w": jnp.asarray(bad)}, state, weights)
    for _ in range(3):
        updates, state = optimizer.update({"w": jnp.asarray(gradient)}, state, weights)
        expected = np.ones((64, 512), bool)
        expected[3, :256] = False
        np.testing.assert_array_equal(np.isfinite(updates["w"]), expected)
