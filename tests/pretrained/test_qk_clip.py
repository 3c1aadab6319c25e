"""qk-clip of MuonClip against the formula of its paper, https://arxiv.org/abs/2507.20534, algorithm 1."""

import dataclasses
import zlib

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ConfigError, ModelError
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig, Rotary, rules

TOKENS = np.random.default_rng(0).integers(0, 64, (10, 12)).astype("int32")
LIMIT = 0.2
ATTENTION = AttentionConfig(num_heads=4, num_kv_heads=4, head_dim=8, rotary=Rotary(), use_bias=True)


def config(**changes):
    attention = dataclasses.replace(ATTENTION, **changes)
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_layers": 2, "initializer_range": 0.2}
    return DecoderConfig(family="llama", **sizes, attention=attention, feed_forward=FeedForwardConfig(32))


def trained(of, distribution=None, *, epochs=1, batch_size=10, scan=False, optimizer=None, **options):
    kd.set_random_seed(0)
    with (distribution or kd.DataParallel(devices=["cpu:0"])).scope():
        decoder = Decoder(of, scan=scan)
    decoder.build(TOKENS.shape)
    for weight in decoder.trainable_variables:
        slices = [weight.path.replace("layers/", f"layers/{layer}/") for layer in range(2)]
        if scan and slices[0] != slices[1]:
            weight.assign(np.stack([initial(path, weight.shape[1:]) for path in slices]))
        else:
            weight.assign(initial(weight.path, weight.shape))
    before = weights(decoder)
    decoder.compile(optimizer or kd.optimizers.Muon(0.02), "causal_lm", **options)
    decoder.fit(TOKENS, TOKENS, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0)
    return before, decoder


def initial(path, shape):
    """Values that depend on the path."""
    if path.endswith("scale"):
        return np.ones(shape, "float32")
    return np.random.default_rng(zlib.crc32(path.encode())).normal(0, 0.2, shape).astype("float32")


def weights(decoder):
    return {variable.path: variable.numpy() for variable in decoder.variables}


