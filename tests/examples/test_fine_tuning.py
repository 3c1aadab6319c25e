"""The example of fine-tuning from the shell: a folder of weights, a plan, a training, and folders of the results."""

import json
import pathlib
import re
import sysconfig

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests import forks
from tests.processes import environment

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]
EXAMPLES = pathlib.Path(__file__).parent.parent.parent / "examples"
CONFIG = EXAMPLES / "fine_tuning.toml"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A function that runs a program in one working directory, and returns what it printed."""
    folder = tmp_path_factory.mktemp("fine_tuning")

    def run(*command):
        done = forks.python(*command, cwd=folder, env=environment() | {"STDLIB": sysconfig.get_path("stdlib")})
        assert done.returncode == 0, done.stderr[-2000:]
        assert "Warning" not in done.stderr
        return done.stdout

    run.folder = folder
    return run


def test_the_path_from_a_folder_to_a_folder(run):
    run(EXAMPLES / "fine_tuning.py")
    assert json.loads((run.folder / "tiny-llama/config.json").read_text())["model_type"] == "llama"
    weights = run.folder / "tiny-llama/model.safetensors"
    base = load_file(weights)
    weights.rename(run.folder / "away")
    assert re.search(r"v5e:2x4: fits", run("-m", "keras_dist", "plan", CONFIG, "--target", "v5e:2x4"))
    (run.folder / "away").rename(weights)
    mesh, losses = "data=4,model=2", "loss: ([0-9.]+) - val_loss: ([0-9.]+)"
    printed = run("-m", "keras_dist", "train", CONFIG, "--fake", "8", "--mesh", mesh, "--set", "training.verbose=2")
    first, last = [float(loss) for loss, _ in re.findall(losses, printed)]
    assert last < first - 0.05
    assert "tokens_per_second" in printed
    adapter = load_file(run.folder / "adapter/adapter_model.safetensors")
    assert len(adapter) == 2 * 2 * 5 and all(array.shape[0] == 8 or array.shape[1] == 8 for array in adapter.values())
    tuned = load_file(run.folder / "tuned/model.safetensors")
    assert tuned.keys() == base.keys()
    changed = {name.rpartition("layers.")[2] for name in base if not np.array_equal(base[name], tuned[name])}
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in changed} == {
        *("q_proj", "v_proj", "gate_proj", "up_proj", "down_proj")
    }
    assert len(run(EXAMPLES / "fine_tuning.py", "import ", "def ").splitlines()) >= 2
