"""`loss="causal_lm"` in `fit`: the per-token mean of an update on every mesh, and programs without logits."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers, losses
from tests.training.collectives import collectives_in

ROWS, LENGTH, FEATURES, SIZE = 11, 5, 8, 64
RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.integers(0, SIZE, (ROWS, LENGTH)).astype("int32")
WEIGHTS = RANDOM.uniform(0, 2, (ROWS, LENGTH)).astype("f4") * (RANDOM.uniform(size=(ROWS, LENGTH)) > 0.3)
ARRAYS = {
    "embeddings": RANDOM.normal(size=(SIZE, FEATURES)).astype("f4"),
    "middle": RANDOM.normal(size=(FEATURES, FEATURES)).astype("f4"),
    "head": RANDOM.normal(size=(FEATURES, SIZE)).astype("f4"),
}
BATCH = 4  # three batches, the last one of 3 rows


def on(mesh, is_tied=False):
    if mesh == "fully sharded":
        return kd.FullySharded(kd.DeviceMesh("data=8"))
    sizes = {"data": 1} if mesh == "data=1" else mesh
    device_mesh = kd.DeviceMesh(sizes, devices=jax.devices()[:1] if mesh == "data=1" else None)
    rules = kd.LayoutMap(device_mesh)
    if "model" in mesh:
        rules["tokens/embeddings"] = ("model", None)
        if not is_tied:
            rules["head/kernel"] = (None, "model")
    return kd.ModelParallel(rules, batch_dim_name="data")


def network(is_tied, size=SIZE, rank=FEATURES, **options):
    inputs = kd.Input((LENGTH,), dtype="int32")
    embedding = layers.ReversibleEmbedding if is_tied else layers.Embedding
    tokens = embedding(size, rank, name="tokens", **options)
    hidden = layers.Dense(rank, "tanh", use_bias=False, name="middle")(tokens(inputs))
    return kd.Model(inputs, tokens(hidden, reverse=True) if is_tied else head(size)(hidden))


def head(size):
    return layers.Dense(size, use_bias=False, name="head")


def by_hand(arrays, tokens=TOKENS, weights=WEIGHTS):
    kernel = arrays["head"] if "head" in arrays else arrays["embeddings"].T
    logits = jnp.tanh(arrays["embeddings"][tokens] @ arrays["middle"]) @ kernel
    logs = jax.nn.log_softmax(logits)[:, :-1]
    values = -jnp.take_along_axis(logs, tokens[:, 1:, None], axis=-1)[..., 0]
    return (values * weights[:, 1:]).sum() / weights[:, 1:].sum()


@functools.cache
def expected(is_tied):
    """The loss of the only update of an epoch, the weights after it, and the loss then."""
    arrays = {name: jnp.asarray(value) for name, value in ARRAYS.items() if not (is_tied and name == "head")}
    value, gradients = jax.jit(jax.value_and_grad(by_hand))(arrays)
    after = jax.tree.map(lambda weight, gradient: weight - 0.5 * gradient, arrays, gradients)
    return value, [after[name] for name in arrays], by_hand(after)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("mesh", "is_tied", "chunk_size"),
    [("data=2,model=4", False, 3), ("fully sharded", False, 3), ("data=2,model=4", True, 3), ("data=8", True, SIZE)],
)
def test_the_mean_is_per_token_over_all_batches_of_an_update(mesh, is_tied, chunk_size):
    with on(mesh, is_tied).scope():
        model = network(is_tied)
    model.set_weights([ARRAYS[name] for name in ("embeddings", "middle", "head")[: 2 if is_tied else 3]])
    optimizer = kd.optimizers.SGD(0.5, gradient_accumulation_steps=3)
    model.compile(optimizer, losses.CausalLM(chunk_size=chunk_size))
    options = {"batch_size": BATCH, "sample_weight": WEIGHTS, "verbose": 0}
    history = model.fit(TOKENS, TOKENS, shuffle=False, **options)
    value, weights, value_after = expected(is_tied)
    np.testing.assert_allclose(history.history["loss"], [value], rtol=1e-6)
    for found, other in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(model.evaluate(TOKENS, TOKENS, **options), value_after, rtol=1e-6)


LARGE, BATCH_OF_LARGE = 4096, 8


def lowered(distribution, chunk_size=64, is_tied=False, **options):
    with distribution.scope():
        model = network(is_tied, LARGE)
    model.compile("sgd", losses.CausalLM(chunk_size=chunk_size), **options)
    tokens = np.zeros((BATCH_OF_LARGE, LENGTH), "int32")
    return model.lower_train_step(tokens, tokens, np.ones(tokens.shape, "f4"))


def has_logits(program, shape=(BATCH_OF_LARGE, LENGTH, LARGE)):
    return re.search(rf"[<\[]{'[x,]'.join(map(str, shape))}[x\]]", program) is not None


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "dense"])
def test_logits_of_a_sharded_vocabulary_are_neither_stored_nor_gathered(is_tied):
    step = lowered(on("data=2,model=4", is_tied), is_tied=is_tied).compile()
    of_a_device = (BATCH_OF_LARGE // 2, LENGTH, LARGE // 4)
    assert not has_logits(step.as_text(), of_a_device)
    largest = max(BATCH_OF_LARGE * LENGTH * FEATURES, LARGE // 4 * FEATURES)  # hidden values; a shard of the gradient
    for kind, shapes in collectives_in(step):
        assert kind == "all-reduce", kind
        assert all(np.prod(shape) <= largest for shape in shapes)
    logits = lowered(on("data=2,model=4", is_tied), chunk_size=LARGE, is_tied=is_tied).compile()
    assert has_logits(logits.as_text(), of_a_device)  # the test reads programs rightly


def test_metrics_that_read_the_logits_let_the_loss_read_them():
    step = lowered(on("data=1"), metrics=[kd.metrics.SparseCategoricalAccuracy()]).as_text()
    assert step.count("stablehlo.while") == lowered(on("data=1"), chunk_size=LARGE).as_text().count("stablehlo.while")
    assert has_logits(step)


def test_recomputation_of_the_whole_model_keeps_the_chunks():
    assert not has_logits(lowered(on("data=1"), remat="full").as_text())


def test_rules_for_the_logits_keep_the_chunks():
    distribution = on("data=2,model=4")
    distribution.layout_map["head/output"] = ("data", None, "model")
    assert not has_logits(lowered(distribution).compile().as_text(), (BATCH_OF_LARGE // 2, LENGTH, LARGE // 4))


@pytest.mark.slow
def test_rules_for_the_output_of_a_layer_keep_its_mask():
    distribution = on("data=2,model=4")
    distribution.layout_map["tokens/output"] = ("data", None, "model")
    tokens = np.where(np.arange(LENGTH) < 3, TOKENS[:8], 0)
    found = []
    for place in (on("data=1"), distribution):
        with place.scope():
            model = network(is_tied=False, mask_zero=True)
        model.set_weights([ARRAYS[name] for name in ("embeddings", "middle", "head")])
        model.compile("sgd", losses.CausalLM(ignore_class=None))
        found.append(model.evaluate(tokens, tokens, verbose=0))
    weights = (tokens != 0).astype("f4")
    np.testing.assert_allclose(found, [by_hand(ARRAYS, tokens, weights)] * 2, rtol=1e-6)


@pytest.mark.slow
def test_metrics_get_tokens_beside_the_logits_that_predict_them():
    with on("data=2,model=4").scope():
        model = network(False)
    perplexity = kd.metrics.Perplexity(from_logits=True, name="perplexity")
    model.compile("sgd", "causal_lm", weighted_metrics=["accuracy", perplexity])
    found = model.evaluate(TOKENS, TOKENS, sample_weight=WEIGHTS, batch_size=BATCH, verbose=0, return_dict=True)
    logits = np.asarray(model.predict(TOKENS, verbose=0))[:, :-1]
    weights, right = WEIGHTS[:, 1:], logits.argmax(-1) == TOKENS[:, 1:]
    np.testing.assert_allclose(found["accuracy"], (weights * right).sum() / weights.sum(), rtol=1e-6)
    np.testing.assert_allclose(found["perplexity"], np.exp(found["loss"]), rtol=1e-5)


def test_a_batch_without_weights_does_not_end_the_training():
    with on("data=8").scope():
        model = network(False)
    model.compile("sgd", "causal_lm")
    weights = np.concatenate([np.zeros_like(WEIGHTS[:8]), WEIGHTS[:8]])
    tokens = np.concatenate([TOKENS[:8], TOKENS[:8]])
    options = {"batch_size": 8, "shuffle": False, "verbose": 0, "callbacks": [kd.callbacks.TerminateOnNaN()]}
    history = model.fit(tokens, tokens, sample_weight=weights, epochs=2, **options)
    assert len(history.epoch) == 2 and np.isfinite(history.history["loss"]).all()
    assert model.evaluate(TOKENS, TOKENS, sample_weight=0 * WEIGHTS, verbose=0) == 0