def rotated(x):
    """Rotate (batch, length, heads, features), by the formula of RoFormer as Llama orders the features."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] * 10000.0 ** (-np.arange(half) / half)
    cosine, sine = (f(angles)[:, None] for f in (np.cos, np.sin))
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


def peaks_of_first_layer(of, kv_heads):
    """The largest score of each head in the first layer, in float64."""
    of = {path: value.astype(np.float64) for path, value in of.items()}
    hidden = of["embedding/embeddings"][TOKENS]
    hidden = hidden / np.sqrt(np.mean(hidden**2, -1, keepdims=True) + 1e-6) * of["layers/0/attention_norm/scale"]
    query, key = (
        rotated(
            np.einsum("btd,dnh->btnh", hidden, of[f"layers/0/attention/{name}/kernel"])
            + of[f"layers/0/attention/{name}/bias"]
        )
        for name in ("query", "key")
    )
    scores = np.einsum("btnh,bsnh->bnts", query, np.repeat(key, 4 // kv_heads, 2)) / np.sqrt(8)
    return np.max(scores, (0, 2, 3), where=np.tril(np.ones((12, 12), bool)), initial=-np.inf)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_heads_with_large_scores_are_scaled_after_the_update(kv_heads):
    before, plain = trained(config(num_kv_heads=kv_heads))
    _, clipped = trained(config(num_kv_heads=kv_heads, qk_clip=LIMIT))
    needed = np.minimum(1, LIMIT / peaks_of_first_layer(before, kv_heads))
    assert (needed < 1).any()
    of_keys = np.sqrt(needed.reshape(kv_heads, -1).min(1))
    factors = {"query": needed / np.repeat(of_keys, 4 // kv_heads), "key": of_keys}
    found, expected = weights(clipped), weights(plain)
    for path, value in expected.items():
        layer = path.rpartition("/")[0]
        if layer.startswith("layers/0/attention/") and (kind := layer.rpartition("/")[2]) in factors:
            value = value * factors[kind][:, None]
        if not path.startswith("layers/1/attention"):
            np.testing.assert_allclose(found[path], value, 1e-5, 1e-6, err_msg=path)
    assert all(not value.any() for path, value in found.items() if path.endswith("peaks"))


def test_queries_and_keys_of_separate_heads_share_the_factor():
    """gamma ** 0.5 for both, as in the paper."""
    before, _ = trained(config())
    needed = np.minimum(1, LIMIT / peaks_of_first_layer(before, 4))
    _, plain = trained(config())
    _, clipped = trained(config(qk_clip=LIMIT))
    for name in ("query", "key"):
        path = f"layers/0/attention/{name}/kernel"
        ratio = weights(clipped)[path] / weights(plain)[path]
        np.testing.assert_allclose(ratio, np.broadcast_to(np.sqrt(needed)[:, None], ratio.shape), 1e-4)


def test_scores_stay_near_the_limit():
    """Without it they grow."""
    _, plain = trained(config(), epochs=15)
    _, clipped = trained(config(qk_clip=LIMIT), epochs=15)
    assert peaks_of_first_layer(weights(plain), 4).max() > 2
    assert peaks_of_first_layer(weights(clipped), 4).max() < 2 * LIMIT


def test_a_limit_that_is_never_reached_changes_nothing():
    _, plain = trained(config(), epochs=2)
    _, clipped = trained(config(qk_clip=1e6), epochs=2)
    found = weights(clipped)
    for path, value in weights(plain).items():
        np.testing.assert_allclose(found[path], value, 1e-6, 1e-7, err_msg=path)


MESHES = {
    "fully sharded": lambda of, scan: kd.FullySharded(kd.DeviceMesh("data=8"), min_size_bytes=0),
    "Megatron": lambda of, scan: kd.ModelParallel(
        rules(of, kd.DeviceMesh("data=2,model=4"), scan=scan), batch_dim_name="data"
    ),
    "copies": lambda of, scan: kd.DataParallel(),
}


@pytest.mark.parametrize("scan", [False, True], ids=["separate", "scan"])
@pytest.mark.parametrize("mesh", MESHES)
def test_layouts_and_stacks_clip_alike(mesh, scan):
    """With a partial batch, of 4 of 6 rows."""
    of = config(qk_clip=LIMIT)
    _, one = trained(of, epochs=5, batch_size=6)
    _, other = trained(of, MESHES[mesh](of, scan), epochs=5, batch_size=6, scan=scan)
    found = weights(other)
    for path, value in weights(one).items():
        same = path.replace("layers/0/", "layers/").replace("layers/1/", "layers/")
        there = found[same][int("layers/1/" in path)] if scan and same != path else found[path]
        np.testing.assert_allclose(there, value, 2e-3, 1e-4 * np.abs(value).max() + 1e-7, err_msg=path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qk_norm": "head"}, "qk_clip=0.2 has no effect with qk_norm='head'"),
        ({"implementation": "splash"}, "qk_clip=0.2 needs scores, which implementation='splash' does not store"),
        ({"qk_clip": 0.0}, "qk_clip=0 must be positive"),
        ({"qk_clip": -1.0}, "qk_clip"),
        ({"qk_clip": "much"}, "qk_clip"),
    ],
)
def test_options_that_it_cannot_have(changes, message):
    with pytest.raises(ConfigError, match=message):
        config(**({"qk_clip": LIMIT} | changes))


def test_frozen_weights_accumulation_and_own_steps_are_errors():
    of = config(qk_clip=LIMIT)
    with pytest.raises(ModelError, match="which `gradient_accumulation_steps` does not know"):
        trained(of, optimizer=kd.optimizers.Muon(0.02, gradient_accumulation_steps=2))
    with pytest.raises(ModelError, match="which `use_ema` does not know"):
        trained(of, optimizer=kd.optimizers.LossScaleOptimizer(kd.optimizers.Muon(0.02, use_ema=True)))
    with pytest.raises(ModelError, match="which `train_step` does not know"):
        trained(of, train_step=lambda state, batch, rngs: (state, {}))
    decoder = Decoder(of)
    decoder.build(TOKENS.shape)
    decoder.enable_lora(2, layers=".*(query|key)")
    decoder.compile("adam", "causal_lm")
    with pytest.raises(ModelError, match="'layers/0/attention/query/kernel', which is not trained"):
        decoder.fit(TOKENS, TOKENS, verbose=0)


@pytest.mark.parametrize("suffix", [".weights.h5", ".safetensors"])
@pytest.mark.parametrize("limits", [(None, LIMIT), (LIMIT, None)], ids=["into it", "out of it"])
def test_weights_are_those_of_a_decoder_without_it(tmp_path, suffix, limits):
    _, one = trained(config(qk_clip=limits[0]))
    other = Decoder(config(qk_clip=limits[1]))
    other.build(TOKENS.shape)
    one.save_weights(tmp_path / f"of{suffix}")
    other.load_weights(tmp_path / f"of{suffix}")
    np.testing.assert_array_equal(one.predict(TOKENS, verbose=0), other.predict(TOKENS, verbose=0))


def test_folders_are_those_of_a_decoder_without_it(tmp_path):
    _, one = trained(config(qk_clip=LIMIT, use_bias=False))
    kd.pretrained.save(one, tmp_path)
    other = kd.pretrained.load(tmp_path)
    np.testing.assert_array_equal(one.predict(TOKENS, verbose=0), other.predict(TOKENS, verbose=0))


def test_files_have_no_peaks(tmp_path):
    _, decoder = trained(config(qk_clip=LIMIT))
    decoder.save(tmp_path / "decoder.keras")
    again = kd.models.load_model(tmp_path / "decoder.keras")
    for model in (decoder, again):
        model.fit(TOKENS, TOKENS, verbose=0, shuffle=False)
    for one, other in zip(decoder.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
