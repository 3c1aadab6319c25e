"""Pairs of answers as examples, against what TRL 1.16 made of them."""

import json
import sys

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import DataError, MissingExtraError
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig
from tests.data import preference_recordings as of_trl
from tests.data.test_chat import folder

RECORDED = json.loads(of_trl.FILE.read_text())
PAIRS = RECORDED["messages"]["pairs"]
USER, GOOD, BAD = of_trl.USER, of_trl.GOOD, of_trl.BAD


class Bigrams(kd.Model):
    """Logits after each token, from a table."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.table = kd.layers.Embedding(of_trl.SIZE, of_trl.SIZE)

    def call(self, inputs):
        return self.table(inputs["tokens"])


@pytest.fixture(scope="module")
def model():
    found = Bigrams()
    found({"tokens": np.zeros((1, 2, 64), "int32")})
    found.set_weights([of_trl.network(of_trl.REFERENCE).astype("f4")])
    return found


def parts(pairs):
    """Tokens before the answers, and those of the answers, of each row."""
    for number in range(len(pairs)):
        x, y = pairs[number]
        for row in range(2):
            count = int(x["segments"][row].sum())
            tokens, targets = x["tokens"][row].tolist(), y["targets"][row]
            start = int((targets >= 0).argmax())
            assert targets.tolist() == [-100] * start + tokens[start:count] + [-100] * (len(tokens) - count)
            yield tokens[:start], tokens[start:count]


@pytest.mark.parametrize("name", list(RECORDED))
def test_tokens_and_losses_are_those_of_trl(tmp_path, model, name):
    expected = RECORDED[name]
    pairs = kd.data.preferences(expected["pairs"], folder(tmp_path), model)
    rows = [(each["prompt"], each[kind]) for each in expected["tokens"] for kind in ("chosen", "rejected")]
    assert list(parts(pairs)) == rows

    network = of_trl.network(of_trl.REFERENCE)
    logs = network - np.log(np.exp(network).sum(-1, keepdims=True))
    each = [logs[[prompt[-1], *answer[:-1]], answer].sum() for prompt, answer in rows]
    np.testing.assert_allclose(pairs.reference, np.reshape(each, (-1, 2)), rtol=1e-5)

    policy = Bigrams()
    policy({"tokens": np.zeros((1, 2, 64), "int32")})
    policy.set_weights([of_trl.network(of_trl.POLICY).astype("f4")])
    policy.compile("sgd", kd.losses.DPO(of_trl.BETA))
    found = policy.evaluate(pairs, verbose=0, return_dict=True)
    np.testing.assert_allclose([found[key] for key in found], [expected[key] for key in found], rtol=1e-5, atol=1e-5)


def test_marked_templates_train_no_answer_in_the_prompt_either(tmp_path, model):
    pairs = kd.data.preferences(PAIRS, folder(tmp_path, "chatml, marked"), model)
    recorded = [each[name][:-1] for each in RECORDED["messages"]["tokens"] for name in ("chosen", "rejected")]
    targets = [row[row >= 0].tolist() for number in range(2) for row in pairs[number][1]["targets"]]
    assert targets == recorded  # without the line break, which is not marked


def test_sources_are_lists_files_and_iterables(tmp_path, model):
    file, place = tmp_path / "pairs.jsonl", folder(tmp_path)
    file.write_text("\n".join(map(json.dumps, PAIRS)) + "\n\n", encoding="utf-8")
    found = [kd.data.preferences(source, place, model) for source in (PAIRS, iter(PAIRS), file, str(file))]
    for pairs in found[1:]:
        np.testing.assert_array_equal(pairs.reference, found[0].reference)
        assert list(parts(pairs)) == list(parts(found[0]))
    assert repr(found[0]) == "<2 pairs of rows of 128 tokens>"


def test_long_pairs_and_pairs_without_an_answer_are_left_out_and_counted(tmp_path, model):
    long, none = {"prompt": [USER], "chosen": [GOOD], "rejected": [{**BAD, "content": "a" * 300}]}, [USER]
    with pytest.warns(UserWarning, match=r"preferences: of 4 pairs, 2 are left out.*longer than 100 tokens"):
        pairs = kd.data.preferences(
            [PAIRS[0], long, {"chosen": none, "rejected": none}, PAIRS[1]], folder(tmp_path), model, length=100
        )
    assert list(parts(pairs)) == list(parts(kd.data.preferences(PAIRS, folder(tmp_path), model)))
    assert pairs[0][0]["tokens"].shape == (2, 100)
    with pytest.warns(UserWarning, match="1 are left out"), pytest.raises(DataError, match="no pair is left"):
        kd.data.preferences([long], folder(tmp_path), model, length=100)


@pytest.mark.parametrize(("mesh", "chunk_size"), [("data=8", 384), ("data=2,model=4", 40)])
def test_the_reference_is_equal_on_meshes_and_without_logits(tmp_path, monkeypatch, mesh, chunk_size):
    monkeypatch.setattr(sys.modules["keras_dist.data.preferences"], "CHUNK_SIZE", chunk_size)
    attention = AttentionConfig(num_heads=4, num_kv_heads=4, head_dim=4)
    sizes = {"vocab_size": 384, "hidden_size": 16, "num_layers": 1, "initializer_range": 0.5}
    config = DecoderConfig(family="llama", **sizes, attention=attention, feed_forward=FeedForwardConfig(16))
    found, place = [], folder(tmp_path)
    device_mesh = kd.DeviceMesh(mesh)
    rules = kd.pretrained.rules(config, device_mesh) if "model" in mesh else kd.LayoutMap(device_mesh)
    sharded = kd.ModelParallel(rules, "data")
    for distribution in (kd.DataParallel(devices=["cpu:0"]), sharded):
        kd.set_random_seed(0)
        with distribution.scope():
            decoder = Decoder(config)
        pairs = kd.data.preferences([*PAIRS, *PAIRS[:1]], place, decoder, batch_size=1 + len(found))
        found.append(pairs.reference)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
    logits = np.asarray(decoder(pairs[1][0]["tokens"][1:]), np.float64)[0]
    log = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    targets = pairs[1][1]["targets"][1]
    expected = sum(log[place - 1, targets[place]] for place in np.flatnonzero(targets >= 0))
    np.testing.assert_allclose(found[1][1, 1], expected, rtol=1e-5)
    assert found[0][0].tolist() == found[0][2].tolist()


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([1], "pair 0 must be a dict of three texts or three lists"),
        ([PAIRS[0], {"chosen": [GOOD]}], "pair 1 must be a dict"),
        ([{"chosen": "a", "rejected": [BAD]}], "pair 0 must be a dict"),
        ([{"prompt": "a", "chosen": [GOOD], "rejected": [BAD]}], r"(?s)pair 0 must.*`prompt` is optional"),
        ([{"prompt": "a", "chosen": "\ue0f0", "rejected": "b"}], "pair 0 has a character U.E0F0"),
        ([], "no pair is left"),
        ("nowhere.jsonl", "'nowhere.jsonl' cannot be read"),
    ],
)
def test_what_is_no_pair_is_an_error(tmp_path, model, pairs, message):
    with pytest.raises(DataError, match=message):
        kd.data.preferences(pairs, folder(tmp_path), model)


def test_mistakes_in_arguments(tmp_path, model, monkeypatch):
    place = folder(tmp_path)
    for options in ({"length": 1}, {"batch_size": 0}, {"model": "gpt"}):
        with pytest.raises(DataError, match=f"`{next(iter(options))}` must be"):
            kd.data.preferences(PAIRS, place, **{"model": model, **options})
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match="`preferences` needs the package tokenizers"):
        kd.data.preferences(PAIRS, place, model)
