"""The benchmark of automatic layouts, on tiny models of the same form: layouts by hand fit, costs are told."""

import json

import pytest

import keras_dist as kd
from benchmarks import bench_auto, report
from benchmarks.planned_models import planned_models
from keras_dist.planner import propagate, trace_step

TARGET = "v5e:2x4"
MODELS = planned_models(tiny=True)
ON_TWO_AXES = (bench_auto.MEGATRON, bench_auto.HYBRID, bench_auto.PARALLAX)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS][::4])
def test_rules_by_hand_have_effect_and_say_what_moves(name):
    planned = MODELS[name]
    rules = kd.LayoutMap(bench_auto.mesh_of(TARGET, {"data": 2, "model": 4}))
    for path, axes in planned.rules.items():
        rules[path] = tuple(axes)
    step = planned.factory, planned.batch(8 * planned.rows), kd.ModelParallel(rules, "data", strict=True)
    program = trace_step(*step, "adam", bench_auto.loss_of(planned))
    assert program.state.nbytes_per_device < sum(row.nbytes for row in program.state.rows)
    moved = propagate(program.lowered).nbytes_by_axes()
    assert moved["all_reduce", ("data",)] > 0
    assert any("model" in axes for _, axes in moved)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("layout", [*bench_auto.BY_HAND, bench_auto.PARALLAX])
def test_costs_of_layouts_are_told(layout):
    layouts = {"head/kernel": ["model", None]}
    (found,) = bench_auto.costs("decoder", TARGET, [layout], layouts, tiny=True, compiles=False).values()
    assert found["tier"] == "propagated"
    assert found["fits"] is None, "that is not known before compiling"
    assert found["moved_nbytes"] == sum(found["moved"].values()) > 0
    assert found["serial_step_seconds"] >= found["step_seconds"] > 0
    assert found["distribution"]["mesh"] == ({"data": 2, "model": 4} if layout in ON_TWO_AXES else {"data": 8})
    json.dumps(found)


@pytest.mark.slow
def test_the_search_is_told_with_what_it_cost():
    (found,) = bench_auto.costs("two towers, unseen", TARGET, [bench_auto.AUTO], tiny=True, compiles=False).values()
    assert found["ranked_by"] == "propagated" and found["candidates"] > 8 and found["compiled"] == 0
    assert found["seconds_to_find"] > 0 and found["is_complete"]


SEARCH = {"seconds_to_find": 7.2, "candidates": 70, "compiled": 8, "not_compiled": 2}
COST = {"tier": "compiled", "fits": True, "moved_nbytes": 2e9, "device_nbytes": 3e9, "serial_step_seconds": 0.02}


def test_table_of_layouts_marks_the_best_that_fits():
    costs = {
        "AutoParallel": {**COST, **SEARCH},
        "Megatron": {**COST, "serial_step_seconds": 0.01, "fits": False},
        "FSDP": {**COST, "serial_step_seconds": 0.03, "tier": "propagated"},
        "google-parallax": {"error": "AssertionError for pad: more"},
    }
    table = report.render_layouts([{"layouts": [{"model": "decoder", "target": TARGET, "costs": costs}]}, {}])
    cells = [cell.strip() for cell in table.splitlines()[2].strip("|").split("|")]
    assert cells == [
        "decoder",
        TARGET,
        "**20 ms**, 2 GB, 3 GB",
        "10 ms, 2 GB, 3 GB; does not fit",
        "30 ms, 2 GB, 3 GB (propagated)",
        "AssertionError for pad",
        "70 candidates, 8 of 10 compiled, 7 s",
    ]


def test_the_page_has_the_table_of_layouts():
    text = report.PAGE.read_text()
    assert report.with_tables(text, report.read_records()) == text
    layouts = json.loads(bench_auto.RECORD.read_text())["layouts"]
    assert len(layouts) >= 3 and any("unseen" in row["model"] for row in layouts)


def test_no_layout_of_the_page_is_two_percent_slower_than_a_preset():
    rows = json.loads(bench_auto.RECORD.read_text())["layouts"]
    for row in rows:
        costs = {name: each for name, each in row["costs"].items() if each.get("fits") is not False}
        presets = [costs[name][bench_auto.TIME] for name in bench_auto.BY_HAND if name in costs]
        assert costs[bench_auto.AUTO][bench_auto.TIME] <= 1.02 * min(presets), row["model"]
