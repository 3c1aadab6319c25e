"""`generate` equals recomputing each prefix without a cache, on one device and sharded."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist.errors import ModelError
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig, Rotary

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18]]
NEW, WIDEST = 6, 80
ATTENTION = AttentionConfig(num_heads=8, num_kv_heads=4, head_dim=4, rotary=Rotary())
CONFIG = DecoderConfig(
    family="llama",
    vocab_size=96,
    hidden_size=16,
    num_layers=2,
    attention=ATTENTION,
    feed_forward=FeedForwardConfig(size=32),
    initializer_range=0.4,
)


def made(distribution, scan=False):
    kd.set_random_seed(0)
    with distribution.scope():
        decoder = Decoder(CONFIG, scan=scan)
        decoder.build()
    return decoder


@pytest.fixture(scope="module")
def alone():
    return made(kd.DataParallel(devices=["cpu:0"]))


@pytest.fixture(scope="module")
def split():
    mesh = kd.DeviceMesh("data=2,model=4")
    return made(kd.ModelParallel(kd.pretrained.rules(CONFIG, mesh)))


def recomputed(decoder, prompt, new=NEW):
    """The likeliest tokens, each from a call on all tokens before it."""
    tokens = [*prompt]
    for _ in range(new):
        row = np.zeros((1, WIDEST), "int32")  # later tokens do not matter
        row[0, : len(tokens)] = tokens
        tokens.append(int(np.asarray(decoder(row))[0, len(tokens) - 1].argmax()))
    return tokens[len(prompt) :]


@pytest.fixture(scope="module")
def expected(alone):
    return [recomputed(alone, prompt) for prompt in PROMPTS]


def test_it_equals_recomputing_without_a_cache(alone, expected):
    assert kd.generate(alone, PROMPTS, NEW) == expected
    assert len({token for row in expected for token in row}) > 3, "the model repeats itself: choose other weights"


def test_bytes_are_tokens(alone, expected):
    assert kd.generate(alone, [bytes(prompt) for prompt in PROMPTS], NEW) == expected


def test_it_is_the_same_sharded(split, expected):
    assert kd.generate(split, PROMPTS, NEW) == expected


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("remat", [True, False])
def test_a_scanned_decoder_with_dropout_of_adapters(remat):
    decoder = Decoder(CONFIG, scan=True, remat=remat)
    expected = kd.generate(decoder, PROMPTS[:1], NEW)
    decoder.enable_lora(2, ".*/query", dropout=0.5)
    assert kd.generate(decoder, PROMPTS[:1], NEW) == expected


@pytest.mark.slow
def test_a_scanned_decoder_over_fully_sharded_weights():
    distribution = kd.FullySharded(kd.DeviceMesh("data=8"))
    scanned = made(distribution, scan=True)
    assert kd.generate(scanned, PROMPTS[:1], NEW) == [recomputed(scanned, PROMPTS[0])]


@pytest.mark.slow
def test_rows_do_not_depend_on_other_rows(split, alone):
    options = {"temperature": 1.0, "top_k": 50, "top_p": 0.9, "seed": 3}
    together = kd.generate(alone, PROMPTS, NEW, **options)
    assert together == kd.generate(split, PROMPTS, NEW, **options)
    assert together[:2] == kd.generate(alone, PROMPTS[:2], NEW, **options)
    assert together != kd.generate(alone, PROMPTS, NEW, **{**options, "seed": 4})


def test_each_row_ends_after_a_stop_token(alone, expected):
    stop = expected[0][2]
    found = kd.generate(alone, PROMPTS, NEW, stop_tokens=stop)
    for row, whole in zip(found, expected, strict=True):
        assert row == (whole[: whole.index(stop) + 1] if stop in whole else whole)


def joined(steps):
    """The tokens of each row of a stream, which ends with None."""
    rows = [list(row) for row in zip(*steps, strict=True)]
    counts = [sum(token is not None for token in row) for row in rows]
    assert all(None not in row[:count] for row, count in zip(rows, counts, strict=True))
    return [row[:count] for row, count in zip(rows, counts, strict=True)]


@pytest.mark.parametrize("options", [{}, {"temperature": 1.5, "top_p": 0.9, "seed": 7}], ids=["greedy", "drawn"])
@pytest.mark.parametrize("where", ["alone", "split"])
def test_a_stream_has_the_same_tokens(request, where, options):
    decoder = request.getfixturevalue(where)
    whole = kd.generate(decoder, PROMPTS, NEW, **options)
    programs = decoder._built._programs
    known = len(programs)
    assert joined(kd.generate(decoder, PROMPTS, NEW, stream=True, **options)) == whole
    stops = [whole[0][1], whole[2][3]]
    expected = kd.generate(decoder, PROMPTS, NEW, stop_tokens=stops, **options)
    steps = [*kd.generate(decoder, PROMPTS, NEW, stop_tokens=stops, stream=True, **options)]
    assert joined(steps) == expected
    assert len(steps) == max(map(len, expected)), "it ends with the last row"
    assert len(programs) == known and {each._cache_size() for each in programs.values()} == {1}


def test_a_stream_computes_a_token_at_a_time(alone, monkeypatch):
    kd.generate(alone, PROMPTS, NEW)
    ran, run = [], type(alone._built).run_compiled

    def running(self, key, *arguments, **options):
        ran.append(key[0])
        return run(self, key, *arguments, **options)

    monkeypatch.setattr(type(alone._built), "run_compiled", running)
    steps = kd.generate(alone, PROMPTS, NEW, stream=True)
    assert not ran, "nothing before it is asked for"
    first = next(steps)
    assert ran == ["prefill"]
    second = next(steps)
    assert ran == ["prefill", "decode"]
    steps.close()
    assert ran == ["prefill", "decode"] and [*steps] == []
    assert [[*row] for row in zip(first, second, strict=True)] == [row[:2] for row in kd.generate(alone, PROMPTS, NEW)]


def test_streams_do_not_disturb_each_other(alone, expected):
    steps = [kd.generate(alone, [prompt], NEW, stream=True) for prompt in PROMPTS]
    assert [[token for (token,) in each] for each in zip(*steps, strict=True)] == [
        *map(list, zip(*expected, strict=True))
    ]


def test_few_programs_serve_many_sizes(alone, capfd):
    programs = alone._with_weights()._programs
    programs.clear()
    tasks = ("adds tokens", "reads prompts of up to 32 tokens")
    for length, new in ((1, 1), (32, 32), (31, 5), (20, 17)):
        kd.generate(alone, [[7] * length] * 8, new)
    assert len(programs) == 2
    lines = {f"generate: the program that {task} (batch 8, 64 slots): compiling" for task in tasks}
    assert {*capfd.readouterr().err.splitlines()} == lines
    sizes = (1, 40), (33, 64), (64, 2), (65, 30), (70, 25), (128, 64), (100, 40)
    for length, new in sizes:
        assert len(kd.generate(alone, [[7] * length] * 8, new, verbose=0)[0]) == new
    assert len(programs) == 2 + 3 + 2, "prompts of 32, 64 and 128 tokens; 128 and 192 slots"
    assert {each._cache_size() for each in programs.values()} == {1} and not capfd.readouterr().err


def test_lines_of_compilations_are_logged_on_request(alone, capfd, caplog):
    kd.config.disable_interactive_logging()
    try:
        with caplog.at_level("INFO", "keras_dist"):
            kd.generate(alone, [[7] * 300], 1)
    finally:
        kd.config.enable_interactive_logging()
    assert not capfd.readouterr().err
    assert "generate: the program that reads prompts of up to 512 tokens (batch 1, 640 slots): compiling" in caplog.text


def test_prompts_of_other_sizes_share_the_loop(alone):
    kd.generate(alone, [list(range(1, 25))], 16)
    assert kd.generate(alone, [PROMPTS[0]], 18)[0][:NEW] == kd.generate(alone, [PROMPTS[0]], NEW)[0]
    long = [*range(1, 60)]
    assert kd.generate(alone, [long], 18)[0] == kd.generate(alone, [long], 70)[0][:18] == recomputed(alone, long, 18)


def test_numbers_of_sampling_are_no_programs(alone):
    kd.generate(alone, PROMPTS, NEW, temperature=0.7, top_p=0.9, stop_tokens=[1])
    known = len(alone._built._programs)
    kd.generate(alone, PROMPTS, NEW, temperature=0.8, top_p=0.5, stop_tokens=[1, 2])
    assert len(alone._built._programs) == known


def test_extremes_of_sampling_take_the_likeliest_token(alone, expected):
    assert kd.generate(alone, PROMPTS, NEW, temperature=1e-45) == expected
    assert kd.generate(alone, PROMPTS, NEW, temperature=1.0, top_p=1e-50) == expected


def test_draws_are_among_the_likeliest(alone):
    logits = np.asarray(alone(np.array([PROMPTS[0]], "int32")))[0, -1]
    order = np.argsort(-logits)
    chances = np.exp(logits[order] - logits.max())
    chances /= chances.sum()
    kept = 1 + int(np.searchsorted(np.cumsum(chances), 0.5))
    drawn = {
        (name, row[0])
        for name, options in {"top_k": {"top_k": 3}, "top_p": {"top_p": 0.5}}.items()
        for row in kd.generate(alone, [PROMPTS[0]] * 64, 1, temperature=1.0, **options)
    }
    assert {token for name, token in drawn if name == "top_k"} == {*order[:3].tolist()}
    assert {token for name, token in drawn if name == "top_p"} <= {*order[:kept].tolist()}


def test_the_cache_is_sharded_over_rows_and_heads(split):
    built = split._with_weights()

    def run(module, tokens):
        return module(tokens, cache=module.empty_cache(4, 32))[1]

    cache = built.run_compiled("cache", run, built.placed(np.ones((4, 8), "int32")))
    assert cache.keys[0].sharding.spec == jax.sharding.PartitionSpec("data", None, "model")


class Adding(nnx.Module):
    """Predicts the sum of the last two tokens; its cache is the last token."""

    def __init__(self, rngs):
        self.scale = nnx.Param(jnp.ones(()))

    def empty_cache(self, batch_size, slots):
        return jnp.zeros((batch_size,), jnp.int32)

    def __call__(self, inputs, cache=None):
        tokens, segments = inputs["tokens"], inputs["segments"]
        before = jnp.concatenate([cache[:, None], tokens[:, :-1]], 1)
        real = jnp.sum(segments, 1)
        last = jnp.take_along_axis(tokens, jnp.maximum(real - 1, 0)[:, None], 1)[:, 0]
        return jax.nn.one_hot((before + tokens) % 50, 50) * self.scale[...], last


class Returning(Adding):
    """Has a cache that is none."""

    def __init__(self, rngs, cache=None):
        super().__init__(rngs)
        self.returned = nnx.static(cache)

    def empty_cache(self, batch_size, slots):
        return self.returned

    def __call__(self, inputs, cache=None):
        return jax.nn.one_hot(inputs["tokens"], 50) * self.scale[...], cache


@pytest.mark.parametrize("cache", [None, "abc", 5, object(), (), (object(),), (1.0,)])
def test_a_cache_has_arrays(cache):
    with kd.DataParallel().scope():
        model = kd.Model.from_nnx(functools.partial(Returning, cache=cache))
    with pytest.raises(ModelError, match="the cache must be arrays whose shapes do not change"):
        kd.generate(model, [[1, 2]], 3)


def test_a_module_with_a_cache_of_its_own():
    with kd.DataParallel().scope():
        model = kd.Model.from_nnx(Adding)
    assert kd.generate(model, [[1, 1], [2, 3, 5]], 4) == [[2, 3, 5, 8], [8, 13, 21, 34]]


class Counting(Adding):
    def __init__(self, rngs):
        super().__init__(rngs)
        self.calls = nnx.Variable(jnp.zeros(()))

    def __call__(self, inputs, cache=None):
        self.calls[...] += 1
        return super().__call__(inputs, cache)


class Uncached(Adding):
    def __call__(self, inputs, cache=None):
        return super().__call__(inputs, cache)[0]


class Growing(Adding):
    def __call__(self, inputs, cache=None):
        logits, last = super().__call__(inputs, cache)
        return logits, last.astype("float32")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Counting, "changes variables\n.*calls"),
        (Uncached, "must return logits and the cache"),
        (Growing, "shapes do not change"),
    ],
)
def test_modules_that_break_the_protocol(module, said):
    with kd.DataParallel(devices=["cpu:0"]).scope():
        model = kd.Model.from_nnx(module)
    with pytest.raises(ModelError, match=said):
        kd.generate(model, PROMPTS, 3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompts": []}, "`prompts` must be"),
        ({"prompts": [[]]}, "`prompts` must be"),
        ({"prompts": [[0.5]]}, "`prompts` must be"),
        ({"prompts": "text"}, "`prompts` must be"),
        ({"prompts": [b""]}, "`prompts` must be"),
        ({"prompts": b"text"}, "`prompts` must be"),
        ({"max_new_tokens": 0}, "`max_new_tokens`"),
        ({"max_new_tokens": 2**31}, "`max_new_tokens` must be an integer from 1 to 1073741824"),
        ({"top_K": 3}, r"`generate` has no argument 'top_K' \(did you mean 'top_k'\?\)"),
        ({"temperature": -1.0}, "`temperature` must be"),
        ({"top_k": 0}, "`top_k`"),
        ({"top_p": 1.5}, "`top_p` must be"),
        ({"top_k": 5}, "need a temperature above 0"),
        ({"stop_tokens": "end"}, "`stop_tokens` must be"),
        ({"stop_tokens": [2**40]}, "`stop_tokens` must be"),
        ({"seed": -1}, "`seed`"),
        ({"prompts": [[1, 96]]}, "not in the vocabulary"),
        ({"prompts": [[-1]]}, "not in the vocabulary"),
        ({"model": 3}, "`model` must be"),
        ({"stream": "yes"}, "`stream`"),
        ({"verbose": 3}, "`verbose`"),
        ({"stream": True, "seed": -1}, "`seed`"),
    ],
)
def test_wrong_arguments(alone, change, said):
    with pytest.raises(ModelError, match=said):
        kd.generate(**{"model": alone, "prompts": PROMPTS, **change})


def test_a_cache_that_exceeds_the_memory_names_the_number_of_tokens(alone, monkeypatch):
    def fails(*_, **__):
        raise jax.errors.JaxRuntimeError("INTERNAL: Error dispatching computation: Out of memory allocating 687 bytes.")

    monkeypatch.setattr(type(alone._with_weights()), "run_compiled", fails)
    with pytest.raises(ModelError, match=r"not enough memory(.|\n)*3 prompts, max_new_tokens=1000000000"):
        kd.generate(alone, PROMPTS, 10**9)


def test_more_positions_than_the_decoder_has(alone):
    short = dataclasses.replace(CONFIG, max_length=8, learned_positions=True)
    with kd.DataParallel(devices=["cpu:0"]).scope():
        decoder = Decoder(short)
    with pytest.raises(ModelError, match="8 positions"):
        kd.generate(decoder, [[1, 2, 3]], 6)


def test_a_model_without_a_cache():
    with kd.DataParallel(devices=["cpu:0"]).scope():
        model = kd.Model.from_nnx(lambda rngs: nnx.Linear(3, 3, rngs=rngs))
    with pytest.raises(ModelError, match="keeps no cache"):
        kd.generate(model, PROMPTS)
