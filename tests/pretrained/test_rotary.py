"""Frequencies of rotary embeddings equal those of `transformers.modeling_rope_utils`, recorded with version 5.24."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist.pretrained import AttentionConfig, DecoderConfig, FeedForwardConfig, Rotary
from keras_dist.pretrained.rotary import angles, rotated

LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
LONG = {"short_factor": (1.0, 1.5, 2.0, 2.5), "long_factor": (2.0, 3.0, 4.0, 5.0)}
WHOLE = {"truncate": False, "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 0.7, "mscale_all_dim": 0.3, "factor": 16.0}
RECORDED = {
    "linear": ({"factor": 8.0}, 64, [0.125, 0.0395285, 0.0125, 0.0039528], 1.0),
    "linear, partial": ({"factor": 2.0, "partial_rotary_factor": 0.5}, 64, [0.5, 0.05], 1.0),
    "llama3": (LLAMA3, 64, [0.6366197, 0.0790569, 0.025, 0.0079057], 1.0),
    "yarn": (
        {"factor": 4.0, "original_max_position_embeddings": 256},
        64,
        [1.0, 0.2569351, 0.0625, 0.013835],
        1.138629,
    ),
    "yarn, factor of the lengths": (
        {"original_max_position_embeddings": 256},
        64,
        [1.0, 0.2569351, 0.0625, 0.013835],
        1.138629,
    ),
    "yarn, not rounded": (
        {**WHOLE, "rope_theta": 1000.0, "original_max_position_embeddings": 512},
        64,
        [1.0, 0.1698845, 0.0055894, 0.0003515],
        1.102387,
    ),
    "yarn, with a factor": (
        {"factor": 2.0, "original_max_position_embeddings": 64, "attention_factor": 1.25},
        64,
        [1.0, 0.2635231, 0.0666667, 0.0158114],
        1.25,
    ),
    "longrope, short": (
        {**LONG, "factor": 4.0, "original_max_position_embeddings": 16},
        8,
        [1.0, 0.2108185, 0.05, 0.0126491],
        1.224745,
    ),
    "longrope, long": (
        {**LONG, "factor": 4.0, "original_max_position_embeddings": 16},
        64,
        [0.5, 0.1054092, 0.025, 0.0063246],
        1.224745,
    ),
}


def config(rotary):
    attention = AttentionConfig(num_heads=4, num_kv_heads=4, head_dim=8, rotary=rotary)
    sizes = {"vocab_size": 32, "hidden_size": 32, "num_layers": 1, "max_length": 1024}
    return DecoderConfig(family="llama", attention=attention, feed_forward=FeedForwardConfig(16), **sizes)


@pytest.mark.parametrize("name", RECORDED)
def test_frequencies_and_factor(name):
    options, length, frequencies, factor = RECORDED[name]
    rotary = Rotary(**{"rope_theta": 100.0, "rope_type": name.split(",")[0], **options})
    cosine, sine = angles(rotary, config(rotary), jnp.arange(length)[None])
    np.testing.assert_allclose(np.hypot(cosine, sine), factor, rtol=1e-5)
    found = np.arctan2(sine[0, 1], cosine[0, 1])  # position 1 is rotated by the frequencies
    np.testing.assert_allclose(found, frequencies, atol=2e-7)


def test_a_rotation_keeps_the_rest_of_a_head_and_relative_positions():
    rotary = Rotary(rope_theta=100.0, partial_rotary_factor=0.5)
    heads = np.random.default_rng(0).normal(size=(2, 1, 3, 8)).astype("float32")

    def at(position):
        return np.asarray(rotated(heads, angles(rotary, config(rotary), jnp.full((1, 1), position))))

    np.testing.assert_array_equal(at(5)[..., 4:], heads[..., 4:])
    np.testing.assert_allclose(at(0), heads, atol=1e-6)
    scores = [np.sum(at(position)[0] * at(position + 3)[1]) for position in (0, 7)]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-4)
    without = dataclasses.replace(config(rotary), attention=dataclasses.replace(config(rotary).attention, rotary=None))
    assert angles(None, without, jnp.zeros((1, 1))) is None
