"""The working directory is data: only commands that load a program of the user import from it."""

import importlib.metadata
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from tests.processes import free_address

NAMES = {*sys.stdlib_module_names, *importlib.metadata.packages_distributions(), *sys.modules}
EXTRAS = {
    "IPython",
    "PIL",
    "array_record",
    "grain",
    "h5py",
    "keras",
    "matplotlib",
    "pydot",
    "tensorboardX",
    "torch",
    "wandb",
}
JOIN = """
import sys
import keras_dist as kd
kd.initialize(*sys.argv[1:], **({"num_processes": 1, "process_id": 0} if sys.argv[1:] else {}))
print("joined")
"""
PLANS = """
import numpy as np
import keras_dist as kd
kd.use_cpu_devices(2)
with kd.DataParallel(kd.DeviceMesh("data=2")).scope():
    model = kd.Sequential([kd.Input((4,)), kd.layers.Dense(2)])
model.compile("sgd", "mse")
model.plan(np.ones((4, 4)), np.ones((4, 2)), target="cpu:2", timeout_seconds=60)
print("planned")
"""
COMMANDS = {
    "doctor": ["doctor", "."],
    "devices": ["devices", "--fake", "2"],
    "convert": ["convert", "no.keras", "x"],
    "demo": ["demo", "--set", "training.steps_per_epoch=1", "--set", "training.epochs=1"],
    "launch": ["launch", "--processes", "1", "../join.py"],
}
CODES = {"doctor": 1, "convert": 3, "demo": 1}
"""A damaged state, a file that is no model, and a model that is not trained; others succeed."""


@pytest.mark.multiprocess
def test_no_module_of_the_working_directory_runs(tmp_path):
    """One process for each command, in a folder with a forged module of each name that anything here imports."""
    folder = tmp_path / "examined"
    (folder / "step_1").mkdir(parents=True)
    for name in filter(str.isidentifier, NAMES | EXTRAS):
        (folder / f"{name}.py").write_text("print('RAN', __name__, flush=True)\nraise SystemExit('forged')\n")
    (folder / "no.keras").write_bytes(b"PK")
    (tmp_path / "join.py").write_text(JOIN)
    (tmp_path / "plans.py").write_text(PLANS)
    script = pathlib.Path(sys.executable).with_name("keras-dist")
    programs = {name: [str(script), *arguments] for name, arguments in COMMANDS.items()}
    programs["join"] = [sys.executable, "-P", "../join.py", free_address()]  # starts the coordination service
    programs["plans"] = [sys.executable, "-P", "../plans.py"]  # starts the process that compiles
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": folder}
    running = {name: subprocess.Popen(program, **pipes) for name, program in programs.items()}
    texts = {name: process.communicate(timeout=300)[0] for name, process in running.items()}
    assert not [text for text in texts.values() if "RAN" in text or "forged" in text]
    codes = {name: process.returncode for name, process in running.items()}
    assert codes == dict.fromkeys(programs, 0) | CODES, texts
