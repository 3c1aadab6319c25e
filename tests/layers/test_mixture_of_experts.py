"""Mixtures of experts route, weigh and drop as a loop over tokens does, and give equal results on every mesh."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError
from keras_dist.planner import dim_classes
from tests.training.collectives import nbytes_by_axes

ROWS, TOKENS, FEATURES, UNITS, EXPERTS = 8, 12, 6, 10, 4
MESH = "data=2,expert=4"
RNG = np.random.default_rng(0)
X, Y = (RNG.normal(size=(ROWS, TOKENS, FEATURES)).astype("float32") for _ in range(2))
MASK = RNG.random((ROWS, TOKENS)) < 0.7


def silu(x):
    return x / (1 + np.exp(-x))


def network(x, weights, name, expert=...):
    gate, up, down = (weights.get(f"{name}_{part}") for part in ("gate", "up", "down"))
    hidden = x @ up[expert]
    hidden = silu(hidden) if gate is None else silu(x @ gate[expert]) * hidden
    return hidden @ down[expert]


def by_loops(x, weights, top_k, capacity_factor, normalize, mask):
    """Outputs, counts of choices and of dropped ones, and the two losses, one token after the other."""
    count = weights["router"].shape[1]
    capacity = math.inf if capacity_factor is None else math.ceil(capacity_factor * top_k * TOKENS / count)
    outputs, routed, dropped = np.zeros_like(x), np.zeros(count, int), np.zeros(count, int)
    shares, squares = np.zeros(count), 0.0
    for row in range(len(x)):
        logits = x[row] @ weights["router"]
        probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        used = np.zeros(count, int)
        for rank in range(top_k):
            for token in np.flatnonzero(mask[row]):
                best = np.argsort(-probabilities[token])[:top_k]
                weight = probabilities[token, best[rank]] / (probabilities[token, best].sum() if normalize else 1)
                routed[best[rank]] += 1
                if used[best[rank]] == capacity:
                    dropped[best[rank]] += 1
                else:
                    used[best[rank]] += 1
                    outputs[row, token] += weight * network(x[row, token], weights, "experts", best[rank])
        shares += probabilities[mask[row]].sum(0)
        squares += (np.log(np.exp(logits).sum(-1)) ** 2)[mask[row]].sum()
    if "shared_up" in weights:
        outputs += network(x, weights, "shared")
    fractions = routed / routed.sum()
    return outputs, routed, dropped, count * (fractions * shares).sum() / mask.sum(), squares / mask.sum()


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "options",
    [
        {"capacity_factor": 1.0},
        {"top_k": 3, "shared_experts": 2},
        {"top_k": 1, "capacity_factor": 0.5, "gated": False, "normalize": False},
    ],
    ids=["top 2", "dropless, shared", "top 1 without gate"],
)
def test_it_computes_what_a_loop_over_tokens_does(options):
    layer = layers.MixtureOfExperts(EXPERTS, UNITS, load_balancing=0.5, z_loss=0.25, name="moe", **options)
    is_masked = "top_k" not in options
    outputs = layer(X, mask=MASK if is_masked else None, training=True)
    weights = {weight.name: weight.numpy().astype("float64") for weight in layer.weights}
    mask = MASK if is_masked else np.ones_like(MASK)
    settings = (layer.top_k, layer.capacity_factor, layer.normalize, mask)
    expected, routed, dropped, balance, squares = by_loops(X.astype("float64"), weights, *settings)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    np.testing.assert_array_equal(layer.routed.numpy(), routed)
    np.testing.assert_array_equal(layer.dropped.numpy(), dropped)
    assert (dropped.sum() > 0) == (layer.capacity_factor is not None)
    np.testing.assert_allclose(layer.losses, [0.5 * balance, 0.25 * squares], rtol=1e-5)


def test_each_expert_is_drawn_as_a_matrix():
    layer = layers.MixtureOfExperts(64, 32)
    layer.build((None, 4, 16))
    assert 0.9 < np.abs(layer.experts_up.numpy()).max() / math.sqrt(6 / (16 + 32)) <= 1


def one_device():
    return kd.DataParallel(kd.DeviceMesh("data=1", devices=kd.list_devices()[:1]))


def model_on(distribution, **options):
    kd.utils.set_random_seed(0)
    with distribution.scope():
        model = kd.Sequential(
            [
                kd.Input((TOKENS, FEATURES)),
                layers.Dense(FEATURES, name="before"),
                layers.MixtureOfExperts(EXPERTS, UNITS, z_loss=0.01, name="moe", **options),
            ]
        )
    model.compile(kd.optimizers.SGD(0.1), "mse")
    return model


PRESETS = {
    "experts": lambda: kd.presets.experts(kd.DeviceMesh(MESH)),
    "fully sharded": lambda: kd.presets.experts(kd.DeviceMesh(MESH), fully_sharded=True),
    "experts, batch and full sharding over one axis": lambda: kd.presets.experts(
        kd.DeviceMesh("expert=4", devices=kd.list_devices()[:4]), fully_sharded=True
    ),
}


@pytest.mark.slow
def test_fit_is_equal_on_every_mesh_and_to_gradients_by_hand():
    one = model_on(one_device(), capacity_factor=1.0)
    before = one.get_weights()
    logs = one.fit(X, Y, batch_size=ROWS, epochs=2, verbose=0, shuffle=False).history["loss"]
    assert one.layers[-1].dropped.numpy().sum() > 0
    for make in PRESETS.values():
        model = model_on(make(), capacity_factor=1.0)
        for found, expected in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(
            model.fit(X, Y, batch_size=ROWS, epochs=2, verbose=0, shuffle=False).history["loss"], logs, rtol=1e-6
        )
        for found, expected in zip(model.get_weights(), one.get_weights(), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-6)


def test_gradients_are_those_of_every_expert_computed_for_every_token():
    model = model_on(PRESETS["experts"](), load_balancing=0.0)
    names = [weight.path for weight in model.trainable_weights]
    before = dict(zip(names, (weight.numpy() for weight in model.trainable_weights), strict=True))

    def loss(weights):
        x = X @ weights["before/kernel"] + weights["before/bias"]
        logits = x @ weights["moe/router"]
        weight, chosen = jax.lax.top_k(jax.nn.softmax(logits), 2)
        gate, up = (jnp.einsum("gtd,edf->gtef", x, weights[f"moe/experts_{part}"]) for part in ("gate", "up"))
        each = jnp.einsum("gtef,efd->gted", jax.nn.silu(gate) * up, weights["moe/experts_down"])
        each = jnp.take_along_axis(each, chosen[..., None], 2)
        outputs = jnp.einsum("gtk,gtkd->gtd", weight / weight.sum(-1, keepdims=True), each)
        return jnp.mean((outputs - Y) ** 2) + 0.01 * jnp.mean(jax.nn.logsumexp(logits, -1) ** 2)

    value, grads = jax.value_and_grad(loss)(before)
    np.testing.assert_allclose(model.train_on_batch(X, Y), value, rtol=1e-6)
    for weight in model.trainable_weights:
        np.testing.assert_allclose(weight.numpy(), before[weight.path] - 0.1 * grads[weight.path], atol=1e-6)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("preset", PRESETS)
def test_experts_stay_and_tokens_are_exchanged(preset):
    distribution = PRESETS[preset]()
    model = model_on(distribution, capacity_factor=1.0)
    report = model.plan(X, Y)
    assert not report.problems
    assert report.kernels == ("4 experts over expert, with 6 slots of each for the 12 tokens of a row",)
    exchanges = [each for each in report.step.collectives if each.kind == "all_to_all"]
    assert [each.axes for each in exchanges] == [("expert",)] * 4  # forth and back, in both passes
    capacity, rows = math.ceil(2 * TOKENS / EXPERTS), ROWS // distribution.device_mesh.size
    assert {each.nbytes for each in exchanges} == {4 * rows * EXPERTS * capacity * FEATURES}
    gathers = [each for each in report.step.collectives if each.kind == "all_gather" and "experts_" in each.weight]
    assert {each.axes for each in gathers} <= {("data",)}
    assert bool(gathers) == (preset == "fully sharded")
    compiled = nbytes_by_axes(model.lower_train_step(X, Y).compile(), distribution.device_mesh.axis_sizes)
    assert compiled["all_to_all", ("expert",)] == sum(each.nbytes for each in exchanges)
    expected = {(each.kind, each.axes) for each in report.step.collectives if each.kind == "all_gather"}
    assert {key for key in compiled if key[0] == "all_gather"} <= expected  # XLA adds none
    assert compiled.get(("all_gather", ("expert",)), 0) <= 4 * FEATURES * (EXPERTS + FEATURES)  # the other weights


@pytest.mark.slow
@pytest.mark.parametrize("is_fully_sharded", [False, True])
def test_a_trillion_parameters_whose_experts_also_shard_the_batch_are_not_gathered(is_fully_sharded):
    mesh = kd.DeviceMesh("data=8,expert=128", devices=[f"tpu:{number}" for number in range(1024)])

    def factory():
        block = layers.MixtureOfExperts(384, 2048, top_k=8, capacity_factor=1.25, name="moe")
        return kd.Sequential([kd.Input((4096, 7168)), layers.Stack(block, 61, name="stack")])

    x, distribution = (
        jax.ShapeDtypeStruct((1024, 4096, 7168), "float32"),
        kd.presets.experts(mesh, fully_sharded=is_fully_sharded),
    )
    report = kd.plan(factory, (x, x), distribution, "sgd", "mse")
    experts = 61 * 384 * 3 * 2048 * 7168
    assert sum(row.nbytes for row in report.state.rows if "experts_" in row.path) == 4 * experts > 4e12
    gathers = {each.axes: 0 for each in report.step.collectives if each.kind == "all_gather"}
    for each in report.step.collectives:
        if each.kind == "all_gather":
            gathers[each.axes] += each.nbytes_per_step
    own = 2 * experts // 128  # in bfloat16, forward and backward, of the experts of a device alone
    assert gathers.get(("data",), 0) == (2 * own if is_fully_sharded else 0)
    assert sum(gathers.values()) - gathers.get(("data",), 0) < 2 * 2**30, "routers"
    assert not report.problems


@pytest.mark.slow
def test_a_rule_of_the_layer_and_classes_of_dims():
    mesh = kd.DeviceMesh(MESH)
    by_layer = model_on(
        kd.ModelParallel(kd.LayoutMap(mesh), ("data", "expert")), kernel_layout=("expert", None, None)
    ).plan(X, Y)
    assert by_layer.step.nbytes_by_axes() == model_on(PRESETS["experts"]()).plan(X, Y).step.nbytes_by_axes()
    found = dim_classes(lambda: model_on(one_device()), (X, Y))
    assert {*found["experts"].members} == {(f"moe/experts_{part}", 0) for part in ("gate", "up", "down")}
    assert found["experts"].size == EXPERTS and found["choices"].members == (("moe/router", 1),)
    tensor = kd.presets.tensor_parallel(lambda: model_on(one_device()), (X, Y), kd.DeviceMesh("data=4,model=2"))
    assert tensor.layout_map["moe/router"].axes[-1] is None


@pytest.mark.slow
def test_a_stack_of_experts():
    def stacked(distribution):
        kd.utils.set_random_seed(0)
        with distribution.scope():
            block = layers.MixtureOfExperts(EXPERTS, UNITS, capacity_factor=1.0, name="moe")
            model = kd.Sequential([kd.Input((TOKENS, FEATURES)), layers.Stack(block, 3)])
        model.compile(kd.optimizers.SGD(0.1), "mse")
        return model

    model, one = stacked(PRESETS["experts"]()), stacked(one_device())
    losses = [each.fit(X, Y, batch_size=ROWS, verbose=0).history["loss"] for each in (model, one)]
    np.testing.assert_allclose(*losses, rtol=1e-6)
    dropped = [weight.numpy() for each in (model, one) for weight in each.weights if weight.name == "dropped"]
    assert dropped[0].shape == (3, EXPERTS) and dropped[0].sum() > 0
    np.testing.assert_array_equal(*dropped)
    moved = model.plan(X, Y).step.nbytes_by_axes()
    assert ("all_to_all", ("expert",)) in moved and not any(kind == "all_gather" for kind, _ in moved)


@pytest.mark.slow
def test_a_partial_batch_and_evaluation():
    model, few = model_on(PRESETS["experts"](), capacity_factor=1.0), 5
    one = model_on(one_device(), capacity_factor=1.0)
    for each in (model, one):
        each.train_on_batch(X[:few], Y[:few])
        each.evaluate(X, Y, batch_size=ROWS, verbose=0)
    assert model.layers[-1].routed.numpy().sum() == 2 * few * TOKENS  # of the last training step
    np.testing.assert_array_equal(model.layers[-1].dropped.numpy(), one.layers[-1].dropped.numpy())
    np.testing.assert_allclose(model.predict(X[:few], verbose=0), one.predict(X[:few], verbose=0), atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"top_k": 5}, "(?s)`top_k`.*at most num_experts=4"),
        ({"capacity_factor": 0}, "(?s)`capacity_factor`.*above 0"),
        ({"shared_experts": -1}, "(?s)`shared_experts`.*at least 0"),
        ({"z_loss": -1.0}, "(?s)`z_loss`.*at least 0"),
    ],
)
def test_refused_arguments(arguments, said):
    with pytest.raises(ModelError, match=said):
        layers.MixtureOfExperts(EXPERTS, UNITS, **arguments)


def test_constraints_and_regularizers_see_one_expert():
    rules = {"kernel_constraint": "unit_norm", "kernel_regularizer": kd.regularizers.OrthogonalRegularizer(0.1)}
    model = kd.Sequential([kd.Input((6, 8)), layers.MixtureOfExperts(3, 5, **rules)])
    experts = model.layers[0]
    kernels = [np.asarray(each) for each in (experts.experts_gate, experts.experts_up, experts.experts_down)]
    penalties = [rules["kernel_regularizer"](one) for kernel in kernels for one in kernel]
    np.testing.assert_allclose(float(sum(penalties)), float(sum(model.losses)), rtol=1e-5)
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(4, 6, 8)).astype("float32")
    model.fit(x, x, verbose=0)
    np.testing.assert_allclose(np.linalg.norm(experts.experts_up, axis=1), 1, rtol=1e-5)
