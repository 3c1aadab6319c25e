"""Processes that compile: one that fails or takes too long leaves the answers of the others, and none remains."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError

import jax
import jax.numpy as jnp
import psutil
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import keras_dist as kd
from keras_dist.planner import compile_for, compilers, target
from keras_dist.planner.compiled import start
from keras_dist.planner.compilers import Compilers
from tests.forks import Python

MACHINE = "cpu:8"


def lowered(function=jnp.sum):
    """A program of rows that are sharded over an abstract mesh."""
    mesh = AbstractMesh((8,), ("rows",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((64, 8), jnp.float32, sharding=NamedSharding(mesh, P("rows")))
    return jax.jit(function).trace(x).lower(lowering_platforms=("cpu",))


def running():
    """The processes that compile, of this process."""
    return [child for child in psutil.Process().children() if "keras_dist.planner._compile" in child.cmdline()]


def let_compilers_be_endless(monkeypatch):
    """Let processes that compile never answer."""
    command = [sys.executable, "-c", "import time; time.sleep(600)", "keras_dist.planner._compile"]
    run = subprocess.run
    monkeypatch.setattr(compilers.subprocess, "run", lambda _, **options: run(command, **options))


@pytest.mark.multiprocess
def test_programs_compile_at_the_same_time_and_one_that_dies_is_an_error_of_its_own():
    scales = 1.0, 2.0, 3.0
    with Compilers(target(MACHINE), 2) as pool:
        waiting = [start(pool, lowered(lambda x, scale=scale: jnp.sum(scale * x)), None, None, 300) for scale in scales]
        while len(processes := running()) < 2:
            time.sleep(0.01)
        first = min(processes, key=lambda process: process.create_time())
        first.kill()
        errors, found = [], []
        for each in waiting:
            try:
                found.append(each())
            except kd.errors.CompilationError as error:
                errors.append(error.given)
        assert errors == ["its process exited with code -9"]
        assert [each.nbytes_by_axes() for each in found] == [{("all_reduce", ("rows",)): 4}] * 2
    assert not running()


@pytest.mark.multiprocess
def test_a_process_that_exits_at_once_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(kd.errors.CompilationError) as caught:
        compile_for(lowered(), MACHINE)
    assert caught.value.given == "its process exited with code 1"


@pytest.mark.multiprocess
def test_a_process_that_takes_too_long_is_killed(monkeypatch):
    let_compilers_be_endless(monkeypatch)
    with pytest.raises(kd.errors.CompilationTimeoutError, match="took too long") as caught:
        compile_for(lowered(), MACHINE, timeout_seconds=0.1)
    assert "timeout_seconds=0.1" in caught.value.given
    assert not running()


@pytest.mark.multiprocess
def test_time_in_the_queue_counts(monkeypatch):
    let_compilers_be_endless(monkeypatch)
    began = time.monotonic()
    with Compilers(target(MACHINE), 1) as pool:
        waiting = [start(pool, lowered(), None, None, 0.5) for _ in range(5)]
        for each in waiting:
            with pytest.raises(kd.errors.CompilationTimeoutError):
                each()
    assert time.monotonic() - began < 60


@pytest.mark.multiprocess
def test_no_process_is_left_where_the_context_ends_early():
    with pytest.raises(KeyboardInterrupt), Compilers(target(MACHINE), 2) as pool:
        waiting = [start(pool, lowered(), None, None, 600) for _ in range(4)]
        while len(running()) < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert not running()
    with pytest.raises((kd.errors.CompilationError, CancelledError)):
        waiting[-1]()


PARENT = """
import os, pathlib, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
os.mkfifo(folder / "request.json")  # reading it does not end
process = subprocess.Popen(
    [sys.executable, "-P", "-m", "keras_dist.planner._compile", folder], stdin=subprocess.PIPE
)
print(process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.multiprocess
def test_the_process_ends_where_its_parent_is_killed(tmp_path):
    parent = Python("-c", PARENT, tmp_path)
    while not (printed := parent.printed()[0]).endswith("\n"):
        time.sleep(0.05)
    child = psutil.Process(int(printed))
    os.kill(parent.pid, signal.SIGKILL)
    assert parent.outcome(60)[0] == -signal.SIGKILL
    child.wait(60)


def test_as_many_processes_as_cores_and_memory_allow(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    pages = {"SC_AVPHYS_PAGES": 3 * 2**20 + 5, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    assert compilers.most_processes() == 3
    pages["SC_AVPHYS_PAGES"] = 7
    assert compilers.most_processes() == 1
    pages["SC_AVPHYS_PAGES"] = 2**30
    assert compilers.most_processes() == 8
