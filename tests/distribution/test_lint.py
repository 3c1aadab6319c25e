"""The rule linter: everything wrong with a set of rules, found when a plan is made."""

import warnings
from typing import Any

import flax.linen as linen
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist.errors import LayoutError, LayoutWarning
from tests.distribution.shapes import axes_of, f32, model_parallel

TREE = {"d1": {"kernel": f32(8, 16), "bias": f32(16)}, "d2": {"kernel": f32(16, 10), "bias": f32(10)}}


def errors_of(mesh: kd.DeviceMesh, rules: dict[str, Any], tree: Any = TREE, **options: Any) -> LayoutError:
    with pytest.raises(LayoutError) as caught:
        model_parallel(mesh, rules, **options).plan(tree)
    return caught.value


def test_good_rules_say_nothing(mesh: kd.DeviceMesh) -> None:
    plan = model_parallel(mesh, {"d1/kernel": (None, "model"), "d./bias": (None,)}, strict=True).plan(TREE)
    assert plan.problems == ()


@pytest.mark.parametrize(
    ("kind", "rules", "path", "words"),
    [
        ("rank", {"d1/kernel": ("model",)}, "d1/kernel", "the layout of 'd1/kernel' has the wrong rank"),
        ("indivisible", {"d2/kernel": (None, "model")}, "d2/kernel", "cannot shard dim 1 of 'd2/kernel'"),
        ("indivisible", {"d2/bias": (("data", "model"),)}, "d2/bias", "cannot shard dim 0 of 'd2/bias'"),
        ("ambiguous", {".*kernel": (None, "model"), "d1.*": (None,)}, "d1/kernel", "'d1/kernel' matches multiple"),
    ],
)
def test_one_error(mesh: kd.DeviceMesh, kind: str, rules: dict[str, Any], path: str, words: str) -> None:
    error = errors_of(mesh, rules)
    found = {(problem.kind, problem.path): problem for problem in error.problems}
    problem = found[kind, path]
    assert words in problem.summary
    assert words in str(error)
    shape = TREE[path.split("/")[0]][path.split("/")[1]].shape
    assert str(shape) in problem.given
    assert "mesh {data: 2, model: 4}" in problem.given
    assert all(repr(rule) in problem.given for rule in rules)
    assert problem.fix


def test_an_unknown_axis_is_found_in_the_layouts_of_a_strategy_of_ones_own(mesh: kd.DeviceMesh) -> None:
    class Typo(kd.Distribution):
        def get_variable_layout(self, variable: Any) -> kd.TensorLayout:
            return kd.TensorLayout((None, "modle"))

    with pytest.raises(LayoutError, match="names an axis that the mesh does not have: 'modle'") as caught:
        Typo(mesh).plan({"kernel": f32(8, 16)})
    assert [problem.kind for problem in caught.value.problems] == ["axis"]
    assert "did you mean 'model'" in str(caught.value)


def test_everything_is_found_at_once(mesh: kd.DeviceMesh) -> None:
    rules = {"d1/kernel": ("model",), "d1/bias": ("model",), "d./bias": ("data",), "d2/k.*": (None, "model")}
    rules["d2/ker.*"] = (None, None)
    error = errors_of(mesh, rules)
    assert [(problem.kind, problem.path) for problem in error.problems] == [
        ("rank", "d1/kernel"),
        ("ambiguous", "d2/kernel"),
    ]
    assert "2 layout rules cannot be applied on mesh {data: 2, model: 4}" in str(error)
    assert "(1) the layout of 'd1/kernel'" in str(error)
    assert "(2) Path 'd2/kernel'" in str(error)


@pytest.mark.parametrize(
    ("rule", "kind", "words"),
    [
        ("d1/kernal", "dead", "the nearest path is 'd1/kernel'"),
        ("d3/kernel", "dead", "the nearest path is"),
        ("zzz", "dead", "the paths are 'd1/bias', 'd1/kernel'"),
        ("kernel", "substring", "it is only a part of 'd1/kernel'"),
        ("d1", "substring", "it is only a part of 'd1/bias'"),
        ("/kern", "substring", "write 'd1/kernel', or '.*/kern.*'"),
        ("input_proj/kernel", "dead", "matched nothing"),
        ("inputs/kernel", "dead", "matched nothing"),
        ("my_output", "dead", "matched nothing"),
    ],
)
def test_a_rule_without_effect_warns(mesh: kd.DeviceMesh, rule: str, kind: str, words: str) -> None:
    with pytest.warns(LayoutWarning) as caught:
        plan = model_parallel(mesh, {rule: (None,)}).plan(TREE)
    assert [(problem.kind, problem.path) for problem in plan.problems] == [(kind, rule)]
    assert len(caught) == 1
    assert f"rule {rule!r} matched nothing" in str(caught[0].message)
    assert words in str(caught[0].message)
    assert words in str(plan)


