"""A job under the launcher goes on when one of its processes dies."""

import json
import subprocess
import sys

import pytest

from tests.soak import ROUNDS

SCRIPT = """
import json, os, pathlib, sys
import numpy as np
import keras_dist as kd

folder, how, who = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
kd.initialize()
kd.set_random_seed(0)
kd.set_distribution(kd.DataParallel())
index = kd.distribution.process_index()
print("process", index)

class Dies(kd.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        mark = folder / "died"
        if how != "never" and index == who and batch == 7 and (how == "always" or not mark.exists()):
            mark.touch()
            if how == "raises":
                raise ValueError("no disk")
            os.kill(os.getpid(), getattr(__import__("signal"), "SIGKILL" if how == "always" else how))

x = np.random.default_rng(0).normal(size=(96, 3)).astype("float32")
model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(4), kd.layers.Dense(1)])
model.compile("adam", "mse")
backup = kd.callbacks.BackupAndRestore(folder / "backup", save_freq=2)
model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=[backup, Dies()])
if index == 0:
    (folder / f"weights {how}.json").write_text(json.dumps([weight.tolist() for weight in model.get_weights()]))
"""

CASES = (
    [("SIGKILL", 1), ("raises", 0)]
    if not ROUNDS
    else [(how, who) for how in ("SIGKILL", "SIGSTOP", "raises") for who in range(2)]
)


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """Runs the script: the launcher's exit code, what it printed, and the folder."""
    script = tmp_path_factory.mktemp("scripts") / "train.py"
    script.write_text(SCRIPT)

    def run(how, who=0, *options):
        folder = tmp_path_factory.mktemp("job")
        command = [sys.executable, "-m", "keras_dist.cli.launch", "--processes", "2", "--devices-per-process", "2"]
        command += ["--report", str(folder / "jobs.json"), *options, str(script), str(folder), how, str(who)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, done.stdout, done.stderr, folder

    return run


@pytest.fixture(scope="module")
def undisturbed(launch):
    code, output, errors, folder = launch("never")
    assert code == 0, output + errors
    assert {"[0] process 0", "[1] process 1"} <= {*output.splitlines()}
    return (folder / "weights never.json").read_text()


@pytest.mark.multiprocess
@pytest.mark.soak
@pytest.mark.parametrize("how, who", CASES)
def test_the_job_ends_with_the_weights_of_an_undisturbed_one(launch, undisturbed, how, who):
    code, output, errors, folder = launch(how, who)
    assert code == 0, output + errors
    assert (folder / f"weights {how}.json").read_text() == undisturbed
    (death,) = json.loads((folder / "jobs.json").read_text())["deaths"]
    expected = {"SIGKILL": "was ended by SIGKILL", "SIGSTOP": "does not answer", "raises": "ended with exit code 1"}
    assert (death["process"], death["how"], death["restarted"]) == (who, expected[how], True)
    assert death["to_next_step_s"] > 0 and "step_" in death["saved"]
    assert f"process {who} {expected[how]}" in errors and "steps go on" in errors


@pytest.mark.multiprocess
def test_one_that_always_dies_ends_the_launcher(launch):
    code, _, errors, folder = launch("always", 1, "--max-restarts", "1")
    assert code == 1
    assert "given up after 1 restarts" in errors.splitlines()[-1]
    assert [death["restarted"] for death in json.loads((folder / "jobs.json").read_text())["deaths"]] == [True, False]
