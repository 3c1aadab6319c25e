"""Conversations as rows, against what transformers 5.24 made of them."""

import json
import sys

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import DataError, MissingExtraError
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig
from tests.data import chat_recordings

RECORDED = json.loads(chat_recordings.FILE.read_text())
CONVERSATIONS, TEMPLATES = RECORDED["conversations"], RECORDED["templates"]
CASES = [(template, name) for template, each in RECORDED["expected"].items() for name in each]


def folder(path, template="chatml", **config):
    (path / "tokenizer.json").write_text(json.dumps(RECORDED["tokenizer"]))
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": "<|pad|>", **config}
    (path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATES.get(template)}))
    return path


def only(rows):
    """Tokens and weights of the one row, without the padding."""
    assert len(rows) == 1
    x, y, weights = rows[0]
    count = int((x["segments"] > 0).sum())
    np.testing.assert_array_equal(x["tokens"], y)
    return x["tokens"][:count].tolist(), weights[:count].tolist()


@pytest.mark.parametrize(("template", "name"), CASES)
def test_tokens_and_masks_are_those_of_transformers(tmp_path, template, name):
    expected, conversation = RECORDED["expected"][template][name], CONVERSATIONS[name]
    conversation = {"messages": conversation, **chat_recordings.arguments(template, name)}
    if "error" in expected:
        with pytest.raises(DataError, match=f"cannot render conversation 0\n.*{expected['error']}"):
            kd.data.chat([conversation], folder(tmp_path, template))
        return
    tokens, weights = only(kd.data.chat([conversation], folder(tmp_path, template), length=2048))
    assert tokens == expected["tokens"]
    assert weights == [0.0, *map(float, expected["mask"][1:])]


def test_all_tokens_are_trained_on_request(tmp_path):
    rows = kd.data.chat([CONVERSATIONS["signs"]], folder(tmp_path), length=512, train_on="all")
    tokens, weights = only(rows)
    assert tokens == RECORDED["expected"]["chatml"]["signs"]["tokens"]
    assert weights == [0.0] + [1.0] * (len(tokens) - 1)


@pytest.mark.parametrize("template", ["chatml", "chatml, marked"])
def test_long_conversations_are_cut_after_an_answer_and_counted(tmp_path, template):
    long, short = CONVERSATIONS["long"], CONVERSATIONS["two turns"]
    place = folder(tmp_path, template)
    tokens, weights = only(kd.data.chat([long], place, length=1024))
    half = only(kd.data.chat([long[:6]], place, length=1024))
    with pytest.warns(UserWarning, match=r"of 3 conversations, 1 are .* and 1 left out"):
        rows = kd.data.chat(
            [long, short, [{"role": "user", "content": "x" * 2000}, *short]], place, length=len(half[0])
        )
    x, _, cut = rows[0]
    assert x["tokens"].tolist() == half[0] == tokens[: len(half[0])]
    assert cut.tolist() == half[1] == weights[: len(half[0])]
    assert len(rows) == 2


def test_sources_are_lists_files_and_data_sets(tmp_path):
    conversations = [{"chat": each} for each in CONVERSATIONS.values()]
    file = tmp_path / "chats.jsonl"
    file.write_text("\n".join(map(json.dumps, conversations)) + "\n\n", encoding="utf-8")
    place = folder(tmp_path, "chatml, marked")
    rows = [
        kd.data.chat(source, place, length=1024, messages="chat")
        for source in (conversations, iter(conversations), tuple(conversations), file, str(file))
    ]
    for other in rows[1:]:
        assert len(other) == len(rows[0])
        for one, two in zip(rows[0][0][0].values(), other[0][0].values(), strict=True):
            np.testing.assert_array_equal(one, two)


