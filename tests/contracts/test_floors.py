"""The floors of the house: imports go down only."""

import re
from collections import Counter
from pathlib import Path

from tests.contracts import floor_plan

ROOT = Path(__file__).parents[2]
UNSTABLE = re.compile(
    r"^\s*(?:from|import)\s+(jax\._|jax\.interpreters|jaxlib\._|flax\.\S*_)"
    r"|\b(?:_pytree__|_object__|_var_metadata|_raw_value|jax\._src)\b",
    re.MULTILINE,
)


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


def test_the_floor_plan_is_the_contract():
    assert floor_plan.FILE.read_text() == floor_plan.picture(), "python -m tests.contracts.floor_plan draws it"
