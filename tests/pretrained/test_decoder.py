"""The decoder beyond a plain call: packed rows, the cache, stacked blocks, rematerialization, training, saving."""

import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_dist as kd
from keras_dist.errors import ConfigError, ModelError
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig, NormConfig, Rotary
from tests.pretrained.networks import FOLDER

RECORDED = ["gemma3_text", "gpt2", "smollm3", "mixtral", "gpt_oss", "ministral3"]
"""Families with windows, two rotary embeddings, learned positions, layers without positions, experts, sinks, growth."""


def recorded(family):
    values = load_file(FOLDER / family / "outputs.safetensors")
    return values["input_ids"], values["outputs"]


def config(**options):
    attention = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=8, rotary=Rotary(), window=3, sliding_layers=(0,))
    fields = {"vocab_size": 32, "hidden_size": 16, "num_layers": 2, "feed_forward": FeedForwardConfig(24)}
    return DecoderConfig(**{"family": "llama", **fields, "attention": attention, **options})


@pytest.fixture(scope="module", params=[False, True], ids=["unrolled", "scanned"])
def scan(request):
    return request.param


@pytest.fixture(scope="module", params=RECORDED)
def loaded(request, scan):
    return kd.pretrained.load(FOLDER / request.param, scan=scan), *recorded(request.param)


@pytest.mark.first_cases(2)
def test_packed_documents_do_not_see_each_other(loaded):
    model, tokens, expected = loaded
    first, second = 12, 4  # of gpt2 16 positions
    packed = np.concatenate([tokens[0], tokens[1, :second]])[None]
    segments = np.repeat([1, 2], [first, second])[None].astype("int32")
    positions = np.concatenate([np.arange(first), np.arange(second)])[None].astype("int32")
    logits = model({"tokens": packed, "segments": segments, "positions": positions})
    np.testing.assert_allclose(logits[0, :first], expected[0], atol=1e-4)
    np.testing.assert_allclose(logits[0, first:], expected[1, :second], atol=1e-4)


@pytest.mark.first_cases(2)
def test_a_cache_changes_no_number(loaded):
    model, tokens, expected = loaded
    logits, cache = model(tokens[:, :5], cache=model.empty_cache(batch_size=2, slots=12))
    found = [logits]
    for step in range(5, 12):
        logits, cache = model(tokens[:, step : step + 1], cache=cache)
        found.append(logits)
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, atol=1e-4)
    assert int(cache.index) == 12


@pytest.mark.first_cases(2)
def test_prompts_of_different_lengths_share_a_cache(loaded):
    model, tokens, expected = loaded
    lengths, steps = np.array([4, 7]), 5
    places = np.broadcast_to(np.arange(7, dtype="int32"), (2, 7))
    segments = (places < lengths[:, None]).astype("int32")
    prompts = {"tokens": tokens[:, :7], "positions": places, "segments": segments}
    logits, cache = model(prompts, cache=model.empty_cache(batch_size=2, slots=7 + steps))
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(logits[row, :length], expected[row, :length], atol=1e-4)
    for step in range(steps):
        at = (lengths + step)[:, None].astype("int32")
        logits, cache = model({"tokens": np.take_along_axis(tokens, at, 1), "positions": at}, cache=cache)
        np.testing.assert_allclose(logits[:, 0], np.take_along_axis(expected, at[..., None], 1)[:, 0], atol=1e-4)


def test_each_layer_of_a_stack_has_its_own_initial_values():
    model = Decoder(config(initializer_range=0.5), scan=True)
    model.build()
    kernel = next(weight for weight in model.weights if weight.path == "layers/feed_forward/up/kernel").numpy()
    assert kernel.shape == (2, 16, 24)
    assert not np.array_equal(kernel[0], kernel[1])
    assert abs(kernel.std() - 0.5) < 0.05


@pytest.mark.first_cases(1)
def test_blocks_are_computed_again_in_the_backward_pass(scan):
    tokens = np.zeros((2, 6), "int32")

    def checkpoints(remat):
        model = Decoder(config(), scan=scan, remat=remat)
        model.compile("sgd", "mse")
        return model.lower_train_step(tokens, np.zeros((2, 6, 32), "float32")).as_text().count("optimization_barrier")

    assert checkpoints(remat=False) == 0
    assert checkpoints(remat=True) == (1 if scan else 2)


