"""Processes that compile: one that fails or takes too long leaves the answers of the others, and none remains."""

import os
import pathlib
import signal
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


def endless(self):
    """A process that reads and never answers."""
    process = compilers.subprocess.Popen(
        ["sleep", "600"], stdin=compilers.subprocess.PIPE, stdout=compilers.subprocess.PIPE
    )
    self._logs[process] = pathlib.Path(os.devnull)
    return process


@pytest.mark.multiprocess
def test_two_processes_compile_several_programs_and_end():
    programs = [lowered(lambda x, scale=scale: jnp.sum(scale * x)) for scale in range(5)]
    with Compilers(target(MACHINE), 2) as pool:
        waiting = [start(pool, each, None, None, 300) for each in programs]
        found = [each() for each in waiting]
        assert 1 <= len(running()) <= 2, "processes are used again"
    alone = compile_for(programs[0], MACHINE)
    assert {each.collectives for each in found} == {alone.collectives} and alone.collectives
    assert not running()


@pytest.mark.multiprocess
def test_a_process_that_dies_is_an_error_of_its_program_alone():
    with Compilers(target(MACHINE), 1) as pool:
        assert start(pool, lowered(), None, None, 300)().collectives
        (process,) = running()
        process.suspend()
        first, second = (start(pool, lowered(), None, None, 300) for _ in range(2))
        while not pool._idle.empty():  # until the first program is given to the process
            time.sleep(0.01)
        process.kill()
        with pytest.raises(kd.errors.CompilationError, match="cannot be compiled") as caught:
            first()
        assert caught.value.given == "its process exited with code -9"
        assert second().collectives
    assert not running()


@pytest.mark.multiprocess
def test_a_process_that_exits_at_once_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(kd.errors.CompilationError) as caught:
        compile_for(lowered(), MACHINE)
    assert caught.value.given == "its process exited with code 1"


@pytest.mark.multiprocess
def test_a_process_that_takes_too_long_is_killed_and_another_compiles_the_next_program(monkeypatch):
    with Compilers(target(MACHINE), 1) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(Compilers, "_process", endless)
            late = start(pool, lowered(), None, None, 0.2)
            with pytest.raises(kd.errors.CompilationTimeoutError, match="took too long") as caught:
                late()
        assert "timeout_seconds=0.2" in caught.value.given
        assert start(pool, lowered(), None, None, 300)().collectives
        (stopped, *_) = pool._logs
        assert stopped.poll() == -signal.SIGKILL
    assert not running()


@pytest.mark.multiprocess
def test_nothing_is_left_where_the_context_ends_early(monkeypatch):
    monkeypatch.setattr(Compilers, "_process", endless)
    with pytest.raises(KeyboardInterrupt), Compilers(target(MACHINE), 2) as pool:
        waiting = [start(pool, lowered(), None, None, 600) for _ in range(4)]
        while len(pool._logs) < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert [process.poll() for process in pool._logs] == [-signal.SIGKILL] * 2
    with pytest.raises((kd.errors.CompilationError, CancelledError)):
        waiting[-1]()


PARENT = """
import subprocess, sys, time
process = subprocess.Popen([sys.executable, "-P", "-m", "keras_dist.planner._compile"], stdin=subprocess.PIPE)
print(process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.multiprocess
def test_the_process_ends_where_its_parent_is_killed():
    parent = Python("-c", PARENT)
    while not (printed := parent.printed()[0]).endswith("\n"):
        time.sleep(0.05)
    child = psutil.Process(int(printed))
    os.kill(parent.pid, signal.SIGKILL)
    parent.outcome(60)
    child.wait(60)


def test_as_many_processes_as_cores_and_memory_allow(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    pages = {"SC_AVPHYS_PAGES": 3 * 2**20 + 5, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    assert compilers._most_processes() == 3
    pages["SC_AVPHYS_PAGES"] = 7
    assert compilers._most_processes() == 1
    pages["SC_AVPHYS_PAGES"] = 2**30
    assert compilers._most_processes() == 8
