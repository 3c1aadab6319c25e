"""Efficiency factors of measured trainings, beside quotients by hand; their file; and reports with their estimate."""

import dataclasses
import functools
import json
import types

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.planner import Calibration, Roofline, calibrate
from keras_dist.training.throughput import Timing

X, Y = np.zeros((8, 16), "float32"), np.zeros((8, 8), "float32")


@functools.cache
def planned(target="cpu:8"):
    with kd.DataParallel(kd.DeviceMesh("data=8")).scope():
        model = kd.Sequential([kd.Input((16,)), kd.layers.Dense(8)])
    model.compile("sgd", "mse")
    return model.plan(X, Y, target=target, compiles=False)


def history(seconds):
    """What `fit` returns after steps of these seconds."""
    return types.SimpleNamespace(timing=Timing(3, 24, 1, 0.5, 3 * seconds, seconds, seconds, 8 / seconds, 0.1, {}))


def report(compute=0.0, memory=0.0, moved=0.0, target="cpu:8"):
    """A report whose roofline has these seconds."""
    line = Roofline(compute, memory, {("data",): moved / 2, ("model",): moved / 2})
    verdict = dataclasses.replace(planned().verdict, rooflines={"propagated": line}, target=target)
    return dataclasses.replace(planned(), verdict=verdict)


def test_a_factor_is_the_least_time_in_the_measured_time():
    found = calibrate(history(0.2), report(0.1, 0.03, 0.02))
    assert found.chip == "cpu"
    assert found.efficiencies == pytest.approx(dict.fromkeys(("compute", "memory", "communication"), 0.5))
    assert found.step_seconds(Roofline(0.04, 0.06, {})) == pytest.approx(0.12)


def test_each_resource_has_the_median_of_the_steps_that_it_limits(tmp_path):
    path = tmp_path / "cpu.json"
    for seconds, times in ((0.2, (0.1, 0, 0)), (1.0, (0.9, 0, 0)), (0.5, (0.3, 0, 0)), (0.5, (0, 0.1, 0.02))):
        found = calibrate(history(seconds), report(*times), path)
    assert found.efficiencies == pytest.approx({"compute": 0.6, "memory": 0.2, "communication": 0.2})
    assert found.step_seconds(Roofline(0.06, 0.01, {("data",): 0.03})) == pytest.approx(0.15)
    assert Calibration.load(path) == found
    assert len(json.loads(path.read_text())["measurements"]) == 4


def test_reports_label_the_estimate():
    calibration = calibrate(history(0.2), report(0.1))
    found = calibration.apply(report(0.003))
    assert "about 6 ms (calibrated)" in str(found)
    assert found.to_dict()["verdict"]["calibrated"] == {"step_seconds": pytest.approx(0.006)}
    assert "calibrated" not in str(report(0.003))
    assert report(0.003).to_dict()["verdict"]["calibrated"] is None


def test_the_file_keeps_the_newest_trainings(tmp_path):
    path = tmp_path / "cpu.json"
    full = Calibration("cpu", calibrate(history(0.2), report(0.1)).measurements * 64)
    path.write_text(json.dumps(dataclasses.asdict(full)))
    found = calibrate(history(0.4), report(0.1), path)
    assert len(found.measurements) == 64
    assert found.measurements[-1].measured_seconds == 0.4


TIMES = {"compute": 0.1, "memory": 0.0, "communication": 0.0}
GOOD = {"least_seconds": TIMES, "measured_seconds": 0.2}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"chip": "cpu"}',
        json.dumps({"chip": "cpu", "measurements": []}),
        json.dumps({"chip": "cpu", "measurements": [GOOD] * 65}),
        json.dumps({"chip": "cpu", "measurements": [GOOD | {"measured_seconds": 0}]}),
        json.dumps({"chip": "cpu", "measurements": [GOOD | {"least_seconds": TIMES | {"compute": float("nan")}}]}),
        json.dumps({"chip": "cpu", "measurements": [GOOD | {"least_seconds": dict.fromkeys(TIMES, 0.0)}]}),
        json.dumps({"chip": "cpu", "measurements": [GOOD | {"more": 1}]}),
        json.dumps({"chip": "cpu", "measurements": [GOOD | {"least_seconds": {"compute": 0.1}}]}),
        json.dumps({"chip": "cpu", "measurements": [GOOD], "class": "os.system"}),
        json.dumps({"chip": "cpu", "measurements": [GOOD]}) + " " * 2**16,
    ],
)
def test_damaged_files_are_refused(tmp_path, content):
    path = tmp_path / "cpu.json"
    path.write_text(content)
    for read in (Calibration.load, lambda path: calibrate(history(0.2), report(0.1), path)):
        with pytest.raises(kd.errors.PlanFileError, match="is not a calibration, or is damaged"):
            read(path)
    assert path.read_text() == content


def test_what_does_not_belong_together_is_refused(tmp_path):
    calibration = calibrate(history(0.2), report(0.1))
    with pytest.raises(kd.errors.ModelError, match="the calibration is for 'cpu'"):
        calibration.apply(report(0.1, target="v5e:2x4"))
    path = tmp_path / "cpu.json"
    calibrate(history(0.2), report(0.1), path)
    with pytest.raises(kd.errors.ModelError, match="is for 'cpu'"):
        calibrate(history(0.2), report(0.1, target="v5e:2x4"), path)
    with pytest.raises(kd.errors.ModelError, match="a calibration needs the plan for a target"):
        calibrate(history(0.2), dataclasses.replace(planned(), verdict=None))
    for wrong in (None, types.SimpleNamespace(timing=None), history(float("nan"))):
        with pytest.raises(kd.errors.ModelError, match="`history` must be a History with finished steps"):
            calibrate(wrong, report(0.1))
    with pytest.raises(kd.errors.ModelError, match="`report` must be a PlanReport"):
        calibrate(history(0.2), None)
