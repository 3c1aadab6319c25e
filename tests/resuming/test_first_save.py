"""The first state of a training is on disk before the next step: a kill soon after it loses no more than that step."""

import pytest

from tests import forks

PROGRAM = """
import os, signal, sys
import keras_dist as kd
kd.use_cpu_devices(8)
import numpy as np
started = []

class Killed(kd.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        started.append(int(self.model.optimizer.iterations))
        if started[-1] == 5 and sys.argv[2] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)  # as soon as the callback before it has returned

with kd.FullySharded(kd.DeviceMesh("data=8")).scope():
    model = kd.Sequential([kd.Input((512,)), *[kd.layers.Dense(512) for _ in range(8)]])
model.compile("adam", "mse")
x = np.ones((128, 512), "float32")
backup = kd.callbacks.BackupAndRestore(sys.argv[1], save_freq=5)
model.fit(x, x, batch_size=16, epochs=1, verbose=0, callbacks=[backup, Killed()])
print("from", started[0])
"""


@pytest.mark.multiprocess
def test_a_kill_right_after_the_first_save_resumes_from_it(tmp_path):
    assert forks.python("-c", PROGRAM, tmp_path / "backup", "killed").returncode == -9
    again = forks.python("-c", PROGRAM, tmp_path / "backup", "again")
    assert again.stdout.splitlines()[-1] == "from 5", again.stderr[-2000:]
