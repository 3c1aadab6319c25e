"""The image: what its Dockerfile installs and starts, and the launcher as process 1 of a container."""

import functools
import json
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib

import psutil
import pytest

from tests.deploy.test_train_digits import SCRIPT
from tests.forks import ROOT
from tests.processes import environment


@functools.cache
def instructions():
    """The arguments of the instructions of the Dockerfile, by their names, in order."""
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    lines = re.sub(r"\\\n", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    found = {}
    for name, _, argument in (line.partition(" ") for line in lines if line):
        assert name in ("FROM", "ARG", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT", "CMD")
        found.setdefault(name, []).extend(json.loads(argument) if argument.startswith("[") else [argument])
    return found


CONTAINER = instructions()


def test_the_image_is_built_from_files_of_the_repository_alone():
    (base,) = CONTAINER["FROM"]
    assert re.fullmatch(r"python:3\.\d+-slim", base)  # a name: the place it comes from is a setting of the builder
    copied = [source for each in CONTAINER["COPY"] for source in each.split()[:-1]]
    assert all((ROOT / source).exists() for source in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    read = [project["project"]["readme"], *project["project"]["license-files"]]
    read += project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {*read, "pyproject.toml", "constraints.txt", str(SCRIPT.relative_to(ROOT))} == {*copied}
    assert not [each for each in CONTAINER["RUN"] if "pip install" in each and "--no-cache-dir" not in each]
    order = [
        line.split()[0] for line in (ROOT / "deploy" / "Dockerfile").read_text().splitlines() if line[:1].isupper()
    ]
    assert order.index("USER") > max(index for index, name in enumerate(order) if name == "RUN")


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "accelerator, extras", [("cpu", "datasets"), ("cuda", "datasets,cuda"), ("tpu", "datasets,tpu")]
)
def test_the_accelerator_decides_what_is_installed(tmp_path, accelerator, extras):
    code, printed = install(tmp_path, accelerator)
    assert (code, printed) == (0, f"install --no-cache-dir --constraint /source/constraints.txt /source[{extras}]\n")
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*extras.split(",")} <= {*known}


@pytest.mark.multiprocess
def test_an_unknown_accelerator_ends_the_build(tmp_path):
    assert CONTAINER["ARG"] == ["ACCELERATOR=cpu"]
    code, printed = install(tmp_path, "gpu")
    assert (code, printed) == (2, "ACCELERATOR must be cpu, cuda or tpu; given: gpu\n")


def install(folder, accelerator):
    """Run the step that installs, with a pip that prints its arguments; the exit code, and what was printed."""
    pip = folder / "pip"
    pip.write_text('#!/bin/sh\necho "$@"\n')
    pip.chmod(0o755)
    (step,) = [each for each in CONTAINER["RUN"] if "pip" in each]
    env = {"PATH": f"{folder}:/usr/bin:/bin", "ACCELERATOR": accelerator}
    done = subprocess.run(["sh", "-c", step], env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
"""Runs a command as process 1, as in a container; with SIGKILL for it when this process dies."""


@functools.cache
def has_namespaces():
    tools = all(map(shutil.which, ("unshare", "nsenter")))
    return tools and not subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode


@pytest.fixture
def container(tmp_path):
    """What the image starts, as process 1 of namespaces of its own, once it trains."""
    if not has_namespaces():
        pytest.skip("needs root, and unshare and nsenter of the package util-linux")
    command = [*CONTAINER["ENTRYPOINT"], *CONTAINER["CMD"]]
    local = {"/app/train_digits.py": str(SCRIPT), "--folder=/state": f"--folder={tmp_path / 'state'}"}
    assert command.pop(0) == "keras-dist" and {*local} < {*command}
    command = [sys.executable, "-m", "keras_dist", *(local.get(part, part) for part in command)]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(
            [*NAMESPACE, *command, "--epochs=1000", "--alone"], env=environment(1), stdout=log, stderr=log
        )
    try:
        wait_until(lambda: "Epoch 2/1000" in (tmp_path / "log").read_text())
        yield process, psutil.Process(process.pid).children()[0]
    finally:
        process.kill()
        process.wait()


def wait_until(holds, seconds=100):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.multiprocess
def test_sigterm_to_process_1_saves(container, tmp_path):
    process, first = container
    inside = first.children(recursive=True)
    first.send_signal(signal.SIGTERM)
    assert process.wait(100) == 75, (tmp_path / "log").read_text()
    assert list((tmp_path / "state" / "backup").glob("step_*"))
    assert not psutil.wait_procs(inside, timeout=10)[1]


@pytest.mark.multiprocess
def test_process_1_reaps_what_others_leave_in_the_container(container):
    _, first = container
    (supervisor,) = first.children()
    enter = ["nsenter", f"--target={first.pid}", "--pid", "--mount"]  # as `kubectl exec` does
    subprocess.run([*enter, "sh", "-c", "sleep 600 > /dev/null 2>&1 &"], check=True)
    wait_until(lambda: len(first.children()) == 2)
    (left,) = {*first.children()} - {supervisor}
    left.kill()
    wait_until(lambda: first.children() == [supervisor])
    assert supervisor.is_running()
