"""Muon on one device. References: optax, Keras's rule, and the formulas of the papers, in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers, optimizers
from keras_dist.errors import ModelError
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, ExpertsConfig, FeedForwardConfig

SHAPES = {"tall": (12, 5), "wide": (4, 9), "square": (6, 6)}


def draws(seed, count, shapes=SHAPES):
    rng = np.random.default_rng(seed)
    return [{name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()} for _ in range(count)]


def steps_of(transformation, weights, grads):
    state = transformation.init(weights)
    for each in grads:
        updates, state = transformation.update(each, state, weights)
        weights = optax.apply_updates(weights, updates)
    return weights


@pytest.mark.parametrize("nesterov", [False, True])
def test_it_takes_the_steps_of_optax(nesterov):
    weights, *grads = draws(0, 6)
    mine = optimizers.Muon(0.1, weight_decay=None, rms_rate=0.2, nesterov=nesterov)
    dims = jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(), weights)
    orthogonal = optax.contrib.scale_by_muon(beta=0.0, nesterov=False, weight_dimension_numbers=dims)
    scaled = optax.stateless(lambda steps, _: jax.tree.map(lambda step: step * 0.2 * max(step.shape) ** 0.5, steps))
    theirs = optax.chain(optax.trace(0.95, nesterov), orthogonal, scaled, optax.scale(-0.1))
    found, expected = (steps_of(each, weights, grads) for each in (mine, theirs))
    for name in SHAPES:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-6)


def test_it_takes_the_steps_of_muon_of_optax():
    weights, *grads = draws(1, 8)
    mine = optimizers.Muon(0.1, weight_decay=None, rms_rate=0.2, nesterov=False)
    theirs = optax.contrib.muon(0.1, nesterov=False, consistent_rms=0.2)
    found, expected = (steps_of(each, weights, grads) for each in (mine, theirs))
    for name in SHAPES:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-6)


def newton_schulz(matrix, triples, norm=1.0):
    """The loop of the papers: Moonlight (arXiv:2502.16982), Polar Express (arXiv:2505.16932, algorithm 1)."""
    x = np.asarray(matrix, "float64")
    x = x.T if x.shape[0] > x.shape[1] else x
    x = x / (np.linalg.norm(x) * norm + 1e-7)
    for a, b, c in triples:
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def published_polar_express(count):
    table = [
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
        (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
        (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
        (1.875, -1.25, 0.375),
    ]
    safe = [(a / 1.01, b / 1.01**3, c / 1.01**5) for a, b, c in table[:-1]] + table[-1:]
    return (safe + [table[-1]] * count)[:count]


@pytest.mark.parametrize("count", [3, 5, 10])
@pytest.mark.parametrize("name", SHAPES)
def test_a_first_step_is_the_published_one(name, count):
    (gradient,) = draws(2, 1, {name: SHAPES[name]})
    matrix, zeros = gradient[name], {name: np.zeros(SHAPES[name], "float32")}
    scale = 0.2 * max(matrix.shape) ** 0.5
    moonlight = [(3.4445, -4.7750, 2.0315)] * count
    for argument, triples, norm in ((None, moonlight, 1), ("polar_express", published_polar_express(count), 1.01)):
        mine = optimizers.Muon(1.0, weight_decay=None, ns_steps=count, coefficients=argument)
        found = steps_of(mine, zeros, [gradient])[name]
        np.testing.assert_allclose(found, -scale * newton_schulz(matrix, triples, norm), atol=2e-5)


def test_polar_express_nearly_makes_singular_values_one():
    (gradient,) = draws(3, 1, {"m": (32, 48)})
    mine = optimizers.Muon(1.0, weight_decay=None, rms_rate=None, ns_steps=9, coefficients="polar_express")
    found = steps_of(mine, {"m": np.zeros((32, 48), "float32")}, [gradient])["m"]
    np.testing.assert_allclose(np.linalg.svd(found, compute_uv=False), 1, atol=1e-3)


def test_steps_by_neuron_are_the_published_ones():
    """NorMuon (arXiv:2510.05491): rows are neurons there, columns here; the norm of the matrix is kept."""
    weights, *grads = draws(4, 4, {"m": (7, 5)})
    mine = optimizers.Muon(0.1, weight_decay=None, momentum=0.0, nesterov=False, neuron_beta=0.9)
    expected, square = np.float64(weights["m"]), np.zeros((1, 5))
    for each in grads:
        step = newton_schulz(each["m"], [(3.4445, -4.7750, 2.0315)] * 5)
        square = 0.9 * square + 0.1 * np.mean(step**2, 0, keepdims=True)
        divided = step / (np.sqrt(square) + 1e-10)
        expected -= 0.1 * 0.2 * 7**0.5 * divided * np.linalg.norm(step) / np.linalg.norm(divided)
    np.testing.assert_allclose(steps_of(mine, weights, grads)["m"], expected, atol=5e-6)


def test_bfloat16_changes_little_and_keeps_the_dtype():
    weights, *grads = draws(5, 3)
    found, exact = (
        steps_of(optimizers.Muon(0.1, weight_decay=None, ns_dtype=dtype), weights, grads)
        for dtype in ("bfloat16", None)
    )
    for name in SHAPES:
        assert found[name].dtype == np.float32
        difference = np.abs(found[name] - exact[name]).max()
        assert 0 < difference < 0.02, difference


def kinds(model):
    return {
        variable.path: model.optimizer.kind_of(variable.path, variable.shape) for variable in model.trainable_variables
    }


def matrices(model):
    return {path: kind.removeprefix("muon ") for path, kind in kinds(model).items() if kind != "adam"}


def compiled(model, **arguments):
    model.compile(optimizers.Muon(0.01, **arguments), "mse")
    return model


def test_kernels_are_matrices_and_biases_norms_and_embeddings_are_not():
    tokens = kd.Input((5,), dtype="int32")
    x = layers.Embedding(32, 16, name="tokens")(tokens)
    x = layers.MultiHeadAttention(4, 3, name="attention")(x, x)
    x = layers.EinsumDense("btd,dnh->btnh", (None, 4, 8), bias_axes="nh", name="heads")(x)
    x = layers.LayerNormalization(axis=(-2, -1))(x)
    x = layers.Reshape((5, 4, 8))(layers.PReLU()(x))
    x = layers.Conv2D(6, (3, 2), name="convolution")(x)
    x = layers.DepthwiseConv2D((1, 2), name="depthwise")(x)
    x = layers.SeparableConv2D(10, (2, 2), name="separable")(x)
    model = compiled(kd.Model(tokens, layers.Dense(3, name="dense")(layers.Flatten()(x))))
    assert matrices(model) == {
        "attention/query/kernel": "(16 x 12)",
        "attention/key/kernel": "(16 x 12)",
        "attention/value/kernel": "(16 x 12)",
        "attention/attention_output/kernel": "(12 x 16)",
        "heads/kernel": "(16 x 32)",
        "convolution/kernel": "(48 x 6)",
        "separable/pointwise_kernel": "(6 x 10)",
        "dense/kernel": "(20 x 3)",
    }


def test_keras_with_dense_layers_has_the_same_matrices():
    """Keras's `_should_use_adamw`: other than two dims, or `embedding` in the path."""
    model = kd.Sequential([kd.Input((4,)), layers.Dense(8, name="embedding_of"), layers.Dense(2, name="head")])
    found = kinds(compiled(model))
    for variable in model.trainable_variables:
        is_adams = len(variable.shape) != 2 or "embedding" in variable.path
        assert (found[variable.path] == "adam") == is_adams, variable.path


