"""What becomes of a save that goes on when its program ends."""

import os
import sys

import pytest

from keras_dist.checkpoint import manifest
from tests import forks
from tests.processes import environment

END = """
import os, sys, warnings
import orbax.checkpoint
import keras_dist as kd
from keras_dist.checkpoint import CheckpointManager, manifest

directory, fails = sys.argv[1], False
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # JAX and Python warn of forks
    pid = os.fork()
if pid:
    assert os.waitpid(pid, 0)[1] == 0
    directory, fails = f"{directory} fails", True
    print("the other one", file=sys.stderr)
kd.set_distribution(kd.DataParallel())
model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
manager = CheckpointManager(model, directory, asynchronous=True)
if fails:
    manifest._checksum = None
manager.save()
"""


@pytest.mark.multiprocess
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_program_that_ends_waits_for_the_save_that_goes_on(directory):
    ended = forks.python("-c", END, directory, env=environment(1))
    assert ended.returncode == 0, ended.stderr
    good, failed = ended.stderr.split("the other one\n")
    assert "the last save failed" in failed
    if (3, 12, 0) <= sys.version_info < (3, 12, 3):  # no thread begins there after the main one (gh-113964)
        assert good == "" or "the last save failed" in good
        assert not (directory / "step_00000000").exists() or not manifest.damage_of(directory / "step_00000000")
    else:
        assert good == ""
        assert manifest.damage_of(directory / "step_00000000") == []