def test_templates_are_found_as_transformers_finds_them(tmp_path):
    place = folder(tmp_path, None)
    with pytest.raises(DataError, match="has no chat template"):
        kd.data.chat([CONVERSATIONS["two turns"]], place)
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": TEMPLATES["mistral"]}]
    config = json.loads((place / "tokenizer_config.json").read_text())
    (place / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": named}))
    expected = {name: RECORDED["expected"][name]["two turns"]["tokens"] for name in ("mistral", "chatml, marked")}
    assert only(kd.data.chat([CONVERSATIONS["two turns"]], place))[0] == expected["mistral"]
    (place / "chat_template.jinja").write_text(TEMPLATES["chatml, marked"])
    assert only(kd.data.chat([CONVERSATIONS["two turns"]], place))[0] == expected["chatml, marked"]
    given = kd.data.chat([CONVERSATIONS["two turns"]], place, template=TEMPLATES["mistral"])
    assert only(given)[0] == expected["mistral"]


STRIPPED = (
    "{% for m in messages %}{{ m.role }}{% if m.role == 'assistant' and loop.last %} <think>{% endif %}"
    " {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant{% endif %}"
)


def test_answers_that_are_rendered_otherwise_in_the_middle_are_an_error(tmp_path):
    """As by templates that leave out the thoughts of earlier answers."""
    place, conversation = folder(tmp_path), CONVERSATIONS["two turns"]
    kd.data.chat([conversation[:2]], place, template=STRIPPED)
    with pytest.raises(DataError, match=r"(?s)another way than what follows.*message 1 of conversation 1.*generation"):
        kd.data.chat([conversation[:2], conversation], place, template=STRIPPED)
    marked = STRIPPED.replace("{{ m.content }}", "{% generation %}{{ m.content }}{% endgeneration %}")
    assert sum(only(kd.data.chat([conversation], place, template=marked))[1]) > 0


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__.os.system('touch ran') }}",
        "{% set _ = messages.append(1) %}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ messages[9].content.more }}",
        "{{ raise_exception('no') }}",
    ],
)
def test_templates_run_in_a_sandbox(tmp_path, monkeypatch, template):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="template cannot render conversation 0"):
        kd.data.chat([CONVERSATIONS["two turns"]], folder(tmp_path), template=template)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([[]], "conversation 0 must be a list of messages"),
        ([{"text": "a"}], "conversation 0 must be a list of messages, or a dict with them as 'messages'"),
        (["words"], "conversation 0 must be a list"),
        ([[{"content": "a"}]], "conversation 0 must be a list"),
        ([CONVERSATIONS["two turns"], [1]], "conversation 1 must be a list"),
        ([[{"role": "user", "content": "\ue0f0"}]], "has a character U.E0F0"),
        ("nowhere.jsonl", "'nowhere.jsonl' cannot be read"),
    ],
)
def test_what_is_no_conversation_is_an_error(tmp_path, source, message):
    with pytest.raises(DataError, match=message):
        kd.data.chat(source, folder(tmp_path))


def test_files_and_arguments_that_cannot_be_used_are_errors(tmp_path):
    place, conversations = folder(tmp_path), [CONVERSATIONS["two turns"]]
    unreadable = tmp_path / "unreadable"
    unreadable.mkdir()
    (unreadable / "chat_template.jinja").write_bytes(b"\xff")
    cases = {
        "line 2 of .* is not JSON": lambda: kd.data.chat(tmp_path / "a.jsonl", place, messages="x"),
        "`length` must be": lambda: kd.data.chat(conversations, place, length=1),
        "`train_on` must be": lambda: kd.data.chat(conversations, place, train_on="user"),
        "the template cannot be compiled": lambda: kd.data.chat(conversations, place, template="{% if %}"),
        "`template` must be a text of at most 1 MiB": lambda: kd.data.chat(conversations, place, template="a" * 2**21),
        "chat_template.jinja' cannot be read": lambda: kd.data.chat(conversations, folder(unreadable)),
        "tokenizer.json' cannot be read": lambda: kd.data.chat(conversations, tmp_path / "nowhere"),
    }
    (tmp_path / "a.jsonl").write_text('[{"role": "user", "content": "a"}]\n{')
    for message, call in cases.items():
        with pytest.raises(DataError, match=message):
            call()


def test_without_an_answer_there_are_no_rows(tmp_path):
    with pytest.warns(UserWarning, match=r"of 2 conversations, .* 2 left out"), pytest.raises(DataError):
        kd.data.chat([CONVERSATIONS["two turns"][:1]] * 2, folder(tmp_path))


def test_a_decoder_is_trained_on_answers(tmp_path):
    """The loss is that of the tokens of answers alone, by hand from the logits."""
    attention = AttentionConfig(num_heads=2, num_kv_heads=2, head_dim=8)
    sizes = {"vocab_size": 384, "hidden_size": 16, "num_layers": 1, "initializer_range": 0.5}
    decoder = Decoder(DecoderConfig(family="llama", **sizes, attention=attention, feed_forward=FeedForwardConfig(8)))
    decoder.compile("adam", "causal_lm")
    rows = kd.data.chat([CONVERSATIONS["two turns"], CONVERSATIONS["signs"]], folder(tmp_path), length=256)
    assert len(rows) == 1
    x, y, weights = (jax.tree.map(lambda each: each[None], part) for part in rows[0])
    found = decoder.evaluate(x, y, sample_weight=weights, verbose=0)
    logits = np.asarray(decoder(x), np.float64)[0]
    log = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    answers = [place for place in range(1, 256) if weights[0, place]]
    expected = -np.mean([log[place - 1, y[0, place]] for place in answers])
    np.testing.assert_allclose(found, expected, 1e-5)


@pytest.mark.parametrize("package", ["tokenizers", "jinja2"])
def test_an_absent_package_is_named(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match="pip install jinja2 tokenizers"):
        kd.data.chat([CONVERSATIONS["two turns"]], folder(tmp_path))
