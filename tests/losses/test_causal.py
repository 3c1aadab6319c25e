"""The loss of language models against `jax.nn.log_softmax`: values, gradients, what counts, and its mistakes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import losses
from keras_dist.errors import DataError, ModelError
from keras_dist.losses.vocabulary import Projection, statistics

RANDOM = np.random.default_rng(0)
BATCH, LENGTH, FEATURES, SIZE = 3, 5, 4, 22
TOKENS = RANDOM.integers(0, SIZE, (BATCH, LENGTH))
WEIGHTS = RANDOM.uniform(0, 2, (BATCH, LENGTH)).astype("f4") * (RANDOM.uniform(size=(BATCH, LENGTH)) > 0.3)
INPUTS = RANDOM.normal(size=(BATCH, LENGTH, FEATURES)).astype("f4")
KERNEL = RANDOM.normal(size=(FEATURES, SIZE)).astype("f4")


def capped(logits, soft_cap):
    return logits if soft_cap is None else soft_cap * jnp.tanh(logits / soft_cap)


def plain(inputs, kernel, soft_cap=None, weights=WEIGHTS):
    """`sum(weight * cross entropy) / sum(weight)` of the tokens after the first ones."""
    logs = jax.nn.log_softmax(capped(inputs @ kernel, soft_cap))[:, :-1]
    values = -jnp.take_along_axis(logs, TOKENS[:, 1:, None], axis=-1)[..., 0]
    return (values * weights[:, 1:]).sum() / weights[:, 1:].sum()


def assert_same(found, expected, atol=1e-6):
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6, atol=atol), found, expected)


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("vocabulary_dim", [0, 1])
@pytest.mark.parametrize(("shards", "chunk_size"), [(1, 22), (1, 5), (2, 4)])
def test_value_and_gradients_from_a_projection(soft_cap, vocabulary_dim, shards, chunk_size):
    """11 entries of a shard in three chunks of 4, and 22 in five of 5: the last ones are padded."""
    loss = losses.CausalLM(chunk_size=chunk_size)

    def of(inputs, kernel):
        kernel = kernel if vocabulary_dim else kernel.T
        return loss(TOKENS, Projection(inputs, kernel, vocabulary_dim, soft_cap, shards), WEIGHTS)

    found = jax.jit(jax.value_and_grad(of, (0, 1)))(INPUTS, KERNEL)
    assert_same(found, jax.jit(jax.value_and_grad(lambda *given: plain(*given, soft_cap), (0, 1)))(INPUTS, KERNEL))


def test_value_and_gradients_from_logits():
    loss = losses.CausalLM()
    found = jax.jit(jax.value_and_grad(lambda *given: loss(TOKENS, given[0] @ given[1], WEIGHTS), (0, 1)))
    assert_same(found(INPUTS, KERNEL), jax.jit(jax.value_and_grad(plain, (0, 1)))(INPUTS, KERNEL))


def test_logits_of_half_precision_are_not_copied_and_gradients_have_their_dtype():
    logits = jnp.asarray(INPUTS @ KERNEL, jnp.bfloat16)
    loss = losses.CausalLM()
    value, gradient = jax.jit(jax.value_and_grad(lambda logits: loss(TOKENS, logits, WEIGHTS)))(logits)
    assert (value.dtype, gradient.dtype) == (jnp.float32, jnp.bfloat16)
    exact = jax.value_and_grad(lambda logits: plain(logits, jnp.eye(SIZE)))(logits.astype("f4"))
    assert_same((value, gradient.astype("f4")), exact, atol=1e-3)
    kept = jax.eval_shape(lambda logits: jax.vjp(lambda x: statistics(x, jnp.asarray(TOKENS), 1), logits)[1], logits)
    wide = [leaf for leaf in jax.tree.leaves(kept) if leaf.shape == logits.shape and leaf.dtype == jnp.float32]
    assert not wide


def test_first_tokens_ignored_ones_and_masked_ones_do_not_count():
    logits, tokens = INPUTS @ KERNEL, TOKENS.copy()
    tokens[0, 2:], tokens[1, 3] = -100, -100
    counts = np.arange(LENGTH) * (tokens != -100) > 0
    expected = plain(INPUTS, KERNEL, weights=counts.astype("f4"))
    loss = losses.CausalLM()
    assert_same(loss(tokens, logits), expected)
    assert loss.count(tokens, logits) == loss.divisor(tokens, logits) == counts.sum()
    mask = tokens != -100
    assert_same(losses.CausalLM(ignore_class=None)(np.where(mask, tokens, 0), logits, mask=mask), expected)
    assert float(loss(np.full_like(tokens, -100), logits)) == 0.0


def test_padding_may_be_nan_and_weights_may_be_by_row():
    logits = np.array(INPUTS @ KERNEL)
    logits[0, 3:] = np.nan
    tokens = np.where(np.isnan(logits[..., 0]), -100, TOKENS)
    tokens[0, 3] = TOKENS[0, 3]  # predicted from the last one that is a number
    weights = np.broadcast_to(np.array([[1.0], [2.0], [0.5]], "f4"), TOKENS.shape) * (tokens != -100)
    expected = plain(np.nan_to_num(INPUTS), KERNEL, weights=weights)
    assert_same(losses.CausalLM()(tokens, logits, np.array([1.0, 2.0, 0.5])), expected)


def test_z_loss_is_the_square_of_the_normalizer():
    logits = INPUTS @ KERNEL
    difference = losses.causal_lm(TOKENS, logits, z_loss=0.1) - losses.causal_lm(TOKENS, logits)
    expected = 0.1 * jax.nn.logsumexp(logits, -1)[:, :-1] ** 2
    assert_same(difference, np.pad(expected, [(0, 0), (1, 0)]), atol=1e-5)


def test_names_and_configs():
    assert losses.get("causal_lm") is losses.causal_lm
    config = losses.serialize(losses.CausalLM(ignore_class=0, z_loss=1e-4, chunk_size=64))
    again = losses.deserialize(config)
    assert (again.ignore_class, again.z_loss, again.chunk_size) == (0, 1e-4, 64)


def test_a_token_out_of_range_is_an_error_or_nan():
    tokens = TOKENS.copy()
    tokens[1, 2] = SIZE
    with pytest.raises(DataError, match="token in `y_true` out of range"):
        losses.causal_lm(tokens, INPUTS @ KERNEL)
    found = jax.jit(losses.causal_lm)(tokens, INPUTS @ KERNEL)
    assert np.argwhere(np.isnan(found)).tolist() == [[1, 2]]


@pytest.mark.parametrize("shape", [(BATCH, LENGTH - 1), (BATCH,), (BATCH, LENGTH, 1)])
def test_shifted_tokens_are_an_error(shape):
    with pytest.raises(ModelError, match="not shifted"):
        losses.causal_lm(np.zeros(shape, int), INPUTS @ KERNEL)


def test_mistakes_in_arguments():
    for options in ({"ignore_class": 0.5}, {"z_loss": -1.0}, {"chunk_size": 0}):
        with pytest.raises(ModelError, match=next(iter(options))):
            losses.CausalLM(**options)


def test_an_unknown_keyword_is_named():
    with pytest.raises(ModelError, match=r"`CausalLM` has no argument 'from_logits'"):
        losses.CausalLM(from_logits=True)
