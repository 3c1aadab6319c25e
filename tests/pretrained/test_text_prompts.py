"""Text in and out of `generate`, against what transformers 5.24 made of it."""

import json
import sys

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import DataError, MissingExtraError, ModelError
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig
from keras_dist.pretrained.text_prompts import Pieces, encoded_prompts, tokenizer_of
from tests.pretrained import text_recordings

RECORDED = json.loads(text_recordings.FILE.read_text())
CONVERSATIONS = json.loads(text_recordings.CHAT.read_text())["conversations"]
CASE = pytest.mark.parametrize("case", RECORDED)
NEW = 12


@pytest.fixture
def folder(tmp_path):
    return text_recordings.written(tmp_path, RECORDED["byte level"]["files"])


@pytest.fixture(scope="module")
def decoder():
    attention = AttentionConfig(num_heads=2, num_kv_heads=2, head_dim=8)
    sizes = {"vocab_size": 384, "hidden_size": 16, "num_layers": 1, "initializer_range": 0.5}
    kd.set_random_seed(1)
    with kd.DataParallel(devices=["cpu:0"]).scope():
        decoder = Decoder(
            DecoderConfig(family="llama", **sizes, attention=attention, feed_forward=FeedForwardConfig(8))
        )
        decoder.build()
    return decoder


@CASE
def test_tokens_of_texts_are_those_of_transformers(tmp_path, case):
    tokenizer = tokenizer_of(text_recordings.written(tmp_path, RECORDED[case]["files"]))
    for text, tokens in RECORDED[case]["texts"]:
        assert tokenizer.encode(text) == tokens, text


@CASE
def test_texts_of_tokens_are_those_of_transformers(tmp_path, case):
    tokenizer = tokenizer_of(text_recordings.written(tmp_path, RECORDED[case]["files"]))
    for tokens, text in RECORDED[case]["decoded"]:
        assert tokenizer.decode(tokens) == text


def test_tokens_of_conversations_are_those_of_transformers(folder):
    recorded = RECORDED["byte level"]["conversations"]
    found = encoded_prompts(tokenizer_of(str(folder)), [CONVERSATIONS[name] for name in recorded])
    assert [row.tolist() for row in found] == [*recorded.values()]


def test_text_is_generated_from_texts_and_conversations(folder, decoder):
    prompts = ["Hello, world", CONVERSATIONS["two turns"][:1], {"messages": CONVERSATIONS["question last"]}]
    tokenizer = tokenizer_of(folder)
    tokens = kd.generate(decoder, encoded_prompts(tokenizer, prompts), NEW, stop_tokens=[9])
    found = kd.generate(decoder, prompts, NEW, tokenizer=folder)
    assert found == [tokenizer.decode(row) for row in tokens]
    assert all(isinstance(text, str) and text for text in found)


def test_generation_stops_at_the_tokens_of_the_folder(tmp_path, decoder):
    files = {**RECORDED["byte level"]["files"]}
    place = text_recordings.written(tmp_path, files)
    assert tokenizer_of(place).stop_tokens == [9], "of config.json"
    whole = kd.generate(decoder, encoded_prompts(tokenizer_of(place), ["Hello"]), NEW)[0]
    ends = [whole[3], whole[7]]
    text_recordings.written(tmp_path, {"generation_config.json": {"eos_token_id": ends}})
    tokenizer = tokenizer_of(place)  # read again
    stopped = whole[: min(map(whole.index, ends)) + 1]
    assert kd.generate(decoder, ["Hello"], NEW, tokenizer=place) == [tokenizer.decode(stopped)]
    assert kd.generate(decoder, ["Hello"], NEW, tokenizer=place, stop_tokens=[]) == [tokenizer.decode(whole)]
    stopped = whole[: whole.index(whole[5]) + 1]
    assert kd.generate(decoder, ["Hello"], NEW, tokenizer=place, stop_tokens=whole[5]) == [tokenizer.decode(stopped)]