@pytest.mark.slow
def test_training_is_the_same_in_all_forms():
    tokens, targets = np.arange(24, dtype="int32").reshape(2, 12), np.arange(1, 25).reshape(2, 12)
    start, losses = Decoder(config(initializer_range=0.3)), []
    start.build()
    weights = {weight.path: weight.numpy() for weight in start.weights}
    for options in ({}, {"remat": True}, {"scan": True}, {"scan": True, "remat": True}):
        model = Decoder(config(), **options)
        model.build()
        for weight in model.weights:
            of_layer = weight.path.removeprefix("layers/")
            stacked = options.get("scan") and of_layer != weight.path
            weight.assign(
                np.stack([weights[f"layers/{layer}/{of_layer}"] for layer in range(2)])
                if stacked
                else weights[weight.path]
            )
        model.compile("sgd", kd.losses.SparseCategoricalCrossentropy(from_logits=True))
        losses.append([float(model.train_on_batch(tokens, targets)) for _ in range(3)])
    assert losses[0][2] < losses[0][0]
    np.testing.assert_allclose(losses, [losses[0]] * 4, rtol=1e-5)


def test_half_precision_keeps_the_dtype_of_logits_and_cache():
    model = Decoder(config(), dtype="bfloat16")
    logits, cache = model(np.zeros((1, 3), "int32"), cache=model.empty_cache(1, 4))
    assert logits.dtype == cache.keys[0].dtype == "bfloat16"
    assert all(weight.dtype == "bfloat16" for weight in model.weights)


@pytest.mark.first_cases(1)
def test_a_network_is_saved_and_loaded_as_a_model(scan, tmp_path):
    tokens = np.arange(6, dtype="int32")[None]
    model = Decoder(config(extra={"eos_token_id": [1, 2]}), scan=scan, remat=True)
    expected = model(tokens)
    model.save(tmp_path / "model")
    again = kd.models.load_model(tmp_path / "model")
    assert (again.config, again.scan, again.remat) == (model.config, scan, True)
    np.testing.assert_array_equal(again(tokens), expected)


def test_a_summary_lists_the_blocks(scan):
    model, lines = Decoder(config(), scan=scan), []
    model.build()
    model.summary(print_fn=lines.append)
    assert "layers/attention/query/kernel" in lines[0] if scan else "layers/1/attention/query/kernel" in lines[0]


def test_an_input_of_other_parts_is_refused():
    model = Decoder(config())
    with pytest.raises(ModelError, match="must be tokens, or a dict of tokens and some of positions, segments"):
        model({"tokens": np.zeros((1, 3), "int32"), "types": np.zeros((1, 3), "int32")})
    with pytest.raises(ModelError, match="tokens must have two dims"):
        model(np.zeros(8, "int32"))
    with pytest.raises(ModelError, match="the cache has too few slots"):
        model(np.zeros((1, 3), "int32"), cache=model.empty_cache(1, 2))
    with pytest.raises(ModelError, match="`config` must be a `DecoderConfig`"):
        Decoder({"family": "llama"})


def test_one_error_lists_all_options_that_are_wrong():
    attention = AttentionConfig(num_heads=4, num_kv_heads=3, head_dim=8, qk_norm="both", rotary=Rotary(rope_type="ntk"))
    with pytest.raises(ConfigError) as caught:
        config(attention=attention, feed_forward=FeedForwardConfig(24, "mish"), norm=NormConfig(placement="around"))
    for wrong in ("num_kv_heads=3 must divide num_heads=4", "qk_norm='both'", "'ntk'", "'mish'", "'around'"):
        assert wrong in caught.value.given
    with pytest.raises(ConfigError) as caught:
        config(vocab_size=0, hidden_size="16", tied_head=1, norm=NormConfig(epsilon=-1.0))
    for wrong in ("vocab_size=0", "hidden_size='16'", "tied_head=1", "epsilon=-1.0"):
        assert wrong in caught.value.given
    long = Rotary(rope_type="longrope", short_factor=(1.0,), long_factor=(1.0,))
    with pytest.raises(ConfigError) as caught:
        config(attention=AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=8, rotary=long))
    assert "needs original_max_position_embeddings" in caught.value.given
    assert "short_factor must have 4 numbers" in caught.value.given
