"""What the documentation shows, runs."""

import doctest
import importlib
import importlib.metadata
import pathlib
import pkgutil
import re
import socket
import textwrap

import pytest

import keras_dist
from tests import forks
from tests.processes import environment

ROOT = pathlib.Path(__file__).parent.parent
MODULES = sorted(module.name for module in pkgutil.walk_packages(keras_dist.__path__, "keras_dist."))

README = (ROOT / "README.md").read_text()
BLOCKS = [textwrap.dedent(text) for text in re.findall(r"^ *```python\n(.*?)^ *```", README, re.DOTALL | re.MULTILINE)]


@pytest.mark.parametrize("block", [block for block in BLOCKS if "initialize()" not in block])
def test_every_block_of_the_readme_runs_as_it_stands(block, tmp_path):
    run = forks.python("-c", block, cwd=tmp_path, env=environment())
    assert run.returncode == 0, run.stderr[-2000:]
    if "Model.from_nnx" in block:
        assert len(block.splitlines()) == 10, "the ten lines"
        assert re.search(r"layers/0/kernel.*\(-, model\)", run.stdout) and "Epoch 3/3" in run.stdout


@pytest.mark.multiprocess
def test_the_script_for_several_processes_runs_as_the_readme_says(tmp_path):
    (script,) = [block for block in BLOCKS if "initialize()" in block]
    (tmp_path / "train.py").write_text(script)
    shared = dict(re.findall(r"(KERAS_DISTRIBUTION_(?:JOB_ADDRESSES|NUM_PROCESSES))=(\S+)", README))
    commands = re.findall(r"^\$ (KERAS_DISTRIBUTION_PROCESS_ID)=(\d) python train.py", README, re.MULTILINE)
    assert len(shared) == 2 and [index for _, index in commands] == ["0", "1"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        shared["KERAS_DISTRIBUTION_JOB_ADDRESSES"] = f"127.0.0.1:{probe.getsockname()[1]}"
    processes = [
        forks.Python("train.py", cwd=tmp_path, env=environment() | shared | {name: index}) for name, index in commands
    ]
    codes, printed, errors = zip(*(process.outcome(240) for process in processes), strict=True)
    assert codes == (0, 0), "\n".join(errors)[-4000:]
    assert "Epoch 2/2" in printed[0] and "Epoch" not in "".join([printed[1], *errors])
    assert (tmp_path / "trained").is_dir()


def test_the_ways_to_install_are_extras_that_jax_has():
    named = re.findall(r'"jax\[(\w+)\]"', README)
    assert {"cuda13", "tpu"} <= set(named) <= set(importlib.metadata.metadata("jax").get_all("Provides-Extra"))


def test_readme_links_lead_somewhere():
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / "README.md").read_text())
    assert targets
    assert all((ROOT / target).exists() for target in targets)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
