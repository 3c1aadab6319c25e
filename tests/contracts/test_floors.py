"""The floors of the house: imports go down only."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.contracts import floor_plan

ROOT = Path(__file__).parents[2]
UNSTABLE = re.compile(r"^\s*(?:from|import)\s+(jax\._src|jax\.interpreters|flax\.\S*_)", re.MULTILINE)


def test_one_package_holds_the_doors_to_unstable_calls():
    users = {path for path in (ROOT / "keras_dist").rglob("*.py") if UNSTABLE.search(path.read_text())}
    assert users
    assert {path.parent.name for path in users} == {"_unstable"}


def test_the_root_has_two_private_packages_and_no_private_module():
    private = {path.name for path in (ROOT / "keras_dist").glob("_*") if not path.name.startswith("__")}
    assert private == {"_support", "_unstable"}


def test_no_two_files_of_a_package_have_one_name():
    for package in (ROOT / "keras_dist").iterdir():
        names = Counter(path.name for path in package.rglob("*.py") if path.name != "__init__.py")
        assert not {name for name, count in names.items() if count > 1}, package


@pytest.mark.multiprocess
def test_nothing_runs_what_it_reads():
    lines = [
        *("import pickle", "from dill import loads", "import cloudpickle", "import shelve", "import marshal"),
        *("eval('1')", "exec('1')", "numpy.load('1')"),
    ]
    room = "keras_dist/saving/a_room.py"
    run = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--output-format=concise", f"--stdin-filename={room}", "-"],
        cwd=ROOT,
        input="\n".join(['"""A room."""', "import numpy", *lines]),
        capture_output=True,
        text=True,
        check=False,
    )
    found = {int(line) for line in re.findall(r":(\d+):\d+: (?:S102|S307|TID251) ", run.stdout)}
    assert found == set(range(3, 3 + len(lines))), run.stdout + run.stderr


def test_the_floor_plan_is_the_contract():
    assert floor_plan.FILE.read_text() == floor_plan.picture(), "python -m tests.contracts.floor_plan draws it"