def test_a_rule_that_exact_rules_leave_nothing_to_decide(mesh: kd.DeviceMesh) -> None:
    with pytest.warns(LayoutWarning, match="rule 'd1/k.*' decided nothing: remove it: 'd1/kernel' is exact"):
        model_parallel(mesh, {"d1/kernel": (None, "model"), "d1/k.*": (None, None)}).plan(TREE)


def test_one_warning_for_each_plan_lists_all_dead_rules(mesh: kd.DeviceMesh) -> None:
    distribution = model_parallel(mesh, {"d1/kernal": (None,), "d2/bais": (None,), "kernel": (None, None)})
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            plan = distribution.plan(TREE)
        assert [warning.category for warning in caught] == [LayoutWarning]
        message = str(caught[0].message)
        assert message.startswith("3 layout rule(s) had no effect")
        assert all(repr(rule) in message for rule in ("d1/kernal", "d2/bais", "kernel"))
        assert len(plan.problems) == 3


def test_fully_sharded_is_strict_about_dead_rules_too(rules: kd.LayoutMap, mesh: kd.DeviceMesh) -> None:
    rules["d1/kernal"] = (None, "model")
    with pytest.raises(LayoutError, match="rule 'd1/kernal' matched nothing"):
        kd.FullySharded(mesh, rules=rules, strict=True).plan(TREE)


def test_strict_lists_dead_rules_beside_the_errors(mesh: kd.DeviceMesh) -> None:
    error = errors_of(mesh, {"d2/bias": ("model",), "d1/kernal": (None,), "bias": (None,)}, strict=True)
    assert [problem.kind for problem in error.problems] == ["indivisible", "dead", "substring"]


@pytest.mark.parametrize(
    "rule", ["d1/output", ".*/output$", "(d1|d2)/(output)", ".*output", "input/image", "input/.*", "input", "output"]
)
def test_rules_for_activations_and_inputs_wait_for_the_first_trace(mesh: kd.DeviceMesh, rule: str) -> None:
    assert model_parallel(mesh, {rule: ("data", None)}, strict=True).plan(TREE).problems == ()


def test_unmatched_variables_are_replicated_and_the_plan_says_so(mesh: kd.DeviceMesh) -> None:
    plan = model_parallel(mesh, {"d1/kernel": (None, "model")}).plan(TREE)
    assert axes_of(plan) == {
        "d1/kernel": (None, "model"),
        "d1/bias": (None,),
        "d2/kernel": (None, None),
        "d2/bias": (None,),
    }
    assert plan.row("d2/kernel").rule is None
    line = next(line for line in str(plan).splitlines() if "d2/kernel" in line)
    assert "replicated" in line
    assert "no rule" in line


