"""The benchmark of automatic layouts, on tiny models of the same form: layouts by hand fit, costs are told."""

import json

import pytest

import keras_dist as kd
from benchmarks import bench_auto, bench_plan, report
from benchmarks.planned_models import planned_models
from keras_dist.planner import propagate, trace_step

TARGET = "v5e:2x4"
MODELS = planned_models(tiny=True)


@pytest.mark.parametrize("name", MODELS)
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


@pytest.mark.parametrize("layout", [bench_auto.MEGATRON, bench_auto.FSDP, bench_auto.PARALLAX])
def test_costs_of_layouts_are_told(layout):
    layouts = {"head/kernel": ["model", None]}
    found = bench_auto.cost("decoder", TARGET, layout, layouts, tiny=True, compiles=False)
    assert found["tier"] == "propagated"
    assert found["fits"]
    assert found["moved_nbytes"] == sum(found["moved"].values()) > 0
    assert found["serial_step_seconds"] >= found["step_seconds"] > 0
    assert found["distribution"]["mesh"] == ({"data": 8} if layout == bench_auto.FSDP else {"data": 2, "model": 4})
    json.dumps(found)


def test_cost_of_the_layout_that_is_found():
    found = bench_auto.cost("recommender", TARGET, bench_auto.AUTO, None, tiny=True, compiles=False)
    assert found["seconds_to_find"] > 0
    by_hand = bench_auto.cost("recommender", TARGET, bench_auto.FSDP, None, tiny=True, compiles=False)
    assert found["serial_step_seconds"] <= by_hand["serial_step_seconds"]


def test_layouts_that_cannot_be_applied_are_told():
    found = bench_auto.cost(
        "decoder", TARGET, bench_auto.PARALLAX, {"head/kernel": ["rows"]}, tiny=True, compiles=False
    )
    assert found["error"].startswith("LayoutError: ")


def test_planning_is_measured():
    taken = bench_plan.planned("tiny", TARGET, "propagate")
    assert taken["work_seconds"] > 0
    assert len(taken["moved"]) == 1
    lines = bench_plan.lines_of("tiny", TARGET, "propagate", 15, [taken])
    assert [line["aim"] for line in lines] == [1, 1]
    assert lines[0]["ratio"] == taken["work_seconds"] / 15


def test_screening_is_measured():
    assert 0 <= bench_plan.planned("tiny", TARGET, "screen")["work_seconds"] < 15


def test_compiled_plans_are_compared():
    runs = [{"seconds": 60, "nbytes": 2**30, "moved": [2**20, 2**21], "flops": [1e9, 1e9]}]
    seconds, memory, moved, flops = bench_plan.lines_of("70B", TARGET, "compile", 120, runs)
    assert (seconds["ratio"], memory["ratio"], moved["ratio"], flops["ratio"]) == (0.5, 0.5, 0.5, 1)


COST = {"tier": "compiled", "fits": True, "moved_nbytes": 2e9, "device_nbytes": 3e9, "serial_step_seconds": 0.02}


def test_table_of_layouts_marks_the_best_that_fits():
    costs = {
        "AutoParallel": {**COST, "seconds_to_find": 7.2},
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
        "7 s",
    ]


def test_readme_has_the_table_of_layouts():
    text = report.README.read_text()
    assert report.with_tables(text, report.read_records()) == text


def test_record_has_a_ratio_for_each_model(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_auto, "RECORD", tmp_path / "auto.json")
    costs = {
        bench_auto.AUTO: COST,
        bench_auto.MEGATRON: {"error": "none"},
        bench_auto.FSDP: {**COST, bench_auto.TIME: 0.01},
    }
    bench_auto.write({("decoder", TARGET): costs})
    assert bench_auto.read_rows() == {("decoder", TARGET): costs}
    (result,) = json.loads(bench_auto.RECORD.read_text())["results"]
    assert result["ratio"] == 2
