"""Remedies: code with all rules, found by trying, that restores the good layout when it is pasted."""

import dataclasses
import functools
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist.errors import DataError
from keras_dist.planner import remedies
from keras_dist.planner.logical_rules import edited_rules
from keras_dist.planner.propagation import propagate
from keras_dist.planner.search_result import code_of, options_of, toml_of
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig, Rotary
from keras_dist.pretrained import rules as rules_of
from tests.planner.mistakes import (
    BLOCK,
    CAUSES,
    CONFIG,
    DOWN,
    EMBEDDING,
    GATE_UP,
    GOOD,
    MISTAKES,
    distribution,
    mistaken,
    program,
    report,
    without,
)
from tests.soak import LARGE, few
from tests.training.test_split_weights import Mixture, X


def figures(found):
    """Bytes moved, FLOPs, and bytes of the state on one device."""
    moved = sum(each.nbytes_per_step for each in found.step.collectives)
    return moved, found.step.flops, found.state.nbytes_per_device


def pasted(found):
    names = {"kd": kd, "mesh": found.state.mesh}
    exec(found.problems[0].fix, names)
    return names["distribution"]


@pytest.fixture(autouse=True)
def on_a_busy_machine(monkeypatch):
    monkeypatch.setattr(remedies, "_MOST_SECONDS", 3600.0)


@pytest.fixture(scope="module")
def good():
    return report(distribution(GOOD))


def test_a_good_layout_has_no_problems(good):
    assert good.problems == ()


@functools.cache
def planned(name):
    return report(mistaken(name))


_OFTEN = ["down transposed", "gate and up in half of the layers", "down over the wrong axis", "head whole"]
_OFTEN += ["rule that matches too much", "batch whole", "outputs whole"]
_OTHERS = [pytest.param(name, marks=pytest.mark.soak) for name in MISTAKES if LARGE and name not in _OFTEN]


@pytest.mark.parametrize("name", [*few(_OFTEN, "head whole"), *_OTHERS])
def test_the_pasted_remedy_restores_the_good_layout(name, good):
    found = planned(name)
    cause = found.problems[0]
    assert cause.kind == "cause"
    assert name not in CAUSES or CAUSES[name] & set(cause.path.split("/")), cause.path
    restored = report(pasted(found))
    assert figures(restored) == pytest.approx(figures(good), rel=0.05)
    assert restored.problems == ()
    assert len(restored.state.rules) <= len(GOOD) + 1


@pytest.mark.slow
def test_stacked_blocks():
    layout_map = kd.pretrained.rules(CONFIG, kd.DeviceMesh("data=2,model=4"), scan=True)
    fits = report(kd.ModelParallel(layout_map, "data"), scan=True)
    del layout_map["layers/feed_forward/down/kernel"]
    found = report(kd.ModelParallel(layout_map, "data"), scan=True)
    assert found.problems[0].path == "layers/feed_forward/down/kernel"
    assert figures(report(pasted(found), scan=True)) == pytest.approx(figures(fits), rel=0.05)


@pytest.mark.slow
def test_a_search_is_bounded(monkeypatch):
    traced = program(mistaken("head whole"))
    step = propagate(traced.lowered)
    monkeypatch.setattr(remedies, "MOST_TRIED", 0)
    assert remedies.find_remedy(traced, step, program, code_of) is None
    monkeypatch.setattr(remedies, "MOST_TRIED", 64)
    monkeypatch.setattr(remedies, "_MOST_SECONDS", -1.0)
    assert remedies.find_remedy(traced, step, program, code_of) is None


@pytest.mark.slow
@pytest.mark.parametrize("outcome", ["the same", "refused"])
def test_rules_that_do_not_cost_less_in_the_step_itself_are_no_remedy(outcome):
    traced = program(mistaken("head whole"))

    def made(distribution):
        if outcome == "refused":
            raise DataError("the micro-batches do not divide the batch")
        return traced

    assert remedies.find_remedy(traced, propagate(traced.lowered), made, code_of) is None