def test_end_tokens_are_those_of_transformers(tmp_path):
    files = RECORDED["byte fallback"]["files"]
    assert tokenizer_of(text_recordings.written(tmp_path, files)).stop_tokens == RECORDED["byte fallback"]["ends"]
    (tmp_path / "generation_config.json").unlink()
    assert tokenizer_of(tmp_path).stop_tokens == [2], "of the tokenizer"
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "end"}')
    with pytest.raises(DataError, match=r"`eos_token_id` of .* must be a token"):
        _ = tokenizer_of(tmp_path).stop_tokens


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ("Hello", r"put the prompt into a list"),
        (CONVERSATIONS["two turns"], "put the prompt into a list"),
        ({"messages": CONVERSATIONS["two turns"]}, "put the prompt into a list"),
        ([], "`prompts` must be a list of prompts, each a text"),
        ([""], "a text of at least one token"),
        ([[1, 2]], "leave out `tokenizer` for prompts of tokens"),
        ([b"Hello"], "leave out `tokenizer`"),
        (np.ones((2, 3), "int32"), "leave out `tokenizer`"),
    ],
)
def test_other_prompts_are_errors(folder, decoder, prompts, said):
    with pytest.raises(ModelError, match=said):
        kd.generate(decoder, prompts, tokenizer=folder)


def test_text_needs_a_tokenizer(decoder):
    with pytest.raises(ModelError, match="for text pass the folder of a tokenizer as `tokenizer`"):
        kd.generate(decoder, ["Hello"])
    with pytest.raises(ModelError, match="`tokenizer` must be the folder of a network"):
        kd.generate(decoder, ["Hello"], tokenizer=3)


def test_messages_and_files_that_cannot_be_used_are_errors(tmp_path, folder, decoder):
    with pytest.raises(DataError, match="conversation 1 must be a list of messages"):
        kd.generate(decoder, ["a", [{"content": "b"}]], tokenizer=folder)
    with pytest.raises(DataError, match=r"tokenizer\.json' cannot be read"):
        kd.generate(decoder, ["a"], tokenizer=tmp_path / "nowhere")
    plain = {"tokenizer.json": RECORDED["byte level"]["files"]["tokenizer.json"], "tokenizer_config.json": {}}
    (tmp_path / "plain").mkdir()
    place = text_recordings.written(tmp_path / "plain", plain)
    kd.generate(decoder, ["a"], 1, tokenizer=place)
    with pytest.raises(DataError, match="has no chat template"):
        kd.generate(decoder, [CONVERSATIONS["two turns"]], tokenizer=place)


@pytest.mark.parametrize("package", ["tokenizers", "jinja2"])
def test_an_absent_package_is_named(folder, decoder, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"`generate\(tokenizer=\.\.\.\)` needs the package {package}"):
        kd.generate(decoder, [CONVERSATIONS["two turns"]], tokenizer=folder)


def in_pieces(tokenizer, tokens):
    pieces = Pieces(tokenizer)
    return [pieces.added(token, place == len(tokens)) for place, token in enumerate(tokens, 1)]


@CASE
def test_pieces_are_the_text(tmp_path, case):
    tokenizer = tokenizer_of(text_recordings.written(tmp_path, RECORDED[case]["files"]))
    for tokens, text in RECORDED[case]["decoded"]:
        assert "".join(in_pieces(tokenizer, tokens)) == text
    for text, tokens in RECORDED[case]["texts"]:
        assert "".join(in_pieces(tokenizer, tokens)) == tokenizer.decode(tokens), text


@pytest.mark.parametrize("case", ["byte level", "byte fallback"])
def test_pieces_have_whole_characters(tmp_path, case):
    tokenizer = tokenizer_of(text_recordings.written(tmp_path, RECORDED[case]["files"]))
    text = "é 你好 🚀 do"
    found = in_pieces(tokenizer, tokenizer.encode(text))
    assert "".join(found) == text and "\ufffd" not in "".join(found)
    assert "" in found and sum(map(bool, found)) >= 5, "most come before the end"


@pytest.mark.parametrize("options", [{}, {"temperature": 2.0, "seed": 3}])
def test_streamed_text_is_the_text(folder, decoder, options):
    prompts = ["Hello, world", "a", CONVERSATIONS["two turns"][:1]]
    expected = kd.generate(decoder, prompts, 40, tokenizer=folder, **options)
    steps = [*kd.generate(decoder, prompts, 40, tokenizer=folder, stream=True, **options)]
    assert ["".join(piece or "" for piece in row) for row in zip(*steps, strict=True)] == expected
    assert all(len(step) == 3 for step in steps)
