"""Commands, files and rooms that CONTRIBUTING.md names are there."""

import ast
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
PROSE = re.sub(r"^```.*?^```", "", TEXT, flags=re.MULTILINE | re.DOTALL)
CODE = re.findall(r"`([^`]+)`", PROSE)
MODULES = sorted({found[1] for code in CODE if (found := re.match(r"(?:\.venv/bin/)?python -m ([\w.]+)", code))})
TARGETS = sorted(
    {name for code in CODE if code.startswith("make ") for name in re.findall(r"(?<= )[a-z-]+(?!=)\b", code)}
)
FILES = sorted({code for code in CODE if re.fullmatch(r"[\w./]+/[\w.]+\.(?:py|md|svg|toml)|\.ci/run", code)})
GUARDS = [line for line in PROSE.splitlines() if re.match(r"\| .*`(?:\w+|[\w*/]+\.py)`.* \|$", line)]


def test_there_are_some():
    assert len(MODULES) >= 3 and len(TARGETS) >= 5 and len(FILES) > 5 and len(GUARDS) > 15


@pytest.mark.parametrize("module", MODULES)
def test_a_module_that_is_to_be_run_does_something_when_it_is_run(module):
    path = ROOT.joinpath(*module.split("."))
    file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    assert file.exists(), module
    tests = [ast.unparse(node.test) for node in ast.parse(file.read_text()).body if isinstance(node, ast.If)]
    assert path.is_dir() or any("__name__ ==" in test for test in tests), module


@pytest.mark.parametrize("target", TARGETS)
def test_make_has_the_target(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


PRINTED = (  # files that the commands write, which are as they wrote them
    "docs/floor_plan.svg",
    "keras_dist/KERAS.md",
)


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """What git has of this folder, apart: commands write into theirs."""
    place = tmp_path_factory.mktemp("clone")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    return place


@pytest.mark.full
@pytest.mark.parametrize("module", MODULES)
def test_a_module_runs(module, copied):
    done = subprocess.run([sys.executable, "-m", module], cwd=copied, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in PRINTED:
        assert (copied / name).read_text() == (ROOT / name).read_text(), name


@pytest.mark.full
@pytest.mark.parametrize("target", TARGETS)
def test_make_knows_what_a_target_runs(target):
    """The long ones are not run; what `make lint type` runs is there."""
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    programs = re.findall(r"\S*/bin/([\w-]+)", done.stdout)
    assert programs and all((pathlib.Path(sys.executable).parent / name).exists() for name in programs), programs


@pytest.mark.full
@pytest.mark.parametrize("command", ["ruff check", "ruff format --check", "lint-imports"])
def test_what_make_lint_runs_finds_nothing(command):
    program, *arguments = command.split()
    program = pathlib.Path(sys.executable).parent / program
    assert f"/{command}\n" in subprocess.run(["make", "-n", "lint"], cwd=ROOT, capture_output=True, text=True).stdout
    done = subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_there(name):
    found = [folder / name for folder in (ROOT, ROOT / "keras_dist", ROOT / "tests") if (folder / name).exists()]
    assert found and (name != ".ci/run" or os.access(found[0], os.X_OK))


@pytest.mark.parametrize("row", GUARDS, ids=lambda row: row.split(" | ")[0].strip("| "))
def test_what_guards_a_promise_is_there(row):
    folder = "."
    for name in re.findall(r"`([\w*/.]+)`", row.rpartition(" | ")[2].split(" |")[0]):
        if not name.endswith(".py"):
            assert (ROOT / "tests" / name).is_dir(), name
            continue
        folder = name.rpartition("/")[0] or folder
        places = [f"{folder}/{name.rpartition('/')[2]}", name]
        assert any([*(ROOT / "tests").glob(place)] for place in places), name