def of_experts(distribution, rows=8):
    """The plan of a mixture of experts after a layer, whose exchanges follow from constraints of activations."""

    def factory():
        experts = kd.layers.MixtureOfExperts(4, 10, z_loss=0.01, name="moe")
        before = [kd.layers.Dense(12, name="wide"), kd.layers.Dense(6, name="before")]
        return kd.Sequential([kd.Input((12, 6)), *before, experts])

    x = np.zeros((rows, 12, 6), "float32")
    return kd.plan(factory, (x, x), distribution, "sgd", "mse")


@pytest.mark.slow
def test_the_costs_of_a_remedy_for_experts_are_of_its_plan():
    layout_map = kd.LayoutMap(kd.DeviceMesh("data=2,expert=4"))
    layout_map["moe/experts_(gate|down)"] = ("expert", None, None)
    found = of_experts(kd.ModelParallel(layout_map, ("data", "expert")))
    assert (found.problems[0].kind, found.problems[0].path) == ("cause", "moe/experts_up")
    assert pasted(found).layout_map["moe/experts_(gate|down)"].axes == ("expert", None, None), "the right rule stays"
    after = of_experts(pasted(found))
    assert figures(after)[2] < figures(found)[2] and figures(after)[1] <= figures(found)[1]
    assert f"# after: {remedies.Figures(*figures(after))}" in found.problems[0].fix


@pytest.mark.slow
def test_a_batch_is_sharded_over_an_axis_that_only_experts_use():
    layout_map = kd.LayoutMap(kd.DeviceMesh("data=2,expert=4"))
    layout_map["moe/experts_.*"] = ("expert", None, None)
    found = of_experts(kd.ModelParallel(layout_map, "data"), rows=256)
    cause, *others = found.problems
    assert (cause.kind, cause.path) == ("cause", "input/x") and {each.kind for each in others} == {"repeated"}
    restored = pasted(found)
    assert restored.batch_dim_name == ("data", "expert") and not of_experts(restored, rows=256).problems


def test_no_axis_is_tried_twice_in_the_layout_of_a_batch():
    rules = {"input/x": (None, "model"), "up/kernel": (None, None)}
    mlp = [kd.layers.Dense(size, name=name) for size, name in ((256, "up"), (64, "down"))]
    x = np.zeros((8, 64), "float32")
    found = kd.plan(kd.Sequential([kd.Input((64,)), *mlp]), (x, x), distribution(rules), "sgd", "mse")
    assert found.batch.row("input/x").axes[1] == "model"
    assert "repeated" in {problem.kind for problem in found.problems}


@pytest.mark.slow
def test_code_keeps_the_axis_of_positions():
    traced = program(distribution(GOOD, sequence_axis="model"))
    search = remedies._Search(traced, propagate(traced.lowered))
    restored = search.distribution_of({row.path: row.axes for row in (*traced.state.rows, *traced.batch.rows)})
    names = {"kd": kd, "mesh": traced.state.mesh}
    exec(code_of(restored), names)
    assert names["distribution"].sequence_axis == restored.sequence_axis == "model"


def test_repeated_work_is_a_problem(good):
    cause, repeated, whole = planned("head whole").problems
    assert "the cause is the layout of 'head/kernel'" in cause.summary
    assert (repeated.kind, repeated.path) == ("repeated", "head")
    assert (whole.kind, whole.path) == ("whole", "head/kernel")
    assert "the 4 devices along 'model' compute the same in 'head'" in repeated.summary
    # a head of 64 x 512 against four layers of 36,864 parameters each, and scores of 32 x 32
    assert repeated.given.startswith("1.33 times the FLOPs")
    assert f"{good.step.flops:,} FLOPs" in repeated.expected


def test_text_and_html_show_the_code(tmp_path):
    found = planned("head whole")
    fix = found.problems[0].fix
    assert fix in str(found) and str(found).count(fix) == 1
    assert "# before: " in fix and "# after: " in fix
    found.to_html(tmp_path / "plan.html")
    text = (tmp_path / "plan.html").read_text()
    assert "rules = kd.LayoutMap(mesh)\n" in text and "white-space: pre-line" in text
    assert text.count("rules = kd.LayoutMap(mesh)\n") == 1
    between = dataclasses.replace(found.problems[1], fix="another")
    mixed = dataclasses.replace(found, problems=(found.problems[0], between, found.problems[1]))
    assert str(mixed).count(fix) == 1 and "another" in str(mixed)


