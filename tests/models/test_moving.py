"""A model keeps its distribution until it is moved, and moving changes no number."""

from typing import Any

import jax
import numpy as np
import pytest

import keras_dist as kd
from tests import layouts
from tests.networks import LOSS, Noisy, Plain, blobs, values_of
from tests.soak import LARGE, often

X, Y = blobs(48)
MOVES = [("one device", "data=2,model=4"), ("fully data=8", "one device")]


def built(name, factory: Any = Plain, optimizer="adam"):
    model = layouts.model_on(name, factory)
    model.compile(optimizer, loss=LOSS)
    return model


@pytest.fixture(scope="module")
def model():
    """What no test moves."""
    return built("data=2,model=4")


class TestKeeps:
    def test_it_trains_outside_of_the_scope_it_was_built_in_and_under_an_equal_distribution_made_anew(self, model):
        losses: Any = model.fit(X, Y, verbose=0).history["loss"]
        assert model.distribution == layouts.on("data=2,model=4")
        sharding: Any = model.variables[1].value.sharding
        assert sharding.mesh.shape == {"data": 2, "model": 4}
        kd.set_distribution(layouts.on("data=2,model=4"))
        assert model.fit(X, Y, verbose=0).history["loss"] < losses

    @pytest.mark.parametrize("train", [lambda m: m.fit(X, Y, verbose=0), lambda m: m.train_on_batch(X, Y)])
    def test_another_current_distribution_is_refused_naming_both(self, train, model):
        before = values_of(model)
        with layouts.on("data=4,model=2").scope(), pytest.raises(kd.errors.DistributionError) as caught:
            train(model)
        assert "shape=(4, 2)" in caught.value.given
        assert "shape=(2, 4)" in caught.value.expected
        assert "redistribute" in caught.value.fix
        with layouts.on("fully data=2,model=4").scope(), pytest.raises(kd.errors.DistributionError) as caught:
            train(model)
        assert "FullySharded" in caught.value.given and "ModelParallel" in caught.value.expected
        assert all(np.array_equal(value, before[path]) for path, value in values_of(model).items())
        train(model)

    def test_rules_changed_after_the_build_are_refused_naming_both(self):
        distribution: Any = layouts.on("data=2,model=4", {"d1/kernel": (None, "model")})
        kd.set_distribution(distribution)
        model = kd.Model.from_nnx(Plain, seed=0)
        model.compile("sgd", loss=LOSS)
        distribution.layout_map["d2/kernel"] = ("model", None)
        with pytest.raises(kd.errors.DistributionError) as caught:
            model.fit(X, Y, verbose=0)
        assert "d2/kernel" in caught.value.given and "d2/kernel" not in caught.value.expected
        model.redistribute(distribution)
        model.train_on_batch(X, Y)
        assert model.layout_plan.row("d2/kernel").axes == ("model", None)

    def test_prediction_and_evaluation_work_wherever_they_are_called(self, model):
        expected = model.predict(X, verbose=0), model.evaluate(X, Y, verbose=0)
        with layouts.on("data=8,model=1").scope():
            assert model.evaluate(X, Y, verbose=0) == expected[1]
            np.testing.assert_array_equal(model.predict(X, verbose=0), expected[0])


class TestMoves:
    @often
    @pytest.mark.parametrize(("start", "end"), [("data=2,model=4", "fully data=8"), *MOVES * LARGE])
    def test_everything_learned_moves_and_training_goes_on_as_if_it_had_been_there(self, start, end):
        moved, stayed = built(start, Noisy), built(end, Noisy)
        for model in (moved, stayed):
            model.fit(X, Y, batch_size=16, shuffle=False, verbose=0)
        before = values_of(moved), moved.state
        moved.redistribute(layouts.on(end))
        assert all(np.array_equal(value, before[0][path]) for path, value in values_of(moved).items())
        for old, new in zip(
            jax.tree.leaves((before[1].slots, before[1].step)),
            jax.tree.leaves((moved.state.slots, moved.state.step)),
            strict=True,
        ):
            np.testing.assert_array_equal(old, new)
        assert moved.distribution == stayed.distribution
        assert [leaf.sharding for leaf in jax.tree.leaves(moved._built.cell.state)] == [
            leaf.sharding for leaf in jax.tree.leaves(stayed._built.cell.state)
        ]
        with layouts.on(end).scope():
            found = [model.fit(X, Y, batch_size=16, epochs=2, verbose=0).history["loss"] for model in (moved, stayed)]
        np.testing.assert_allclose(found[0], found[1], atol=1e-5)

    def test_what_was_handed_out_before_survives(self, model):
        value = model.variables[1].value
        model.redistribute(layouts.on("data=2,model=4"))
        model.train_on_batch(X, Y)
        assert np.isfinite(value).all()

    def test_rules_that_cannot_be_applied_leave_it_where_it_was(self, model):
        rules = kd.LayoutMap(kd.DeviceMesh("data=8"))
        rules["d2/bias"] = ("data",)
        with pytest.raises(kd.errors.LayoutError, match="d2/bias"):
            model.redistribute(kd.ModelParallel(rules))
        assert model.distribution == layouts.on("data=2,model=4")
        model.train_on_batch(X, Y)


def test_rules_added_later_reach_neither_variables_nor_activations():
    rules = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    model = layouts.model_on(kd.ModelParallel(rules, "data"), Plain)
    rules["d1/output"] = ("data",)  # of the wrong rank: it would raise if it were read
    assert model.predict(np.ones((8, 8), "float32"), verbose=0).shape[0] == 8
    assert not model.distribution.layout_map
