"""Candidates: other layouts of a step that is traced once are what tracing it under them gives."""

import math

import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist.planner import LogicalRules, dim_classes
from keras_dist.planner.propagation import propagate
from keras_dist.planner.search import Search
from keras_dist.planner.search_result import distribution_of
from keras_dist.planner.tracing import trace_step
from tests.planner import models_to_lay_out as models

SIZES = {"data": 2, "model": 4}
STEPS = {
    "mlp": (models.Mlp, (models.X, models.X), "mse", {"mlp": "model"}),
    "block": (models.Block, (models.SEQUENCES, models.SEQUENCES), "mse", {"heads": "model", "mlp": "model"}),
    "our block": (models.our_block, (models.SEQUENCES, models.SEQUENCES), "mse", {"heads": "model"}),
    "scanned": (
        lambda rngs: models.Decoder(True, rngs),
        (models.TOKENS, models.TOKENS),
        models.CROSSENTROPY,
        {"vocab": "model", "mlp": "model"},
    ),
    "convnet": (models.Convnet, (models.IMAGES, models.CLASSES), models.CROSSENTROPY, {"channels2": "model"}),
}


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", STEPS)
def test_a_candidate_is_what_tracing_gives(name):
    optimizer = "sgd" if name == "block" else "adam"
    factory, batch, loss, rules = STEPS[name]
    classes = dim_classes(factory, batch, optimizer, loss)
    rules = {"batch": "data", **rules}
    layouts, left = classes.layouts(rules, SIZES)
    assert not left
    screened = classes.screen.propagate(SIZES, layouts)
    distribution = LogicalRules(rules).applied(classes, kd.DeviceMesh(SIZES))
    program = trace_step(factory, batch, distribution, optimizer, loss)
    traced = propagate(program.lowered)
    assert screened.nbytes_by_axes() == traced.nbytes_by_axes()
    assert screened.flops == traced.flops
    planned = {row.path: row.axes for row in program.state.rows if any(row.axes)}
    assert {path: axes for path, axes in layouts.items() if path in planned or path not in _batch(program)} == planned


def _batch(program):
    return {row.path for row in program.batch.rows}


def test_candidates_do_not_disturb_each_other():
    factory, batch, loss, rules = STEPS["mlp"]
    classes = dim_classes(factory, batch, "adam", loss)
    layouts = [classes.layouts({"batch": "data", **more}, SIZES)[0] for more in ({}, rules)]
    first = [classes.screen.propagate(SIZES, layout) for layout in layouts]
    again = [classes.screen.propagate(SIZES, layout) for layout in reversed(layouts)]
    assert first == again[::-1]
    assert first[0] != first[1]
    wider = classes.screen.propagate({"data": 8, "model": 64}, layouts[1])
    assert wider.flops * 8 * 64 == first[1].flops * 8


def test_logical_rules_for_unknown_names():
    classes = dim_classes(models.Mlp, models.X)
    mesh = kd.DeviceMesh(SIZES)
    with pytest.raises(kd.errors.LayoutError, match="no dims 'mpl'"):
        LogicalRules({"mpl": "model"}).applied(classes, mesh)
    with pytest.raises(kd.errors.DistributionError, match="modle"):
        LogicalRules({"mlp": "modle"}).applied(classes, mesh)
    with pytest.raises(kd.errors.DistributionError, match="`rules` must be a dict"):
        LogicalRules(["mlp"])


def test_a_batch_without_axes_is_whole():
    classes = dim_classes(models.Mlp, (models.X, models.X), "sgd", "mse")
    mesh = kd.DeviceMesh(SIZES)
    found = LogicalRules({"batch": None, "mlp": "model"}).applied(classes, mesh)
    assert found.batch_dim_name is None and found.num_model_replicas == 1
    report = kd.plan(models.Mlp, (models.X, models.X), found, "sgd", "mse")
    assert {row.axes for row in report.batch.rows} == {(None, None)}
    assert set(report.step.nbytes_by_axes()) == {("all_reduce", ("model",))}, "no gradients are added over data"
    with found.scope():
        model = kd.Model.from_nnx(models.Mlp, seed=0)
    model.compile("sgd", "mse")
    assert np.isfinite(model.train_on_batch(models.X, models.X))
    assert LogicalRules({"mlp": "model"}).applied(classes, mesh).batch_dim_name == "data"


def test_rules_of_repeated_blocks_are_one():
    batch = models.TOKENS, models.TOKENS
    rules = LogicalRules({"mlp": "model"})
    found = rules.distribution(
        lambda rngs: models.Decoder(False, rngs), batch, kd.DeviceMesh(SIZES), "sgd", models.CROSSENTROPY
    ).layout_map
    assert {rule: layout.axes for rule, layout in found.snapshot()} == {
        r"blocks/\d+/down/kernel": ("model", None),
        r"blocks/\d+/up/bias": ("model",),
        r"blocks/\d+/up/kernel": (None, "model"),
    }


def test_logical_names_of_flax_are_rules():
    def factory(rngs):
        init = nnx.with_partitioning(nnx.initializers.ones, ("in", "wide"))
        return nnx.Sequential(nnx.Linear(8, 32, kernel_init=init, rngs=rngs), nnx.relu, nnx.Linear(32, 8, rngs=rngs))

    x = np.zeros((8, 8), np.float32)
    found = LogicalRules({"wide": "model"}).distribution(factory, x, kd.DeviceMesh(SIZES))
    plan = kd.plan(factory, x, found).state
    assert plan.row("layers/0/kernel").axes == (None, "model")
    assert plan.row("layers/2/kernel").axes == ("model", None)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", ["v5e:2x4", "cpu:8", "h100:1x1x8"])
def test_fully_sharded_candidates_move_what_their_own_steps_move(name):
    """A screen does not gather weights: their gathers have the prices of the backend, on TPUs half of float32."""
    factory, batch, loss, rules = STEPS["block"]
    machine = kd.planner.target(name)
    classes = kd.AutoParallel(kd.DeviceMesh(SIZES), target=machine)._traced((factory, batch, "adam", loss), None)
    search = Search(classes, "step_time", None, machine, math.inf)
    search._try(SIZES, {"batch": "data", **rules})
    found = [next(each for each in search.candidates if each.fully_sharded is fully) for fully in (False, True)]
    moved: list[int] = []
    for each in found:
        distribution, _, _ = distribution_of(each, classes, kd.DeviceMesh(SIZES))
        program = trace_step(factory, batch, distribution, "adam", loss, platform=machine.platform)
        moved.append(sum(each.nbytes_per_step for each in propagate(program.lowered).collectives))
    assert found[1].moved_nbytes - found[0].moved_nbytes == pytest.approx(moved[1] - moved[0], abs=0.02 * moved[1])
