"""Decoders with experts: their loss, both forms of files, layouts, generation, and slots in training."""

import dataclasses
import functools
import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_dist as kd
from keras_dist.errors import ConfigError, LayoutWarning, ModelError
from tests.pretrained.networks import FOLDER
from tests.pretrained.test_families import distribution_of, inputs_of

pytestmark = pytest.mark.filterwarnings("ignore:.*does not divide num_kv_heads")
AUXILIARY = {
    "mixtral": (2.046272039413452, 2.0134387016296387),
    "qwen3_moe": (2.060831069946289, 2.059593677520752),
    "qwen3_moe_dense": (2.1031970977783203, 2.104076862335205),
}
"""`aux_loss` of transformers 5.24 for the recorded tokens, without padding, and with the last three of row 1 as it."""


def model_on(distribution, family="mixtral", scan=False):
    with distribution.scope():
        return kd.pretrained.load(FOLDER / family, scan=scan)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("family", "scan"), [("mixtral", True), ("qwen3_moe", False), ("qwen3_moe_dense", False)])
def test_training_adds_the_loss_of_transformers_for_all_layers(family, scan):
    model, (tokens, _, _) = model_on(distribution_of("one device", family, scan), family, scan), inputs_of(family)
    segments = np.ones_like(tokens)
    segments[1, 9:] = 0
    for x, expected in zip((tokens, {"tokens": tokens, "segments": segments}), AUXILIARY[family], strict=True):
        model(x, training=True)
        np.testing.assert_allclose(model.losses, [model.config.experts.load_balancing * expected], rtol=1e-5)
    model(tokens)
    assert model.losses == []


@pytest.mark.slow
def test_training_is_equal_on_meshes():
    found = []
    for layout, scan in (("one device", False), ("megatron", False), ("megatron", True), ("fully sharded", True)):
        model = model_on(distribution_of(layout, "mixtral", scan), scan=scan)
        model.compile(kd.optimizers.SGD(0.5), "causal_lm")
        x = np.tile(inputs_of("mixtral")[0], (4, 1))
        found.append([float(model.train_on_batch(x, x)) for _ in range(2)])
    assert found[0][1] < found[0][0]
    np.testing.assert_allclose(found, [found[0]] * 4, rtol=1e-5)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe_dense"])
