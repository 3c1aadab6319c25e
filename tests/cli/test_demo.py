"""`make demo`, on each of its meshes."""

import re

import pytest

from tests import commands, forks
from tests.processes import environment

MESHES = ["data=2,model=4", "data=8,model=1"]
pytestmark = pytest.mark.multiprocess


def run_demo(mesh):
    return forks.python("-W", "error", "-m", "keras_dist", "demo", "--mesh", mesh, env=environment())


@pytest.fixture(scope="module")
def outputs():
    runs = {mesh: run_demo(mesh) for mesh in MESHES}
    for mesh, run in runs.items():
        assert run.returncode == 0, (mesh, run.stderr[-2000:])
    return {mesh: run.stdout for mesh, run in runs.items()}


def accuracy_of(output):
    return float(re.search(r"test accuracy (\d\.\d+)", output)[1])


def test_every_mesh_reaches_95_percent_and_tells_the_time(outputs):
    found = [accuracy_of(output) for output in outputs.values()]
    assert min(found) >= 0.95
    assert max(found) - min(found) <= 1 / 360, found  # at most one of the test images
    assert all(re.search(r"wall time \d+\.\d s", output) for output in outputs.values())


def test_shows_the_layout_table_and_progress_with_loss_and_accuracy(outputs):
    output = outputs["data=2,model=4"]
    assert re.search(r"hidden/kernel\s+│ 64 x 256 │ 16,384 │ float32\s+│ parameter │ \(-, model\)", output)
    assert re.search(r"12/12 ━+ .*loss: \d\.\d+ - accuracy: \d\.\d+", output)


def test_the_mesh_changes_the_layout_and_nothing_else(outputs):
    per_device = {mesh: re.search(r"hidden/kernel.*?│\s+64\.0 KiB │\s+(\S+) KiB", o)[1] for mesh, o in outputs.items()}
    assert per_device == {"data=2,model=4": "16.0", "data=8,model=1": "64.0"}


def test_a_mesh_that_does_not_fit_is_reported_without_a_traceback(capsys):
    assert commands.run("demo", "--mesh", "data=3,model=2") == 2
    told = capsys.readouterr().err
    assert "Shape does not match the number of devices" in told and "Traceback" not in told
