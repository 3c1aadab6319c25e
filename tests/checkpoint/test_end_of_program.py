"""What becomes of a save that goes on when its program ends."""

import subprocess
import sys

import pytest

from keras_dist.checkpoint import manifest

END = """
import numpy as np
import keras_dist as kd
from keras_dist.checkpoint import CheckpointManager, manifest

kd.set_distribution(kd.DataParallel())
model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
model.compile("sgd", loss="mse")
manager = CheckpointManager(model, {directory!r}, asynchronous=True)
if {fails}:
    manifest._checksum = None
manager.save()
"""


@pytest.mark.parametrize("fails", [False, True])
def test_a_program_that_ends_waits_for_the_save_that_goes_on(directory, fails):
    program = END.format(directory=str(directory), fails=fails)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    if fails:
        assert "the last save failed" in ended.stderr
    elif (3, 12, 0) <= sys.version_info < (3, 12, 3):  # no thread begins there after the main one (gh-113964)
        assert ended.stderr == "" or "the last save failed" in ended.stderr
        assert not (directory / "step_00000000").exists() or not manifest.damage_of(directory / "step_00000000")
    else:
        assert ended.stderr == ""
        assert manifest.damage_of(directory / "step_00000000") == []