def test_files_with_one_array_for_all_experts_are_loaded(family, tmp_path):
    arrays = load_file(FOLDER / family / "model.safetensors")
    joined = {
        name.replace("block_sparse_moe", "mlp"): array for name, array in arrays.items() if ".experts." not in name
    }
    first, second, third = ("w1", "w3", "w2") if family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    for layer in {name.partition(".experts.")[0] for name in arrays if ".experts." in name}:
        gate, up, down = (
            np.stack([arrays[f"{layer}.experts.{expert}.{part}.weight"] for expert in range(4)])
            for part in (first, second, third)
        )
        place = f"{layer.replace('block_sparse_moe', 'mlp')}.experts"
        joined |= {f"{place}.gate_up_proj": np.concatenate([gate, up], axis=1), f"{place}.down_proj": down}
    save_file(joined, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((FOLDER / family / "config.json").read_bytes())
    x, expected, _ = inputs_of(family)
    for scan in (False, True) if family == "mixtral" else (False,):
        with distribution_of("one device", family, scan).scope():
            np.testing.assert_allclose(kd.pretrained.load(tmp_path, scan=scan)(x), expected, atol=1e-4)


@pytest.mark.slow
def test_generation_on_a_mesh_equals_recomputing():
    prompts = [row.tolist() for row in inputs_of("mixtral")[0]]
    for scan in (False, True):
        model = model_on(distribution_of("megatron", "mixtral", scan), scan=scan)
        found = kd.generate(model, prompts, max_new_tokens=3)
        rows = np.concatenate([prompts, found], axis=1)
        logits = np.asarray(model(rows))[:, 11:-1]
        np.testing.assert_array_equal(found, logits.argmax(-1))


def test_choices_without_a_slot_are_dropped_in_training_alone():
    with distribution_of("one device", "mixtral", False).scope():
        model = kd.pretrained.load(FOLDER / "mixtral", capacity_factor=0.5)
    x, expected, _ = inputs_of("mixtral")
    np.testing.assert_allclose(model(x), expected, atol=1e-4)
    assert np.abs(np.asarray(model(x, training=True)) - expected).max() > 0.1
    with pytest.raises(ModelError, match="`capacity_factor` is for experts, and 'llama' has none"):
        kd.pretrained.describe(FOLDER / "llama", capacity_factor=1.0)


def test_rules_give_experts_an_axis(tmp_path):
    def axes(spec, config=FOLDER / "mixtral", **options):
        rules = kd.pretrained.rules(config, kd.DeviceMesh(spec), **options)
        start = "layers/feed_forward" if options.get("scan") else "layers/1/feed_forward"
        return [rules[f"{start}/{name}"].axes for name in ("experts_up", "experts_down", "router")]

    assert axes("data=4,model=2") == [("model", None, None), ("model", None, None), (None, None)]
    assert axes("data=2,expert=2,model=2") == [("expert", None, "model"), ("expert", "model", None), (None, None)]
    assert axes("stage=2,expert=4", scan=True, axis="expert", stage="stage")[0] == ("stage", "expert", None, None)
    config = kd.pretrained.describe(FOLDER / "mixtral").config
    three = dataclasses.replace(config, experts=dataclasses.replace(config.experts, num_experts=3))
    with pytest.warns(LayoutWarning, match="axis 'model' of size 2 does not divide num_experts=3: these dims are repl"):
        assert axes("data=4,model=2", three)[:2] == [(None, None, "model"), (None, "model", None)]


def plan_on(spec, batch):
    mesh, tokens = kd.DeviceMesh(spec), np.zeros((8, 12), "int32")
    rules = kd.pretrained.rules(FOLDER / "mixtral", mesh, scan=True)
    network = functools.partial(kd.pretrained.describe, FOLDER / "mixtral", scan=True)
    return kd.plan(network, (tokens, tokens), kd.ModelParallel(rules, batch, strict=True), loss="causal_lm")


@pytest.mark.slow
def test_tokens_are_exchanged_and_experts_are_not_gathered():
    report = plan_on("data=2,expert=2,model=2", ("data", "expert"))
    assert "4 experts over expert, with 12 slots of each for the 12 tokens of a row" in report.kernels
    assert ("all_to_all", ("expert",)) in report.step.nbytes_by_axes() and not report.problems
    summed = plan_on("data=4,model=2", "data").step.nbytes_by_axes()
    assert {kind for kind, _ in summed} == {"all_reduce"}  # of tokens; neither weights nor slots are gathered


def test_layers_that_differ_are_not_stacked_and_wrong_options_are_listed(tmp_path):
    with pytest.raises(ModelError, match=r"(?s)without cannot be stacked.*in the layers \[0, 1, 2\].*scan=False"):
        kd.pretrained.describe(FOLDER / "qwen3_moe_dense", scan=True)
    document = json.loads((FOLDER / "mixtral" / "config.json").read_text())
    wrong = {"num_experts_per_tok": 5, "router_jitter_noise": 0.1, "attention_bias": True, "num_local_experts": 0}
    (tmp_path / "config.json").write_text(json.dumps(document | wrong))
    with pytest.raises(ConfigError) as caught:
        kd.pretrained.describe(tmp_path)
    for said in ("attention_bias=True", "num_local_experts=0 must be"):
        assert said in caught.value.given
    (tmp_path / "config.json").write_text(json.dumps(document | {"num_experts_per_tok": 5}))
    with pytest.raises(ConfigError, match=re.escape("num_experts_per_tok=5 must be at most num_local_experts=4")):
        kd.pretrained.describe(tmp_path)
    config = kd.pretrained.describe(FOLDER / "mixtral").config
    with pytest.raises(
        ConfigError, match=r"capacity_factor=0 must be.*dense_layers=\[7\] must be below num_layers=2|dense_l"
    ):
        dataclasses.replace(config, experts=dataclasses.replace(config.experts, dense_layers=(7,), capacity_factor=0))


def test_all_wrong_entries_about_experts_are_listed(tmp_path):
    def given(family, **entries):
        document = json.loads((FOLDER / family / "config.json").read_text())
        document = {key: value for key, value in (document | entries).items() if value != "left out"}
        (tmp_path / "config.json").write_text(json.dumps(document))
        return kd.pretrained.describe(tmp_path).config.experts

    wrong = {"decoder_sparse_step": 0, "num_experts_per_tok": 5, "norm_topk_prob": 3}
    for layers in ([7], [-1], ["0"], 1, "all", [True]):
        with pytest.raises(ConfigError) as caught:
            given("qwen3_moe", **wrong, mlp_only_layers=layers)
        for said in ("decoder_sparse_step=0 must be a positive integer", f"mlp_only_layers={layers} must be a list of"):
            assert said.replace("=all", "='all'") in caught.value.given
        assert "norm_topk_prob=3 must be true or false" in caught.value.given
    with pytest.raises(ConfigError, match=r"decoder_sparse_step='2' must.*num_experts_per_tok=5 must be at most"):
        given("qwen3_moe", decoder_sparse_step="2", num_experts_per_tok=5)
    with pytest.raises(ConfigError, match="num_local_experts=4 and num_experts=8 must be equal"):
        given("qwen3_moe", num_local_experts=4, num_experts=8)
    assert given("qwen3_moe", mlp_only_layers=[1], decoder_sparse_step="left out").dense_layers == (1,)
    assert given("mixtral", num_local_experts="left out", num_experts=6).num_experts == 6  # an alias in transformers
    with pytest.raises(ConfigError, match="num_local_experts=4 and num_experts=6 must be equal"):
        given("mixtral", num_experts=6)
    with pytest.raises(ConfigError, match="num_experts_per_tok=7 must be at most num_experts=6"):
        given("mixtral", num_local_experts="left out", num_experts=6, num_experts_per_tok=7)


@pytest.mark.slow
def test_a_plan_with_slots_names_those_of_training_alone():
    mesh, tokens = kd.DeviceMesh("data=2,expert=4"), np.zeros((8, 12), "int32")
    network = functools.partial(kd.pretrained.describe, FOLDER / "mixtral", capacity_factor=0.5)
    strategy = kd.ModelParallel(kd.pretrained.rules(FOLDER / "mixtral", mesh), ("data", "expert"))
    report = kd.plan(network, (tokens, tokens), strategy, loss="causal_lm")
    assert [note for note in report.kernels if "experts" in note] == [
        "4 experts over expert, with 3 slots of each for the 12 tokens of a row"
    ]


def test_a_network_with_slots_is_saved(tmp_path):
    with distribution_of("one device", "mixtral", False).scope():
        model = kd.pretrained.load(FOLDER / "mixtral", capacity_factor=2.0)
    kd.pretrained.save(model, tmp_path / "files")
    assert kd.pretrained.describe(tmp_path / "files").config.experts.capacity_factor is None
    model.save(tmp_path / "model")
    assert kd.models.load_model(tmp_path / "model").config == model.config
