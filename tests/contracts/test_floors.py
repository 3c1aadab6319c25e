"""The floors of the house: imports go down only."""

import re
from pathlib import Path

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parents[2]
STABLE_DOORS = re.compile(r"^\s*(?:from|import)\s+(jax\._src|jax\.interpreters|flax\.\S*_)", re.MULTILINE)


def test_imports_go_to_lower_floors_only() -> None:
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=None) == EXIT_STATUS_SUCCESS


def test_only_one_room_opens_the_door_to_unstable_calls() -> None:
    users = {path.name for path in (ROOT / "keras_dist").rglob("*.py") if STABLE_DOORS.search(path.read_text())}
    assert users == {"_jax.py"}
