"""The commands in the table of docs/reference/shell.md run as they are copied, on a machine with one device."""

import pathlib
import re

import pytest

import keras_dist as kd
from tests import forks
from tests.processes import environment

ROOT = pathlib.Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
SHELL = (ROOT / "docs" / "reference" / "shell.md").read_text()
COMMANDS = re.findall(r"^\| `([a-z]+[^`]*)` \| \w", SHELL, re.MULTILINE)
THEIRS = """
import os

os.environ["KERAS_BACKEND"] = "jax"
import keras

layout_map = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((1, 1), ("data", "model")))
layout_map["hidden.kernel"] = (None, "model")
layout_map["logits.kernel"] = ("model", None)
"""

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]


def keras_dist(command, folder):
    return forks.python("-m", "keras_dist", *command.split(), cwd=folder, env=environment())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With the files that the page names."""
    path = tmp_path_factory.mktemp("readme")
    (path / "run.toml").write_text((ROOT / "keras_dist/cli/demo.toml").read_text())
    (script,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "# train.py" in block]
    (path / "train.py").write_text(script)
    (path / "theirs.py").write_text(THEIRS)
    kd.Sequential([kd.Input((3,)), kd.layers.Dense(2)]).save(path / "theirs.keras")
    command = re.search(r"^\$ keras-dist (launch .*? -- train\.py)", README, re.MULTILINE)[1]
    run = keras_dist(command, path)
    assert run.returncode == 0, run.stderr[-2000:]
    return path


@pytest.mark.parametrize("command", COMMANDS, ids=[command.split()[0] for command in COMMANDS])
def test_a_row_runs_as_it_is_copied(command, folder):
    run = keras_dist(command, folder)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout


def test_a_mesh_that_does_not_fit_is_answered_with_a_command_that_runs(folder):
    train = keras_dist("train run.toml --mesh data=4,model=2 --set training.epochs=1", folder)
    assert train.returncode == 2 and "`keras-dist train --fake 8`" in train.stderr
    assert "--mesh data=1,model=1" in train.stderr
    plan = keras_dist("plan run.toml --target v5p:4x4x4", folder)
    assert plan.returncode == 2 and "fake" not in plan.stderr
    mesh = re.search(r"--mesh (\S+),", plan.stderr)[1]
    assert mesh == "data=16,model=4"
    assert keras_dist(f"check run.toml --target v5p:4x4x4 --mesh {mesh}", folder).returncode == 0
