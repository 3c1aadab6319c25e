"""A fine-tuning of a quantized base goes on bit for bit after SIGKILL."""

import json

import pytest

from tests import forks

PROGRAM = """
import os, signal, sys, hashlib, json
import keras_dist as kd
kd.use_cpu_devices(8)
import numpy as np
from tests.pretrained.networks import FOLDER

class Killed(kd.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if sys.argv[2] == "killed" and self.model.optimizer.iterations == 5:
            os.kill(os.getpid(), signal.SIGKILL)

x = np.random.default_rng(0).integers(0, 64, (32, 12)).astype("int32")
with kd.FullySharded(kd.DeviceMesh("data=2,model=4"), ("data", "model")).scope():
    kd.set_random_seed(0)
    model = kd.pretrained.load(FOLDER / "llama", quantize="nf4", scan=True)
    model.enable_lora(2, ".*/(query|value|down)", dropout=0.1)
    model.compile("adam", loss="causal_lm")
    backup = kd.callbacks.BackupAndRestore(sys.argv[1], save_freq=1)
    model.fit(x, x, batch_size=8, epochs=3, verbose=0, callbacks=[backup, Killed()])
digest = hashlib.sha256(b"".join(np.asarray(weight.numpy()).tobytes() for weight in model.weights)).hexdigest()
print(json.dumps({"steps": int(model.optimizer.iterations), "weights": digest}))
"""


@pytest.mark.multiprocess
def test_a_killed_training_ends_with_the_same_weights(tmp_path):
    whole = forks.python("-c", PROGRAM, tmp_path / "a", "whole")
    assert whole.returncode == 0, whole.stderr[-2000:]
    killed = forks.python("-c", PROGRAM, tmp_path / "b", "killed")
    assert killed.returncode == -9
    again = forks.python("-c", PROGRAM, tmp_path / "b", "again")
    assert json.loads(again.stdout.splitlines()[-1]) == json.loads(whole.stdout.splitlines()[-1]), again.stderr[-2000:]
    assert json.loads(whole.stdout.splitlines()[-1])["steps"] == 12
