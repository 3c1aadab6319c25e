"""The project as a newcomer meets it."""

import os
import pathlib
import re
import shutil
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

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


@pytest.mark.parametrize("package", ["jax", "jaxlib", "flax"])
def test_both_ends_of_the_bounds_are_tested(package):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (bounds,) = [wanted.specifier for wanted in map(Requirement, project["dependencies"]) if wanted.name == package]
    lowest, first_refused = (
        Version(next(one.version for one in bounds if one.operator == sign)) for sign in (">=", "<")
    )
    pinned = re.findall(rf"^{package}==([\w.]+);", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    oldest, newest = map(Version, pinned)  # of Python 3.11, and of later ones
    assert oldest == lowest
    assert newest in bounds
    assert (newest.major, newest.minor + 1) == first_refused.release[:2]


def test_license_and_type_marker():
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert (ROOT / "keras_dist" / "py.typed").exists()


def test_hooks_are_local():
    repositories = re.findall(r"repo:\s*(\S+)", (ROOT / ".pre-commit-config.yaml").read_text())
    assert set(repositories) == {"local"}
