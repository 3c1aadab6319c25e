"""Tables of `compile(rowwise=...)` are trained by the rows of a batch, as numpy trains them, and by no larger array."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import keras_dist as kd
from keras_dist import layers, optimizers
from keras_dist.data.arrays import ArraySource
from keras_dist.errors import ModelError

COUNT, SIZE, EPSILON = 48, 4, 1e-7
TABLE = "item/embeddings"
rng = np.random.default_rng(0)
FIRST, SECOND = rng.integers(0, 40, (37, 3)), rng.integers(0, 40, 37)  # rows from 40 on are never looked up
Y = rng.normal(size=(37, 1)).astype("float32")
SAMPLE_WEIGHT = rng.uniform(0, 2, 37).astype("float32")
INITIAL = [rng.normal(size=shape).astype("float32") for shape in ((COUNT, SIZE), (4 * SIZE, 1))]


def on(mesh, axes):
    mesh = kd.DeviceMesh(mesh)
    if axes is None:
        return kd.FullySharded(mesh)
    rules = kd.LayoutMap(mesh)
    rules[TABLE] = axes
    return kd.ModelParallel(rules, batch_dim_name=mesh.axis_names[0])


def model_on(distribution, optimizer, rowwise=TABLE, count=COUNT, **options):
    with distribution.scope():
        first, second = kd.Input((3,), dtype="int32"), kd.Input((), dtype="int32")
        table = layers.Embedding(count, SIZE, name="item")
        joined = layers.Concatenate()([layers.Flatten()(table(first)), table(second)])
        model = kd.Model([first, second], layers.Dense(1, use_bias=False, name="head")(joined))
        model.compile(optimizer, "mse", rowwise=rowwise, **options)
    if count == COUNT:
        model.set_weights(INITIAL)
    return model


def gradients(weights, first, second, y, sample_weight):
    """Gradients of the loss by hand, and the rows that are looked up."""
    table, head = weights
    ids = np.concatenate([first, second[:, None]], axis=1)
    hidden = table[ids].reshape(len(ids), -1)
    of_outputs = 2 * sample_weight[:, None] * (hidden @ head - y) / len(y)
    of_table = np.zeros_like(table)
    np.add.at(of_table, ids, (of_outputs @ head.T).reshape(*ids.shape, SIZE))
    return [of_table, hidden.T @ of_outputs], np.unique(ids)


class Descent:
    """`w -= 0.1 * g`, with gradients shortened to a global norm of 0.5."""

    make = staticmethod(lambda: optimizers.SGD(0.1, global_clipnorm=0.5))

    def __init__(self, weights):
        self.steps = 0

    def __call__(self, weights, grads, seen):
        self.steps += 1
        norm = np.sqrt(sum((g**2).sum() for g in grads))
        assert norm > 0.5
        return [w - 0.1 * g * 0.5 / norm for w, g in zip(weights, grads, strict=True)]


class ByRow:
    """Adagrad with a sum for each row."""

    make = staticmethod(lambda: optimizers.RowWiseAdagrad(0.1))

    def __init__(self, weights):
        self.sums = [np.full((len(w), 1), 0.1) for w in weights]

    def __call__(self, weights, grads, seen):
        self.sums = [s + (g**2).mean(1, keepdims=True) for s, g in zip(self.sums, grads, strict=True)]
        return [w - 0.1 * g / np.sqrt(s + EPSILON) for w, g, s in zip(weights, grads, self.sums, strict=True)]


class Lazy:
    """Adam with weight decay whose moments and weights of a row change when the row is seen."""

    make = staticmethod(lambda: optimizers.AdamW(0.05, weight_decay=0.1))

    def __init__(self, weights):
        self.steps = 0
        self.moments = [[np.zeros_like(w), np.zeros_like(w)] for w in weights]

    def __call__(self, weights, grads, seen):
        self.steps += 1
        found = []
        for w, g, (m, v), rows in zip(weights, grads, self.moments, (seen, slice(None)), strict=True):
            w = w.copy()
            m[rows] = 0.9 * m[rows] + 0.1 * g[rows]
            v[rows] = 0.999 * v[rows] + 0.001 * g[rows] ** 2
            root = np.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
            w[rows] += -0.05 * 0.1 * w[rows] - 0.05 * root * m[rows] / (np.sqrt(v[rows]) + EPSILON)
            found.append(w)
        return found


def trained(rule, steps, sample_weight=None):
    weights = INITIAL
    rule = rule(weights)
    for rows in steps:
        of_rows = np.ones(len(Y[rows])) if sample_weight is None else sample_weight[rows]
        weights = rule(weights, *gradients(weights, FIRST[rows], SECOND[rows], Y[rows], of_rows))
    return weights


EPOCH = [slice(0, 16), slice(16, 32), slice(32, 37)]  # the last rows are padded
LAYOUTS = [
    ("batch=8", ("batch", None)),
    ("data=2,model=4", ("model", None)),
    ("data=4,model=2", ("data", "model")),
    ("data=2,model=4", (None, "model")),
    ("batch=8", None),  # FullySharded
]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("mesh", "axes", "rule"),
    [(*layout, rule) for layout, rule in zip(LAYOUTS, (Descent, ByRow, Lazy, ByRow, Lazy), strict=True)],
)
def test_numbers_are_those_of_numpy(mesh, axes, rule):
    model = model_on(on(mesh, axes), rule.make())
    weights = SAMPLE_WEIGHT if rule is ByRow else None
    model.fit([FIRST, SECOND], Y, batch_size=16, epochs=2, shuffle=False, verbose=0, sample_weight=weights)
    expected = trained(rule, EPOCH * 2, weights)
    for found, wanted in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(model.get_weights()[0][40:], INITIAL[0][40:])
    assert np.isfinite(model.evaluate([FIRST, SECOND], Y, batch_size=16, verbose=0))


@pytest.mark.slow
def test_first_step_of_adam_is_the_dense_one_and_its_gradient_has_the_dense_norm():
    ids = np.arange(32).reshape(8, 4)  # each row once
    inputs, found = [ids[:, :3], ids[:, 3]], []
    for rowwise in (None, TABLE):
        model = model_on(on("data=2,model=4", ("model", None)), "adam", rowwise, report=["gradient_norm"])
        norm = model.train_on_batch(inputs, Y[:8], return_dict=True)["gradient_norm"]
        found.append((*model.get_weights(), norm))
    grads, _ = gradients(INITIAL, *inputs, Y[:8], np.ones(8))
    np.testing.assert_allclose(found[1][2], np.sqrt(sum((g**2).sum() for g in grads)), rtol=1e-5)
    for dense, by_rows in zip(*found, strict=True):
        np.testing.assert_allclose(by_rows, dense, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_slots_are_saved_and_training_resumes(tmp_path):
    model = model_on(on("batch=8", ("batch", None)), Lazy.make())
    inputs = [FIRST[:32], SECOND[:32]]
    model.fit(inputs, Y[:32], batch_size=16, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    with on("data=2,model=4", ("model", None)).scope():
        resumed = kd.models.load_model(tmp_path / "model.keras")
    assert resumed._built.forward.tables
    resumed.fit(inputs, Y[:32], batch_size=16, shuffle=False, verbose=0)
    for found, wanted in zip(resumed.get_weights(), trained(Lazy, EPOCH[:2] * 2), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.slow
def test_half_precision_sums_gradients_of_rows_in_float32():
    before = kd.mixed_precision.dtype_policy()
    kd.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        optimizer = optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=8.0)
        model = model_on(on("batch=8", ("batch", None)), optimizer)
    finally:
        kd.mixed_precision.set_dtype_policy(before)
    model.fit([FIRST, SECOND], Y, batch_size=37, verbose=0, shuffle=False)
    grads, _ = gradients(INITIAL, FIRST, SECOND, Y, np.ones(37))
    table = model.get_weights()[0]
    assert table.dtype == np.float32
    np.testing.assert_allclose(table, INITIAL[0] - 0.1 * grads[0], rtol=1e-2, atol=1e-3)
    model.train_on_batch([FIRST, SECOND], np.full_like(Y, np.inf))
    np.testing.assert_array_equal(model.get_weights()[0], table)  # the step is skipped


class Score(kd.Model):
    """Scores of items, by one table in several ways."""

    def __init__(self, way, table=None):
        super().__init__()
        self.way, self.item = way, table or layers.Embedding(COUNT, SIZE, name="item")
        self.head = layers.Dense(1, name="head")
        self.item.build()

    def call(self, ids):
        return self.head(self.way(self.item, ids))


def by_default(table, ids):
    return table(ids).sum(1)


def in_loop(table, ids):
    return jax.lax.scan(lambda total, each: (total + table(each), None), jnp.zeros((len(ids), SIZE)), ids.T)[0]


def penalized(table, ids):
    return table(ids).sum(1) * jnp.mean(table.embeddings**2)


def projected(table, ids):
    return table(table(ids), reverse=True).sum(1)


def test_negative_indices_count_from_the_end_and_others_give_nan():
    class Rows(kd.Model):
        def __init__(self):
            super().__init__()
            self.item = layers.Embedding(COUNT, SIZE, name="item")

        def call(self, ids):
            return self.item(ids)

    with on("batch=8", ("batch", None)).scope():
        model = Rows()
    model.compile("sgd", "mse", rowwise=TABLE)
    ids = np.array([0, -1, COUNT, 3, -2, 5, 6, 7])
    rows = model.predict(ids, verbose=0)
    expected = np.asarray(jnp.take(model.item.embeddings.numpy(), ids, axis=0))
    np.testing.assert_array_equal(rows, expected)
    assert np.isnan(rows[2]).all()
    before = model.get_weights()[0]
    model.train_on_batch(ids, np.nan_to_num(expected) + 1, sample_weight=np.isfinite(rows[:, 0]))
    changed = np.flatnonzero((model.get_weights()[0] != before).any(1))
    assert changed.tolist() == [0, 3, 5, 6, 7, COUNT - 2, COUNT - 1]


def reversible():
    return layers.ReversibleEmbedding(COUNT, SIZE, name="item")


@pytest.mark.parametrize(
    ("way", "make", "options", "message"),
    [
        (by_default, None, {"rowwise": "itm/embeddings"}, "matches no weight .did you mean 'item/embeddings'"),
        (by_default, None, {"rowwise": "(item|head)/.*"}, "'head/bias' is not the table of an Embedding"),
        (by_default, None, {"rowwise": 3}, "`rowwise` must be a regular expression"),
        (by_default, None, {"rowwise": "("}, "`rowwise` is not a regular expression"),
        (by_default, None, {"uneven": "pad"}, "excludes `uneven` and a custom train step\n.*uneven='pad'"),
        (by_default, None, {"train_step": lambda state, batch, rngs: (state, {})}, "a custom train step"),
        (by_default, None, {"optimizer": "lamb"}, "is trained by Lamb, whose update of a row may depend on others"),
        (by_default, None, {"slot_memory": "pinned_host"}, "slot_memory='pinned_host' would transfer whole slots"),
        (by_default, None, {"optimizer": optax.sgd(0.1)}, "is trained by OptaxOptimizer"),
        (by_default, None, {"optimizer": optimizers.SGD(use_ema=True)}, "with use_ema, an array of the size"),
        (
            by_default,
            None,
            {"optimizer": optimizers.SGD(gradient_accumulation_steps=2)},
            "with gradient_accumulation_steps, an array of the size of the table: a larger batch has the same effect",
        ),
        (
            by_default,
            lambda: layers.Embedding(COUNT, SIZE, embeddings_regularizer="l2", name="item"),
            {},
            "has a regularizer, which reads all rows",
        ),
        (
            by_default,
            lambda: layers.Embedding(COUNT, SIZE, embeddings_constraint="non_neg", name="item"),
            {},
            "has a constraint, which reads all rows",
        ),
        (by_default, lambda: layers.Embedding(COUNT, SIZE, trainable=False, name="item"), {}, "is not trained"),
        (projected, reversible, {}, "may only be looked up"),
        (penalized, None, {}, "may only be looked up"),
        (by_default, None, {"remat": "item"}, "may only be looked up"),
        (in_loop, None, {}, "cannot see which rows a step looks up"),
    ],
)
def test_what_needs_the_whole_table_is_an_error(way, make, options, message):
    model = Score(way, None if make is None else make())
    with pytest.raises(ModelError, match=message):
        model.compile(**{"optimizer": "sgd", "loss": "mse", "rowwise": TABLE, **options})
        model.train_on_batch(FIRST, Y)


@pytest.mark.slow
def test_optimizers_of_other_weights_may_need_whole_weights():
    for optimizer in (
        {"tables": (optimizers.RowWiseAdagrad(0.1), TABLE), "head": (optimizers.Lamb(0.1), "head/.*")},
        optimizers.MultiOptimizer(
            optimizers.OptimizerMap(optimizers.Lamb(0.1), {TABLE: optimizers.RowWiseAdagrad(0.1)})
        ),
    ):
        model = model_on(on("batch=8", ("batch", None)), optimizer)
        model.train_on_batch([FIRST[:16], SECOND[:16]], Y[:16])
        np.testing.assert_allclose(model.get_weights()[0], trained(ByRow, EPOCH[:1])[0], rtol=2e-5, atol=2e-6)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("mesh", "axes"), LAYOUTS)
def test_compiled_step_holds_table_and_slots_and_no_other_array_of_their_size(mesh, axes):
    model = model_on(on(mesh, axes), "adam", count=2**16)
    source = ArraySource((FIRST[:16], SECOND[:16]), Y[:16])
    compiled = model._built.step_runner.lower(source).compile()
    row = model.layout_plan.row(TABLE)
    memory = compiled.memory_analysis()
    assert memory.temp_size_in_bytes < row.nbytes_per_device / 4
    assert memory.alias_size_in_bytes > 3 * row.nbytes_per_device
    sizes = re.findall(r"= f32\[(\d+),\d+\]\S* (?:all-gather|all-reduce|copy)\(", compiled.as_text())
    assert all(int(size) < 512 for size in sizes)


def plan_of(optimizer, rowwise):
    def factory():
        model = kd.Sequential(
            [kd.Input((26,), dtype="int32"), layers.Embedding(100_000_000, 32, name="item"), layers.Dense(1)]
        )
        model.compile(optimizer, "mse", rowwise=rowwise)
        return model

    shapes = jax.ShapeDtypeStruct((4096, 26), "int32"), jax.ShapeDtypeStruct((4096, 26, 1), "float32")
    return kd.plan(factory, shapes, on("batch=8", ("batch", None)))


def test_plan_of_100m_rows_has_no_dense_gradient():
    table = 100_000_000 * 32 * 4 // 8
    dense = plan_of("adam", None)
    assert dense.step.activation_nbytes > table
    lazy, by_rows = plan_of("adam", TABLE), plan_of("rowwiseadagrad", TABLE)
    for report in (lazy, by_rows):
        assert report.step.activation_nbytes < table / 10
        assert report.nbytes_by_role["parameter"] == pytest.approx(table, rel=1e-3)
    assert lazy.nbytes_by_role["slot"] == pytest.approx(2 * table, rel=1e-3)
    assert by_rows.nbytes_by_role["slot"] == pytest.approx(table / 32, rel=1e-3)


@pytest.mark.slow
def test_any_number_of_lookups_trains_as_the_dense_step():
    def made(rowwise):
        with on("data=2,model=4", ("model", None)).scope():
            inputs = kd.Input((3,), dtype="int32")
            table = kd.layers.Embedding(48, 4, name="item", embeddings_initializer="uniform")
            model = kd.Model(inputs, kd.layers.Dense(1, name="head")(kd.layers.Flatten()(table(inputs))))
        model.compile(kd.optimizers.SGD(0.1), "mse", rowwise=rowwise)
        return model

    ids = np.random.default_rng(0).integers(0, 48, (37, 3)).astype("int32")  # the last batch has 5 x 3 lookups
    found = []
    for rowwise in (None, TABLE):
        kd.set_random_seed(0)
        model = made(rowwise)
        model.fit(ids, np.ones((37, 1), "float32"), batch_size=16, shuffle=False, verbose=0)
        found.append(model.get_weights())
    for dense, by_rows in zip(*found, strict=True):
        np.testing.assert_allclose(by_rows, dense, rtol=1e-5, atol=1e-6)