@pytest.mark.slow
def test_weights_left_whole_beside_split_partners_are_told():
    found = planned("keys and values whole")
    whole = [problem for problem in found.problems if problem.kind == "whole"]
    assert {problem.path.split("/")[-2] for problem in whole} == {"key", "value"}
    assert all("and 3 like it is whole along 'model'" in problem.summary for problem in whole)


@pytest.mark.slow
def test_a_large_weight_left_whole_is_told():
    cause, whole = report(distribution(without(EMBEDDING))).problems
    assert cause.path == whole.path == EMBEDDING and whole.kind == "whole"
    assert f"rules[{EMBEDDING!r}] = ('model', None)" in cause.fix


class Fused(nnx.Module):
    """Attention with one product for queries, keys and values, whose slices do not follow the shards."""

    def __init__(self, rngs):
        self.qkv, self.out = nnx.Linear(64, 192, rngs=rngs), nnx.Linear(64, 64, rngs=rngs)
        self.head = nnx.Linear(64, 512, rngs=rngs)

    def __call__(self, x):
        heads = (part.reshape(*x.shape[:2], 4, 16) for part in jnp.split(self.qkv(x), 3, axis=-1))
        return self.head(self.out(jax.nn.dot_product_attention(*heads).reshape(x.shape)))


def test_costs_after_a_remedy_are_of_its_plan_also_for_convolutions():
    layout_map = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    layout_map["c1/kernel"] = layout_map["c2/kernel"] = (None, None, None, "model")
    convolutions = [kd.layers.Conv2D(32, 3, padding="same", name=name) for name in ("c1", "c2")]
    x = np.zeros((16, 8, 8, 8), "float32")
    found = kd.plan(kd.Sequential([kd.Input((8, 8, 8)), *convolutions]), x, kd.ModelParallel(layout_map, "data"))
    after = kd.plan(kd.Sequential([kd.Input((8, 8, 8)), *convolutions]), x, pasted(found))
    moved, flops, _ = figures(after)
    assert flops <= 1.01 * figures(found)[1] and moved < figures(found)[0]


@pytest.mark.slow
def test_little_repeated_work_without_a_remedy_is_no_problem():
    mesh = kd.DeviceMesh("data=2,model=4")
    attention = AttentionConfig(num_heads=8, num_kv_heads=4, head_dim=16, rotary=Rotary())
    sizes = {"vocab_size": 4096, "hidden_size": 64, "num_layers": 4, "feed_forward": FeedForwardConfig(128)}
    config = DecoderConfig(family="llama", attention=attention, **sizes)
    with kd.ModelParallel(rules_of(config, mesh), "data").scope():
        model = Decoder(config)
    model.enable_lora(8, ".*(query|value|up)")
    model.compile("adam", "causal_lm")
    tokens = np.zeros((32, 16), "int32")
    found = model.plan(tokens, tokens)
    more = sum(each.flops for each in found.step.repeated) * 3 // 4 / found.step.flops
    assert 0.04 < more < 0.1 and not found.problems, "the factors of rank 8 are computed on each device"


def test_a_remedy_for_something_else_is_not_the_cause():
    x = jax.ShapeDtypeStruct((32, 16, 64), "float32"), jax.ShapeDtypeStruct((32, 16, 512), "float32")
    rules = {"qkv/kernel": (None, "model"), "out/kernel": ("model", None), "head/kernel": (None, "model")}
    found = kd.plan(Fused, x, distribution(rules), "adam", "mse")  # a bias of the head is whole
    assert [problem.kind for problem in found.problems] == ["reshard"]


@pytest.mark.filterwarnings("ignore:a shard_map of the module")
def test_experts_that_shard_map_splits_and_no_rule_shards():
    layout_map = kd.LayoutMap(kd.DeviceMesh("data=2,expert=4"))
    found = kd.plan(lambda: kd.Model.from_nnx(Mixture, seed=0), (X, X), kd.ModelParallel(layout_map), "sgd", "mse")
    assert {"experts", "stages"} <= {problem.path for problem in found.problems if problem.kind == "whole"}
    restored = pasted(found).layout_map
    assert restored["experts"].axes == ("expert", None, None) and restored["stages"].axes == (None, None, "expert")