def decoder(scan, tied, experts):
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "tied_head": tied}
    attention = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=8, use_bias=True)
    chosen = ExpertsConfig(num_experts=4) if experts else None
    feed_forward = FeedForwardConfig(size=64)
    config = DecoderConfig(family="llama", **sizes, attention=attention, feed_forward=feed_forward, experts=chosen)
    return Decoder(config, scan=scan)


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("scan", [False, True])
def test_decoders_have_no_other_matrices_than_those_of_their_blocks(scan, tied, experts):
    found = matrices(compiled(decoder(scan, tied, experts)))
    feed_forward = [f"experts_{name}" if experts else f"{name}/kernel" for name in ("gate", "up", "down")]
    names = [f"attention/{name}/kernel" for name in ("query", "key", "value", "output")]
    names += [f"feed_forward/{name}" for name in feed_forward]
    places = ["layers"] if scan else ["layers/0", "layers/1"]
    assert {*found} == {f"{place}/{name}" for place in places for name in names}
    assert {*found.values()} == {"(32 x 32)", "(32 x 16)", "(32 x 64)", "(64 x 32)"}


class Foreign(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(8, 6, rngs=rngs)
        self.einsum = nnx.Einsum("bi,ihd->bhd", (6, 2, 4), (2, 4), rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, qkv_features=8, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.table = nnx.Param(np.ones((8, 3), "float32"))

    def __call__(self, x):
        x = self.einsum(self.linear(x)).reshape(-1, 1, 8)
        return self.norm(self.attention(x))[:, 0] @ self.table[...]


def test_matrices_of_foreign_modules_are_known_from_their_class():
    model = compiled(kd.Model.from_nnx(Foreign(nnx.Rngs(0))))
    model.fit(np.ones((8, 8), "float32"), np.ones((8, 3), "float32"), verbose=0)
    plan = {
        row.path: row.shape for row in model.plan(np.ones((8, 8), "float32"), np.ones((8, 3), "float32")).state.rows
    }
    found = {path: kind for path in plan if (kind := model.optimizer.kind_of(path, plan[path])) != "adam"}
    trained = {path.removeprefix("slots/") for path in found}
    assert trained >= {"linear/kernel", "einsum/kernel", "attention/query/kernel", "attention/out/kernel", "table"}
    assert not {path for path in trained if path.endswith(("bias", "scale"))}
    assert found["einsum/kernel"] == "muon (6 x 8)"
    assert found["attention/out/kernel"] == "muon (8 x 8)"


def test_patterns_exclude_and_include():
    model = compiled(decoder(False, False, False), exclude=["attention/(key|value)"], include=["head/kernel"])
    found = matrices(model)
    assert found["head/kernel"] == "(32 x 64)"
    assert "layers/0/attention/key/kernel" not in found
    assert "layers/0/attention/query/kernel" in found


def test_a_weight_of_unknown_dims_cannot_be_included():
    model = kd.Sequential([kd.Input((4,)), layers.Dense(4, name="dense")])
    with pytest.raises(ModelError, match=r"(?s)`include` matches 'dense/bias', whose inputs.*choose kernels alone"):
        model.compile(optimizers.Muon(0.01, include=["bias"]), "mse")
        model.fit(np.ones((8, 4)), np.ones((8, 4)), verbose=0)


@pytest.mark.parametrize("given", ["polar", [], [(1, 2)], [(1, 2, float("nan"))], 3.0, ["abc"]])
def test_coefficients_are_checked(given):
    with pytest.raises(kd.errors.ModelError, match="`coefficients` must be three numbers for each step"):
        optimizers.Muon(coefficients=given)


@pytest.mark.parametrize("given", ["int8", "bf16", "float16", 3])
def test_dtypes_of_steps_are_checked(given):
    with pytest.raises(kd.errors.ModelError, match="`ns_dtype` must be one of"):
        optimizers.Muon(ns_dtype=given)


def test_all_arguments_are_in_its_config():
    given = {
        "exclude": ["a"],
        "include": ["b"],
        "coefficients": "polar_express",
        "ns_dtype": "bfloat16",
        "neuron_beta": 0.9,
    }
    again = optimizers.deserialize(optimizers.serialize(optimizers.Muon(0.1, **given)))
    assert {name: again.get_config()[name] for name in given} == given


def test_devices_without_a_mesh_compute_weight_by_weight():
    """A pure step on sharded arrays, as users write it, has no layouts: XLA places the work."""
    weights, *grads = draws(6, 2)
    mine = optimizers.Muon(0.1, weight_decay=None)
    found = jax.jit(lambda weights, grads: steps_of(mine, weights, grads))(weights, grads)
    for name, value in steps_of(mine, weights, grads).items():
        np.testing.assert_allclose(found[name], value, atol=1e-6)


def test_the_summary_and_the_plan_show_who_gets_what():
    model = kd.Sequential([kd.Input((8,)), layers.Dense(8, name="d1"), layers.Dense(2, name="d2")])
    compiled(model, exclude=["d2"])
    texts = []
    model.summary(optimizer=True, print_fn=texts.append)
    lines = {
        line.split()[0]: line.split("│")[-1].strip()
        for line in texts[0].partition("Updates of")[2].splitlines()
        if "/" in line
    }
    assert lines == {"d1/kernel": "muon (8 x 8)", "d1/bias": "adam", "d2/kernel": "adam", "d2/bias": "adam"}
    plan = model.plan(np.ones((8, 8), "float32"), np.ones((8, 2), "float32"))
    assert "optimizer: muon (8 x 8): d1/kernel" in str(plan)
    assert "optimizer: adam: d1/bias and 2 more" in str(plan)


def test_a_summary_of_updates_needs_an_optimizer():
    with pytest.raises(kd.errors.ModelError, match="compile"):
        kd.Sequential([kd.Input((8,)), layers.Dense(8)]).summary(optimizer=True)


@pytest.mark.parametrize("name", ["rms_rate", "muon_a", "muon_b", "muon_c", "adam_lr_ratio"])
@pytest.mark.parametrize("value", ["x", math.nan, math.inf, [1.0]])
def test_numbers_are_checked(name, value):
    with pytest.raises(ModelError, match=f"`{name}` must be a finite number"):
        optimizers.Muon(**{name: value})


@pytest.mark.parametrize("name", ["rms_rate", "adam_lr_ratio"])
def test_factors_of_steps_are_not_negative(name):
    with pytest.raises(ModelError, match=f"`{name}` must be .* at least 0"):
        optimizers.Muon(**{name: -1.0})


def test_coefficients_may_be_an_array():
    weights = {"w": jnp.ones((4, 4)) + jnp.eye(4)}
    steps = []
    for given in (np.array([(3.4445, -4.775, 2.0315)]), [(3.4445, -4.775, 2.0315)]):
        optimizer = optimizers.Muon(1.0, coefficients=given)
        steps.append(optimizer.update(weights, optimizer.init(weights), weights)[0]["w"])
    np.testing.assert_array_equal(*steps)
