"""`plan(generate=...)` against the programs that `kd.generate` runs, and against formulas."""

import dataclasses

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ModelError
from keras_dist.planner import target
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig
from keras_dist.training.built_model import BuiltModel

LAYERS, HIDDEN, HEADS, KV_HEADS, SIZE, INNER, WORDS = 2, 32, 8, 4, 8, 64, 512
ROWS, PROMPT, NEW = 8, 32, 16
SLOTS = 64  # for both


def decoder(tied=False, scan=False):
    attention = AttentionConfig(num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=SIZE)
    sizes = {"vocab_size": WORDS, "hidden_size": HIDDEN, "num_layers": LAYERS, "tied_head": tied}
    config = DecoderConfig(family="llama", **sizes, attention=attention, feed_forward=FeedForwardConfig(INNER))
    return Decoder(config, scan=scan)


def layouts(scan=False):
    mesh = kd.DeviceMesh("data=2,model=4")
    return {
        "data parallel": kd.DataParallel(kd.DeviceMesh("batch=8")),
        "fully sharded": kd.FullySharded(kd.DeviceMesh("batch=8")),
        "megatron": kd.ModelParallel(kd.pretrained.rules(decoder(scan=scan), mesh), batch_dim_name="data"),
    }


def in_products(tied):
    """Weights in products: a token of a row takes two FLOPs for each."""
    attention = HIDDEN * SIZE * (2 * HEADS + 2 * KV_HEADS)
    return LAYERS * (attention + 3 * HIDDEN * INNER) + HIDDEN * WORDS


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("name", ["data parallel", "megatron", "fully sharded"])
def test_the_cache_is_laid_out_as_generate_computes_it(monkeypatch, name, scan):
    """XLA decides for the program that runs."""
    found, run = {}, BuiltModel.run_compiled

    def running(self, key, *arguments, **options):
        results = run(self, key, *arguments, **options)
        if key[0] == "prefill":
            found["cache"] = [(leaf.shape, leaf.sharding, leaf.nbytes) for leaf in jax.tree.leaves(results[1])]
        return results

    monkeypatch.setattr(BuiltModel, "run_compiled", running)
    distribution = layouts(scan)[name]
    with distribution.scope():
        model = decoder(scan=scan)
        kd.generate(model, [[1] * PROMPT] * ROWS, NEW)
    report = kd.plan(model, generate=(ROWS, PROMPT, NEW))
    shapes = [row.shape for row in report.cache.rows]
    assert shapes == [shape for shape, *_ in found["cache"]]
    shards = [sharding.shard_shape(shape) for shape, sharding, _ in found["cache"]]
    planned = [row.nbytes_per_device for row in report.cache.rows]
    sizes = [nbytes // max(1, int(np.prod(shape))) for shape, _, nbytes in found["cache"]]
    assert planned == [int(np.prod(shard)) * size for shard, size in zip(shards, sizes, strict=True)]
    shared = 8 if name != "megatron" else 2 * KV_HEADS
    keys = 2 * 4 * LAYERS * ROWS * SLOTS * KV_HEADS * SIZE  # and values, of float32
    assert report.cache_nbytes == pytest.approx(keys / shared, rel=0.15), "positions and segments are a few bytes"


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("scan", [False, True])
def test_a_token_costs_the_products_and_reads_of_the_formula(tied, scan):
    """Attention takes 4 FLOPs for each head, its size and slot; an embedding that is only looked up is not read."""
    report = kd.plan(lambda: decoder(tied, scan), distribution=layouts()["data parallel"], generate=(ROWS, PROMPT, NEW))
    prefill, decode = report.phases["prefill"], report.phases["decode"]
    attention = 4 * LAYERS * HEADS * SIZE * SLOTS
    assert decode.step.flops == 2 * in_products(tied) + attention  # one row a device
    assert prefill.step.flops == PROMPT * (2 * in_products(tied) + attention) - 2 * (PROMPT - 1) * HIDDEN * WORDS
    weights = report.state.nbytes_per_device - (0 if tied else 4 * WORDS * HIDDEN)
    small = decode.read_nbytes - weights - report.cache_nbytes
    assert 0 <= small < 200, "tokens, lengths and seeds of the rows"


def test_the_time_of_a_call_is_of_the_prompts_and_of_each_further_token():
    options = {"target": "v5e:2x4", "compiles": False}
    several = kd.plan(decoder, generate=(ROWS, PROMPT, NEW), **options)
    single = kd.plan(decoder, generate=(ROWS, PROMPT, 1), **options)
    assert several.fits and [*single.phases] == ["prefill"]
    each = several.phases["decode"].least_seconds
    assert each == several.phases["decode"].read_nbytes / 819e9, "the bandwidth of v5e"
    first = several.phases["prefill"].least_seconds
    assert several.least_seconds == pytest.approx(first + (NEW - 1) * each)
    assert "tokens/s" in str(several) and several.to_dict()["propagated"]["cache_nbytes"] == several.cache_nbytes


def test_a_cache_that_is_too_large_does_not_fit():
    report = kd.plan(decoder, generate=(4096, 2**17, 64), target="v5e:1x1", compiles=False)
    assert report.fits is False and report.cache_nbytes > 16 * 2**30


@pytest.mark.multiprocess
def test_the_loop_keeps_one_cache():
    """The first program's cache is donated to the second, as its compiled memory shows."""
    report = kd.plan(decoder, generate=(ROWS, 2**10, 64), target="cpu:8")
    compiled = report.phases["decode"].verdict.compiled
    assert compiled.alias_nbytes > 0.9 * report.cache_nbytes, "keys and values"
    assert compiled.peak_nbytes < report.state.nbytes_per_device + 2 * report.cache_nbytes
    for phase in report.phases.values():
        assert phase.verdict.least_nbytes <= phase.verdict.compiled.peak_nbytes <= phase.verdict.most_nbytes


@pytest.mark.slow
@pytest.mark.usefixtures("tpu_compiler")
@pytest.mark.parametrize("name", ["data parallel", "megatron"])
def test_xla_for_tpus_needs_what_the_plan_says(name):
    options = {"distribution": layouts(True)[name], "target": "v5e:2x4"}
    report = kd.plan(lambda: decoder(scan=True), generate=(64, 512, 64), **options)
    for phase in report.phases.values():
        assert phase.verdict.least_nbytes <= phase.verdict.compiled.peak_nbytes <= phase.verdict.most_nbytes


def test_another_model_with_a_cache_has_a_plan():
    model = decoder()
    assert kd.plan(model, generate=(1, 5, 3)).rows == 1
    assert dataclasses.asdict(kd.plan(model, generate=(3, 5, 3)).phases["prefill"].step)["flops"] > 0


@pytest.mark.parametrize("given", [(1, 2), (0, 4, 4), "8,16,4", (1, 2.0, 3), 7])
def test_wrong_sizes_are_errors(given):
    with pytest.raises(ModelError, match=r"`generate` must be \(prompts, tokens of a prompt, new tokens\)"):
        kd.plan(decoder, generate=given)


def test_a_model_without_a_cache_is_an_error():
    with pytest.raises(ModelError, match="keeps no cache"):
        kd.plan(lambda: kd.Sequential([kd.Input((4,), dtype="int32"), kd.layers.Embedding(8, 4)]), generate=(1, 4, 4))


def test_targets_and_devices_must_agree():
    with pytest.raises(kd.errors.MeshError):
        kd.plan(decoder, distribution=layouts()["megatron"], generate=(1, 4, 4), target=target("v5e:1x1"))


def test_keys_of_fewer_heads_than_devices_are_whole():
    """As `kd.generate` runs them: two heads over four devices."""
    attention = AttentionConfig(num_heads=8, num_kv_heads=2, head_dim=16)
    sizes = {"vocab_size": 256, "hidden_size": 64, "num_layers": 2}
    config = DecoderConfig(family="llama", **sizes, attention=attention, feed_forward=FeedForwardConfig(64))
    few = Decoder(config)
    mesh = kd.DeviceMesh("data=2,model=4")
    with pytest.warns(kd.errors.LayoutWarning, match="does not divide"):
        layout = kd.ModelParallel(kd.pretrained.rules(few, mesh), batch_dim_name="data")
    report = kd.plan(few, distribution=layout, generate=(5, 20, 2))
    assert (report.prompts, report.rows) == (5, 8)
    keys = report.cache.rows[0]
    assert keys.axes[2] is None and keys.nbytes_per_device <= keys.nbytes // 2


def test_learned_positions_must_be_enough():
    attention = AttentionConfig(num_heads=4, num_kv_heads=4, head_dim=8)
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_layers": 1, "learned_positions": True, "max_length": 8}
    config = DecoderConfig(family="llama", **sizes, attention=attention, feed_forward=FeedForwardConfig(64))
    with pytest.raises(ModelError, match="the model has 8 positions"):
        kd.plan(Decoder(config), generate=(1, 20, 5))


@pytest.mark.parametrize(
    "other", [{"batch": np.zeros((4, 4))}, {"optimizer": "adam"}, {"mode": "test"}, {"search": "batch"}]
)
def test_what_generation_does_not_have_is_an_error(other):
    with pytest.raises(ModelError, match=f"plans `kd.generate` alone\\n  given:    {next(iter(other))}"):
        kd.plan(decoder, generate=(1, 4, 4), **other)


def test_a_distribution_must_be_one():
    with pytest.raises(kd.errors.KerasDistError, match="`distribution` must be a DataParallel"):
        kd.plan(decoder, distribution="data", generate=(1, 4, 4))


def test_many_prompts_take_no_memory():
    report = kd.plan(decoder, generate=(2**18, 2**14, 2), target="v5e:1x1", compiles=False)
    assert report.fits is False, "16 GiB of prompts"
    single = kd.plan(decoder, generate=(4096, 2**17, 1), target="v5e:1x1", compiles=False)
    assert single.fits is False, "the first program returns the cache"