@pytest.mark.parametrize(
    ("rules", "changes", "expected"),
    [
        ({DOWN: (None, "model")}, {DOWN: ("model", None)}, {DOWN: ("model", None)}),
        ({DOWN.replace(r"\d+", "[01]"): ("model", None)}, {DOWN: ("model", None)}, {DOWN: ("model", None)}),
        ({"layers/2/feed_forward/down/kernel": ("model", None)}, {DOWN: ("model", None)}, {DOWN: ("model", None)}),
        ({DOWN: ("model", None)}, {DOWN: (None, None)}, {}),
        ({"typo": (None,)}, {}, {}),
        ({".*/gate/kernel": (None, "model")}, {}, {".*/gate/kernel": (None, "model")}),
        ({".*/down/kernel": (None, "model")}, {DOWN: ("model", None)}, {".*/down/kernel": ("model", None)}),
        (
            {BLOCK + "feed_forward/.*kernel": (None, "model")},
            {DOWN: ("model", None)},
            {DOWN: ("model", None)} | {GATE_UP.replace("(gate|up)", name): (None, "model") for name in ("gate", "up")},
        ),
        (
            {GATE_UP: (None, "model"), ".*/output": (None,)},
            {DOWN: ("model", None)},
            {GATE_UP: (None, "model"), ".*/output": (None,), DOWN: ("model", None)},
        ),
    ],
    ids=["transposed", "half", "one", "dropped", "dead", "same text", "changed text", "too much", "kept"],
)
@pytest.mark.filterwarnings("ignore:.*no effect")
def test_edited_rules(rules, changes, expected):
    """Rules are kept, changed, extended to all blocks or replaced, whichever gives the fewest."""
    shapes = {"gate": (64, 256), "up": (64, 256), "down": (256, 64)}
    tree = {
        "layers": [
            {"feed_forward": {name: {"kernel": np.zeros(shape, "float32")} for name, shape in shapes.items()}}
            for _ in range(4)
        ]
    }
    plan = distribution(rules).plan(tree)
    after = {f"layers/{i}/feed_forward/down/kernel": axes for axes in changes.values() for i in range(4)}
    found = edited_rules(distribution(rules).layout_map, plan.rows, after)
    assert {rule: layout.axes for rule, layout in found.snapshot()} == expected


def test_lines_of_a_config_keep_the_options_of_the_strategy():
    mesh = kd.DeviceMesh("data=2,model=4")
    rules = kd.LayoutMap(mesh)
    rules["up/kernel"] = (None, "model")
    for made in (
        kd.ModelParallel(rules, "data", sequence_axis="model", strict=True),
        kd.FullySharded(mesh, "data", rules, ("data", "model"), min_size_bytes=2**20),
    ):
        table = tomllib.loads(toml_of(made))["distribution"]
        again = type(made).from_config(mesh, kd.config.DistributionConfig.model_validate(table))
        assert options_of(again) == options_of(made) != {}
        assert again.batch_dim_name == made.batch_dim_name
        assert again.layout_map.snapshot() == made.layout_map.snapshot()
    assert tomllib.loads(toml_of({"training": {"micro_batches": 8}})) == {"training": {"micro_batches": 8}}


def test_code_keeps_the_options_of_the_strategy():
    layout_map = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    layout_map[".*/up/kernel"] = (None, "model")
    options = {"min_size_bytes": 2**20, "auto_shard_dataset": False, "strict": True}
    traced = program(kd.FullySharded(layout_map.device_mesh, "data", layout_map, **options))
    layouts = {row.path: row.axes for row in (*traced.state.rows, *traced.batch.rows)}
    restored = remedies._Search(traced, propagate(traced.lowered)).distribution_of(layouts)
    assert code_of(restored).endswith("min_size_bytes=1048576, strict=True, auto_shard_dataset=False)")
