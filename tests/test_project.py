"""The project as a newcomer meets it."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import keras_dist

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


@pytest.mark.multiprocess
def test_ci_has_an_empty_home_and_the_configuration_of_pip(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "make").write_text('#!/bin/sh\nls -A "$HOME"\nenv\nexit 3\n')
    (tmp_path / "bin" / "make").chmod(0o755)
    (tmp_path / "home" / ".config" / "pip").mkdir(parents=True)
    (tmp_path / "home" / ".config" / "pip" / "pip.conf").touch()
    unset = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYENV_"))}
    environ = unset | {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "caches")}
    environ["PATH"] = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    run = subprocess.run([ROOT / ".ci" / "run"], env=environ, capture_output=True, text=True, check=False)
    assert run.returncode == 3, run.stderr
    assert "=" in run.stdout.splitlines()[0], "the home is not empty"
    seen = dict(line.split("=", 1) for line in run.stdout.splitlines() if "=" in line)
    assert not pathlib.Path(seen["HOME"]).exists() and not {"XDG_CACHE_HOME", "MPLCONFIGDIR"} & seen.keys()
    assert seen["PIP_CONFIG_FILE"] == str(tmp_path / "home" / ".config" / "pip" / "pip.conf")
    assert seen["PIP_CACHE_DIR"] == str(tmp_path / "caches" / "pip")


def test_hosted_ci_runs_the_same_on_every_python():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert jobs["run"]["strategy"]["matrix"]["python"] == promised
    assert any(step.get("run", "").startswith(".ci/run ") for step in jobs["run"]["steps"])
    assert any(step.get("run") == "make docs release-check" for step in jobs["site"]["steps"])


def test_the_version_is_in_one_place():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["project"]["dynamic"] == ["version"]
    assert settings["tool"]["hatch"]["version"]["path"] == "keras_dist/__init__.py"
    assert not re.search(r"^version:", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    latest = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert latest[:2] == ["Unreleased", keras_dist.__version__]


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


def test_what_is_pinned_installs_on_the_first_patch_release_of_this_python():
    """Debian 12 has Python 3.11.2; versions of packages that need a later one end `make setup` with a conflict."""
    pins = [
        Requirement(line.partition(" #")[0])
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if re.match(r"\w", line)
    ]
    pinned = {pin.name: str(pin.specifier) for pin in pins if not pin.marker or pin.marker.evaluate()}
    installed = {found.name: found for found in metadata.distributions()}
    wanted = {
        name: installed[name].metadata.get("Requires-Python", "")
        for name in pinned.keys() & installed.keys()
        if pinned[name] == f"=={installed[name].version}"
    }
    first = ".".join(map(str, (*sys.version_info[:2], 0)))
    assert len(wanted) > 100
    assert not {name: versions for name, versions in wanted.items() if not SpecifierSet(versions).contains(first)}
