"""The project as a newcomer meets it."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parent.parent


def make(*arguments):
    return subprocess.run(["make", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.multiprocess
@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_help_lists_every_target_and_make_demo_passes_the_mesh_on():
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert {"test", "test-all", "soak"} < {*targets}
    assert {*re.findall(r"^  make ([a-z-]+) +[^ ]", make("help").stdout, re.MULTILINE)} >= {*targets}
    assert 'keras-dist demo --mesh "data=8,model=1"' in make("-n", "demo", "MESH=data=8,model=1").stdout


def test_ci_runs_what_a_person_runs():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make lint type test-all soak ROUNDS=1" in script.read_text()


def test_license_and_type_marker():
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert (ROOT / "keras_dist" / "py.typed").exists()


def test_hooks_are_local():
    repositories = re.findall(r"repo:\s*(\S+)", (ROOT / ".pre-commit-config.yaml").read_text())
    assert set(repositories) == {"local"}
