"""What the documentation shows, runs."""

import doctest
import importlib
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

import keras_dist

ROOT = pathlib.Path(__file__).parent.parent
MODULES = sorted(module.name for module in pkgutil.walk_packages(keras_dist.__path__, "keras_dist."))


def test_readme_example_runs_and_prints_the_layout_table():
    example = re.search(r"## Ten lines\n\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert example is not None
    assert len(example[1].splitlines()) == 10
    run = subprocess.run([sys.executable, "-c", example[1]], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert re.search(r"layers/0/kernel.*\(-, model\)", run.stdout)
    assert "Epoch 3/3" in run.stdout


def test_readme_links_lead_somewhere():
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / "README.md").read_text())
    assert targets
    assert all((ROOT / target).exists() for target in targets)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
