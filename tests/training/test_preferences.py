"""`loss="dpo"` in `fit`, with adapters on every mesh, against a loop by hand in JAX; pairs stay together."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.data.preferences import PreferencePairs
from keras_dist.errors import DataError, ModelError
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig

COUNT, LENGTH, SIZE, BETA, RATE, BATCH, EPOCHS = 11, 16, 64, 0.1, 0.05, 4, 3
ATTENTION = AttentionConfig(num_heads=4, num_kv_heads=4, head_dim=4)
SIZES = {"vocab_size": SIZE, "hidden_size": 16, "num_layers": 2, "initializer_range": 0.5}
CONFIG = DecoderConfig(family="llama", **SIZES, attention=ATTENTION, feed_forward=FeedForwardConfig(16))
RANDOM = np.random.default_rng(0)


def answers():
    """Tokens of a row, of different lengths, and which are of the answer."""
    size = int(RANDOM.integers(6, LENGTH + 1))
    return RANDOM.integers(0, SIZE, size).astype("i4"), (np.arange(size) >= RANDOM.integers(1, 5)).astype("u1")


PAIRS = PreferencePairs([(answers(), answers()) for _ in range(COUNT)], LENGTH, 0)
PAIRS.reference[:] = RANDOM.normal(-60, 3, (COUNT, 2))
TOKENS, TARGETS = (
    np.stack([PAIRS[i][part][name] for i in range(COUNT)]) for part, name in ((0, "tokens"), (1, "targets"))
)


def on(mesh):
    if mesh == "data=1":
        return kd.DataParallel(devices=["cpu:0"])
    if mesh == "data=8":
        return kd.DataParallel()
    return kd.ModelParallel(kd.pretrained.rules(CONFIG, kd.DeviceMesh(mesh)), batch_dim_name="data")


def adapted(mesh):
    kd.set_random_seed(0)
    with on(mesh).scope():
        decoder = Decoder(CONFIG)
        decoder.build()
    decoder.enable_lora(rank=2, layers=".*/(query|value)|.*/down", alpha=4)
    return decoder


def margins(decoder, trainable, rest, tokens, targets, reference):
    """The margin of each pair by hand: rows are apart, and have no segments."""
    logits, _ = decoder.stateless_call(trainable, rest, tokens.reshape(-1, LENGTH))
    logs = jax.nn.log_softmax(logits[:, :-1]).reshape(len(tokens), 2, LENGTH - 1, SIZE)
    following = targets[..., 1:]
    each = jnp.take_along_axis(logs, jnp.maximum(following, 0)[..., None], axis=-1)[..., 0]
    rewards = BETA * (jnp.where(following >= 0, each, 0).sum(-1) - reference)
    return rewards[:, 0] - rewards[:, 1]


@functools.cache
def by_hand():
    """The loss of each step, with accumulation the loss of each epoch, then those over all pairs, and accuracies."""
    decoder = adapted("data=1")
    trainable, rest = (
        [weight.value for weight in kind] for kind in (decoder.trainable_weights, decoder.non_trainable_weights)
    )

    @jax.jit
    def step(trainable, *batch):
        def loss(trainable):
            margin = margins(decoder, trainable, rest, *batch)
            return jnp.mean(-jax.nn.log_sigmoid(margin)), margin

        (value, margin), gradients = jax.value_and_grad(loss, has_aux=True)(trainable)
        return value, margin, jax.tree.map(lambda weight, gradient: weight - RATE * gradient, trainable, gradients)

    losses, accuracies = [], []
    for _ in range(EPOCHS):
        found = []
        for start in range(0, COUNT, BATCH):
            batch = (each[start : start + BATCH] for each in (TOKENS, TARGETS, PAIRS.reference))
            value, margin, trainable = step(trainable, *batch)
            found.append((float(value), float((margin > 0).mean()), len(margin)))
        value, accuracy, rows = np.array(found).T
        losses.append((value * rows).sum() / COUNT)
        accuracies.append((accuracy * rows).sum() / COUNT)
    return losses, accuracies


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("mesh", ["data=2,model=4", "data=8", "data=1"])
def test_adapters_are_trained_as_by_a_loop_by_hand(mesh):
    decoder = adapted(mesh)
    decoder.compile(kd.optimizers.SGD(RATE), kd.losses.DPO(BETA))
    history = decoder.fit(PAIRS, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0).history
    losses, accuracies = by_hand()
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-5)
    np.testing.assert_allclose(history["reward_accuracy"], accuracies, rtol=1e-6)
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("mesh", ["data=2,model=4", "data=8"])
def test_pairs_stay_together_in_shuffled_and_accumulated_batches(mesh):
    """The accumulated gradient of an epoch does not depend on the order of pairs, nor on their batches."""
    found = []
    for place, options in (("data=1", {"batch_size": COUNT}), (mesh, {"batch_size": BATCH, "shuffle": True})):
        decoder = adapted(place)
        steps = -(-COUNT // options["batch_size"])
        optimizer = kd.optimizers.SGD(RATE, gradient_accumulation_steps=steps if steps > 1 else None)
        decoder.compile(optimizer, kd.losses.DPO(BETA))
        losses = decoder.fit(PAIRS, epochs=2, verbose=0, **options).history["loss"]
        found.append([*losses, decoder.evaluate(PAIRS, batch_size=3, verbose=0, return_dict=True)["loss"]])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
    assert found[0][-1] < found[0][0]


def test_the_logits_of_a_large_vocabulary_are_not_stored():
    found = []
    for chunk_size in (16, SIZE):
        decoder = adapted("data=8")
        decoder.compile("sgd", kd.losses.DPO(BETA, chunk_size=chunk_size), report=["tokens_per_second"])
        batch = jax.tree.map(lambda *rows: np.stack(rows), *(PAIRS[number] for number in range(8)))
        step = decoder.lower_train_step(*batch).as_text()
        found.append((f"x2x{LENGTH}x{SIZE}x" in step, decoder.evaluate(PAIRS, verbose=0, return_dict=True)["loss"]))
    (chunks, loss), (logits, other) = found
    assert logits and not chunks
    np.testing.assert_allclose(loss, other, rtol=1e-5)


def test_rows_that_are_no_pairs_and_metrics_are_errors():
    decoder = adapted("data=1")
    decoder.compile("sgd", "dpo")
    x, y = jax.tree.map(lambda leaf: leaf[None], PAIRS[0])
    with pytest.raises(DataError, match="y is missing"):
        decoder.fit(x, verbose=0)
    with pytest.raises(ModelError, match="`y_true` must be a dict of `targets` and `reference`"):
        decoder.fit(x["tokens"][0], x["tokens"][0], verbose=0)
    with pytest.raises(ModelError, match="targets, reference and logits do not fit"):
        decoder.fit(x["tokens"][0], {"targets": y["targets"][0], "reference": y["reference"][0]}, verbose=0)
    decoder.compile("sgd", "dpo", metrics=["accuracy"])
    with pytest.raises(ModelError, match="reward_accuracy and reward_margin are logged"):
        decoder.fit(PAIRS, verbose=0)
    for tokens, options in ((x["tokens"], {"cache": decoder.empty_cache(2, 32)}), (x["tokens"][0, :, :, None], {})):
        with pytest.raises(ModelError, match="tokens must have two dims"):
            decoder(tokens, **options)
