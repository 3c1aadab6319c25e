"""SIGTERM in a real process: the training is saved after its step and goes on later; a second one ends it at once."""

import os
import signal
from typing import Any

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.callbacks import BackupAndRestore
from tests import forks, layouts
from tests.networks import LOSS, blobs
from tests.processes import killed_environment
from tests.resuming.program import network

X, Y = blobs(50)


class Terminate(kd.callbacks.Callback):
    """Sends SIGTERM in the seventh step."""

    steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        if self.steps == 7:
            os.kill(os.getpid(), signal.SIGTERM)


def trained(folder: Any, seed: int, *callbacks: Any) -> list[Any]:
    """The losses and weights after three epochs of five steps, of which each third is saved."""
    kd.set_random_seed(seed)
    with layouts.one_device().scope():
        model = network()
    model.compile(kd.optimizers.Adam(0.01), loss=LOSS)
    history = model.fit(X, Y, 10, 3, verbose=0, callbacks=[BackupAndRestore(folder, 3), *callbacks]).history
    return [history["loss"], *model.get_weights()]


PROGRAM = """
import os, signal, sys, time
from keras_dist.checkpoint.folder import Draft
from tests.resuming.test_signals import Terminate, trained

terminate, commit = Terminate(), Draft.commit

def interrupted(draft):
    if terminate.steps == 7:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    commit(draft)

if sys.argv[2] == "twice":
    Draft.commit = interrupted
trained(sys.argv[1], 7, terminate)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return trained(tmp_path_factory.mktemp("whole"), 7)


@pytest.mark.multiprocess
@pytest.mark.filterwarnings("ignore::keras_dist.errors.CheckpointWarning")  # of what the killed one has left
@pytest.mark.parametrize(("how", "code"), [("once", BackupAndRestore.EXIT_CODE), ("twice", -signal.SIGTERM)])
def test_a_training_that_is_terminated_goes_on_when_it_is_started_again(tmp_path, whole, how, code):
    ended = forks.python("-c", PROGRAM, tmp_path / "backup", how, env=killed_environment())
    assert ended.returncode == code, ended.stderr
    newest = max(path.name for path in (tmp_path / "backup").glob("step_*"))
    if how == "once":
        assert newest == "step_00000007"
        assert "BackupAndRestore: SIGTERM, saved" in ended.stdout and "start the program again" in ended.stdout
    else:
        assert newest in ("step_00000003", "step_00000006")
    for found, expected in zip(trained(tmp_path / "backup", 8), whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
