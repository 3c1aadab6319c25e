"""The floors of the house: imports go down only."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
STABLE_DOORS = re.compile(r"^\s*(?:from|import)\s+(jax\._src|jax\.interpreters|flax\.\S*_)", re.MULTILINE)


def test_imports_go_to_lower_floors_only():
    # in a process of its own: import-linter disables the loggers of the one it runs in
    run = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "0 broken" in run.stdout


def test_only_three_doors_lead_to_unstable_calls():
    users = {path.name for path in (ROOT / "keras_dist").rglob("*.py") if STABLE_DOORS.search(path.read_text())}
    assert users == {"_jax.py", "_programs.py", "_shardy.py"}


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