class Tied(nnx.Module):
    """An embedding that is used again as the last layer."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(8, 4, rngs=rngs)
        self.head = self.embed


@pytest.mark.parametrize("rule", ["embed/embedding", "head/.*", ".*/embedding", "(embed|head)/embedding"])
def test_tied_weights_match_by_any_of_their_paths(mesh: kd.DeviceMesh, rule: str) -> None:
    plan = model_parallel(mesh, {rule: ("model", None)}, strict=True).plan(Tied(nnx.Rngs(0)))
    assert [row.path for row in plan.rows] == ["embed/embedding"]
    assert plan.row("head/embedding") is plan.row("embed/embedding")
    assert plan.row("head/embedding").axes == ("model", None)


def test_aliases_whose_rules_disagree_are_ambiguous(mesh: kd.DeviceMesh) -> None:
    rules = {"embed/embedding": ("model", None), "head/embedding": (None, "model")}
    error = errors_of(mesh, rules, Tied(nnx.Rngs(0)))
    assert [problem.kind for problem in error.problems] == ["ambiguous"]
    assert "'embed/embedding' is known by several paths, whose rules disagree" in str(error)
    assert "'head/embedding' -> (None, 'model') by 'head/embedding'" in str(error)


def test_one_array_that_stands_in_a_tree_twice_is_tied(mesh: kd.DeviceMesh) -> None:
    shared = jnp.ones((8, 4))
    plan = model_parallel(mesh, {"head": ("model", None)}, strict=True).plan({"embed": shared, "head": shared})
    assert axes_of(plan) == {"embed": ("model", None), "head": ("model", None)}
    assert plan.row("embed").path == "embed"
    assert plan.row("head").path == "head"


def test_ties_that_the_tree_does_not_show_can_be_told(mesh: kd.DeviceMesh) -> None:
    distribution = model_parallel(mesh, {"head/w": ("model", None)}, strict=True)
    plan = distribution.plan({"embed": {"w": f32(8, 4)}}, tied=[["embed", "head"]])
    assert plan.row("embed/w").axes == ("model", None)
    assert plan.row("embed/w").aliases == ("head/w",)


class Norm(nnx.Module):
    """A layer and its BatchNorm."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.d1 = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)


class LinenNorm(linen.Module):
    """The same in Linen."""

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return linen.BatchNorm(use_running_average=True, name="norm")(linen.Dense(8, name="d1")(x))


@pytest.mark.parametrize(
    "tree",
    [lambda: Norm(nnx.Rngs(0)), lambda: jax.eval_shape(LinenNorm().init, jax.random.key(0), f32(2, 4))],
    ids=["nnx", "linen"],
)
def test_statistics_follow_the_parameter_beside_them(mesh: kd.DeviceMesh, tree: Any) -> None:
    plan = model_parallel(mesh, {"norm/(scale|bias)": ("model",)}, strict=True).plan(tree())
    statistics = [row for row in plan.rows if row.path.endswith(("norm/mean", "norm/var"))]
    assert len(statistics) == 2
    for row in statistics:
        assert row.role == "statistic"
        assert row.axes == ("model",)
        assert row.rule == "follows norm/bias"


def test_a_rule_of_its_own_comes_first_for_a_statistic(mesh: kd.DeviceMesh) -> None:
    rules = {"norm/(scale|bias)": ("model",), "norm/mean": ("data",)}
    plan = model_parallel(mesh, rules, strict=True).plan(Norm(nnx.Rngs(0)))
    assert plan.row("norm/mean").axes == ("data",)
    assert plan.row("norm/var").axes == ("model",)


def test_a_rule_for_a_weight_that_the_layer_does_not_have_is_to_be_removed(mesh: kd.DeviceMesh) -> None:
    with pytest.warns(LayoutWarning, match=r"'d1' has no 'bias' \(it has 'kernel'\); remove the rule"):
        model_parallel(mesh, {"d1/bias": ("model",)}).plan({"d1": {"kernel": f32(8, 16)}})


class Named(kd.Model):
    """Its layer's attribute, which counts, and name differ."""

    def __init__(self) -> None:
        super().__init__(name="named")
        self.first = kd.layers.Dense(8, name="hidden")

    def call(self, inputs: Any) -> Any:
        return self.first(inputs)


@pytest.mark.parametrize("rule", ["hidden/kernel", "hiden/kernel"])
def test_the_path_that_is_suggested_for_the_name_of_a_layer_is_in_the_table(mesh: kd.DeviceMesh, rule: str) -> None:
    with pytest.warns(LayoutWarning) as caught, model_parallel(mesh, {rule: (None, "model")}).scope():
        model = Named()
        model.build((None, 4))
    assert "'first/kernel'" in str(caught[0].message)
    assert "named/" not in str(caught[0].message).partition(": write")[2]
    assert [row.path for row in model.layout_plan.rows if row.path.endswith("kernel")] == ["first/kernel"]


def test_the_warning_of_a_functional_model_points_to_the_user(mesh: kd.DeviceMesh) -> None:
    inputs = kd.Input((4,))
    outputs = kd.layers.Dense(8)(inputs)
    with pytest.warns(LayoutWarning) as caught, model_parallel(mesh, {"typo": (None, "model")}).scope():
        kd.Model(inputs, outputs)
    assert caught[0].filename == __file__
