"""Rules for activations and inputs: applied inside the step, checked when it is first traced."""

import re
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from tests import by_hand, layouts
from tests.networks import Plain, Stack, TwoInputs, blobs
from tests.soak import LARGE, repeated

LOSS = by_hand.cross_entropy
X, Y = blobs(32)
P = jax.sharding.PartitionSpec


def built(rules, factory: Any = Plain, strict=False, mesh="data=2,model=4"):
    layout_map = kd.LayoutMap(kd.DeviceMesh(mesh))
    layout_map.update(rules)
    model = layouts.model_on(kd.ModelParallel(layout_map, strict=strict), factory)
    model.compile("sgd", loss=LOSS)
    return model


def constraints(model, x=X, y=Y):
    """The layouts that the lowered step asks for, as `tensor<...>` and axes of each dim."""
    text = model.lower_train_step(x, y).as_text()
    found = re.findall(r"sdy\.sharding_constraint %\S+ <@mesh, \[([^\]]*)\]> : tensor<(\w+)>", text)
    return {(shape, axes) for axes, shape in found}


class TestApplied:
    @pytest.mark.parametrize(
        ("rule", "axes", "expected"),
        [
            ("d1/output", ("data", "model"), ("32x16xf32", '{"data"}, {"model"}')),
            ("d1/output", (None, "model"), ("32x16xf32", '{}, {"model"}')),
            ("d./output", (None, "model"), ("32x4xf32", '{}, {"model"}')),
            ("output", ("data", "model"), ("32x4xf32", '{"data"}, {"model"}')),
            ("input/x", ("data", "model"), ("32x8xf32", '{"data"}, {"model"}')),
        ],
    )
    def test_the_step_asks_for_the_layout(self, rule, axes, expected):
        model = built({rule: axes}, strict=True)
        assert expected in constraints(model)

    def test_without_rules_it_asks_for_those_of_the_state_alone(self):
        asked = constraints(built({}))
        assert {shape for shape, _ in asked} == {"8x16xf32", "16xf32", "16x4xf32", "4xf32", "f32", "i32"}
        assert {axes.replace("{}", "").strip(" ,") for _, axes in asked} == {""}

    def test_layers_in_lists_go_by_their_number(self):
        model = built({"layers/1/output": ("data", "model")}, Stack, strict=True)
        assert constraints(model) - constraints(built({}, Stack)) == {("32x8xf32", '{"data"}, {"model"}')}

    def test_inputs_go_by_their_names_and_are_placed_so(self):
        model = built({"input/a": (None, "model")}, TwoInputs, strict=True)
        model.compile("sgd", loss=lambda y_true, y_pred: y_pred["sum"].mean(-1))
        lowered = model.lower_train_step({"a": X, "b": X[:, :2]}).as_text()
        assert re.search(r'tensor<32x8xf32> \{sdy.sharding = #sdy.sharding<@mesh, \[\{\}, \{"model"\}\]>\}', lowered)
        assert re.search(r'tensor<32x2xf32> \{sdy.sharding = #sdy.sharding<@mesh, \[\{"data"\}, \{\}\]>\}', lowered)

    @repeated
    def test_a_batch_that_the_axis_does_not_divide_is_exact_too(self):
        model = built({"d1/output": (("data", "model"), None), "input/x": ("model", None)}, strict=True)
        for rows in (1, 5, 13) if LARGE else (5,):
            expected = by_hand.predict(model.module, X[:rows])
            np.testing.assert_allclose(model.predict(X[:rows], verbose=0), expected, atol=1e-5)
            exponentials = np.exp(expected)
            scores = exponentials / exponentials.sum(1, keepdims=True)
            loss = -np.log(scores[range(rows), Y[:rows]]).mean()
            assert model.train_on_batch(X[:rows], Y[:rows]) == pytest.approx(loss, abs=1e-6)

    def test_the_users_module_keeps_its_class(self):
        module = Plain(nnx.Rngs(0))
        layout_map = kd.LayoutMap(kd.DeviceMesh("data=8"))
        layout_map["d1/output"] = ("data", None)
        with kd.ModelParallel(layout_map).scope():
            model = kd.Model.from_nnx(module)
        model.predict(X, verbose=0)
        assert type(module.d1) is type(model.module.d1) is nnx.Linear


class TestChecked:
    @pytest.mark.parametrize("rule", ["d3/output", "input/image", "d1/outputs?/output"])
    def test_a_rule_that_names_nothing_warns_once_at_the_first_trace(self, rule):
        model = built({rule: ("data", None)})
        with pytest.warns(kd.errors.LayoutWarning, match=re.escape(repr(rule))) as caught:
            model.predict(X, verbose=0)
        assert len(caught) == 1
        assert rule != "d3/output" or "the nearest path is 'd2/output'" in str(caught[0].message)
        model.predict(X, verbose=0)

    def test_under_strict_it_raises(self):
        model = built({"d3/output": ("data", None)}, strict=True)
        for use, data in ((model.fit, (X, Y)), (model.predict, (X,)), (model.evaluate, (X, Y))):
            with pytest.raises(kd.errors.LayoutError, match="d3/output"):
                use(*data, verbose=0)
        assert int(model.state.step) == 0

    @pytest.mark.parametrize(
        ("rule", "axes", "message"),
        [
            ("d1/output", ("data",), "'d1/output' has the wrong rank"),
            ("d1/output", ("data", None, None), "'d1/output' has the wrong rank"),
            ("input/x", ("data",), "'input/x' has the wrong rank"),
            ("d2/output", (None, ("data", "model")), "cannot shard dim 1 of 'd2/output'"),
        ],
    )
    def test_a_rule_that_does_not_fit_the_array_raises_with_its_name_shape_and_remedy(self, rule, axes, message):
        model = built({rule: axes})
        with pytest.raises(kd.errors.LayoutError, match=message) as caught:
            model.train_on_batch(X, Y)
        assert "shape (" in caught.value.given and repr(rule) in caught.value.given and caught.value.fix
        assert np.isfinite(model.variables[0].numpy()).all(), "the state is not lost"
