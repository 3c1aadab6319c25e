"""The layout rules of a network: those that presets find in the traced step, by names."""

import warnings

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import DistributionError, LayoutWarning, ModelError
from tests.pretrained.networks import FOLDER

TOKENS = np.zeros((8, 12), "int32")
LOSS = kd.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture(scope="module")
def mesh():
    return kd.DeviceMesh("data=2,model=4")


def layouts(rules, paths):
    """Return axes by path; None for replicated weights."""
    found = {path: rules[path].axes if rules[path] is not None else () for path in paths}
    return {path: axes if any(axes) else None for path, axes in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "scan"), [("mistral", False), ("gemma2", True), ("gpt2", False), ("phi3", True)])
def test_rules_are_those_that_presets_find_in_the_step(family, scan, mesh):
    def network():
        return kd.pretrained.describe(FOLDER / family, scan=scan)

    found = kd.presets.tensor_parallel(network, (TOKENS, TOKENS), mesh, loss=LOSS)
    rules = kd.pretrained.rules(FOLDER / family, mesh, scan=scan)
    report = kd.plan(network, (TOKENS, TOKENS), kd.ModelParallel(rules, strict=True), loss=LOSS)
    paths = [row.path for row in report.state.rows if row.role == "parameter"]
    assert layouts(rules, paths) == layouts(found.layout_map, paths)
    assert {row.path for row in report.state.rows if row.role == "parameter" and row.rule is None} == set()


@pytest.mark.slow
def test_factors_of_lora_are_planned_and_need_no_rules(mesh, recwarn):
    def network():
        model = kd.pretrained.describe(FOLDER / "mistral")
        model.enable_lora(rank=2, layers=".*/(query|down)")
        return model

    step = {"optimizer": "adam", "loss": "causal_lm"}
    found = kd.presets.tensor_parallel(network, (TOKENS, TOKENS), mesh, **step)
    assert not any("lora" in rule for rule, _ in found.layout_map.snapshot())
    report = kd.plan(network, (TOKENS, TOKENS), found, **step)
    rows = {row.path: row for row in report.state.rows}
    assert rows["layers/0/attention/query/lora_kernel_b"].axes == (None, "model", None)
    assert rows["layers/1/feed_forward/down/lora_kernel_a"].axes == ("model", None)
    assert {row.path.partition("lora")[1] for row in report.state.rows if row.role == "slot" and row.shape} == {"lora"}
    assert not recwarn.list


def test_heads_that_do_not_divide_are_named_and_sharded_by_another_dim_or_replicated(mesh):
    with pytest.warns(
        LayoutWarning, match=r"axis 'model' of size 4 does not divide num_kv_heads=2: head_dim=8 is shard"
    ):
        rules = kd.pretrained.rules(FOLDER / "llama", mesh)
    assert rules["layers/1/attention/query/kernel"].axes == (None, "model", None)
    assert rules["layers/1/attention/key/kernel"].axes == (None, None, "model")
    wide = kd.DeviceMesh("data=1,model=8")
    with pytest.warns(LayoutWarning, match="num_heads=4, num_kv_heads=4"):
        rules = kd.pretrained.rules(FOLDER / "mistral", wide)
    assert rules["layers/0/attention/output/kernel"].axes == (None, None, None)
    assert rules["layers/0/feed_forward/up/kernel"].axes == (None, "model")


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("scan", [False, True])
def test_an_odd_vocabulary_and_one_head_of_keys_are_sharded_by_other_dims(scan, tied, mesh):
    rotary = kd.pretrained.Rotary()
    heads = kd.pretrained.AttentionConfig(num_heads=4, num_kv_heads=1, head_dim=8, use_bias=True, rotary=rotary)
    sizes = {"vocab_size": 67, "hidden_size": 16, "num_layers": 2, "feed_forward": kd.pretrained.FeedForwardConfig(24)}
    options = {"family": "llama", "attention": heads, "tied_head": tied, "initializer_range": 0.3}
    config = kd.pretrained.DecoderConfig(**sizes, **options)
    with pytest.warns(LayoutWarning) as caught:
        rules = kd.pretrained.rules(config, mesh, scan=scan)
    assert [str(each.message).partition(": ")[2] for each in caught] == [
        "head_dim=8 is sharded instead",
        "hidden_size=16 is sharded instead",
    ]
    tokens = np.random.default_rng(0).integers(0, 67, (4, 9)).astype("int32")
    found, weights = [], {}
    for layout in (kd.DataParallel(devices=["cpu:0"]), kd.ModelParallel(rules, "data", strict=True)):
        with layout.scope():
            model = kd.pretrained.Decoder(config, scan=scan)
            model.build()
        for weight in model.weights:
            weight.assign(weights.setdefault(weight.path, weight.numpy()))
        logits, made = np.asarray(model(tokens)), kd.generate(model, tokens[:, :4], 5)
        model.compile("sgd", "causal_lm")
        found.append((logits, made, [float(model.train_on_batch(tokens, np.roll(tokens, -1, 1))) for _ in range(3)]))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[1][2], found[0][2], rtol=1e-5)
    assert found[1][1] == found[0][1]
    whole = {row.path for row in model.layout_plan.rows if len(row.shape) > 1 and not any(row.axes)}
    assert not any("kernel" in path or "embeddings" in path for path in whole), whole


def test_a_network_tells_whether_it_is_stacked(mesh):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = kd.pretrained.describe(FOLDER / "mistral", scan=True)
        by_model, by_config = kd.pretrained.rules(model, mesh), kd.pretrained.rules(model.config, mesh, "data")
    assert by_model["layers/attention/query/kernel"].axes == (None, None, "model", None)
    assert by_config["layers/0/attention/query/kernel"].axes == (None, "data", None)


def test_other_networks_and_axes_are_refused(mesh):
    with pytest.raises(ModelError, match="`network` must be a network of"):
        kd.pretrained.rules(kd.Sequential([]), mesh)
    with pytest.raises(DistributionError, match="mdl"):
        kd.pretrained.rules(FOLDER / "mistral", mesh, "mdl")


def test_stages_shard_the_vocabulary_outside_of_the_pipeline():
    mesh = kd.DeviceMesh("data=2,stage=4")
    rules = kd.pretrained.rules(FOLDER / "mistral", mesh, scan=True, stage="stage")
    assert rules["layers/attention/query/kernel"].axes[0] == "stage"
    assert rules["embedding/embeddings"].axes == ("stage", None) and rules["head/kernel"].axes == (None, "stage")
    both = kd.pretrained.rules(FOLDER / "mistral", mesh, "data", scan=True, stage="stage")
    assert both["embedding/embeddings"].axes == ("data", None)


def test_an_axis_of_experts_alone_shards_nothing_else():
    config = kd.pretrained.describe(FOLDER / "mixtral").config
    rules = kd.pretrained.rules(config, kd.DeviceMesh("data=2,expert=4"))
    assert {axis for layout in rules.values() for axis in layout.axes} == {None, "expert"}
    assert all("expert" not in layout.axes for path, layout in rules.items() if "experts" not in path)
