"""What the documentation shows, runs."""

import doctest
import importlib
import importlib.metadata
import pathlib
import pkgutil
import re
import socket
import textwrap
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import keras_dist
from keras_dist._support import extras
from tests import forks
from tests.processes import environment
from tests.soak import few

ROOT = pathlib.Path(__file__).parent.parent
MODULES = sorted(module.name for module in pkgutil.walk_packages(keras_dist.__path__, "keras_dist."))

README = (ROOT / "README.md").read_text()
BLOCKS = [textwrap.dedent(text) for text in re.findall(r"^ *```python\n(.*?)^ *```", README, re.DOTALL | re.MULTILINE)]


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def not_installed_by(extras):
    """The modules that are here, and that neither keras_dist nor these extras of it install."""
    wanted = [*PROJECT["dependencies"], *(each for extra in extras for each in PROJECT["optional-dependencies"][extra])]
    found, left = set(), [(Requirement(each), "") for each in wanted]
    while left:
        requirement, extra = left.pop()
        name = canonicalize_name(requirement.name)
        needed = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if not needed or (name, *sorted(requirement.extras)) in found:
            continue
        found.add((name, *sorted(requirement.extras)))
        try:
            inner = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        left += [(Requirement(each), extra) for each in inner for extra in ("", *requirement.extras)]
    names = {name for name, *_ in found} | {"keras-dist"}
    owners = importlib.metadata.packages_distributions()
    return [module for module, of in owners.items() if not names & {*map(canonicalize_name, of)}]


HIDE = """
import sys
hidden = {hidden}
needs_tfds = "tensorflow_datasets" in hidden and "keras_dist.datasets"  # which `tests.forks` has imported
for name in [*sys.modules]:
    if name.partition(".")[0] in hidden or (needs_tfds and name.startswith(needs_tfds)):
        del sys.modules[name]
if needs_tfds:
    vars(sys.modules["keras_dist"]).pop("datasets", None)
sys.modules.update(dict.fromkeys(hidden))
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize("block", [block for block in BLOCKS if "initialize()" not in block])
def test_every_block_of_the_readme_runs_as_it_stands_without_packages_that_it_does_not_name(block, tmp_path):
    hidden = not_installed_by(re.findall(r"# with the extra (\w+)$", block.splitlines()[0]))
    assert {"keras", "pytest", "matplotlib", "PIL"} <= {*hidden}
    run = forks.python("-c", f"{HIDE.format(hidden=hidden)}{block}", cwd=tmp_path, env=environment())
    assert run.returncode == 0, run.stderr[-2000:]
    if "Model.from_nnx" in block:
        assert len(block.splitlines()) == 10, "the ten lines"
        assert re.search(r"layers/0/kernel.*\(-, model\)", run.stdout) and "Epoch 3/3" in run.stdout


@pytest.mark.multiprocess
def test_the_script_for_several_processes_runs_as_the_readme_says(tmp_path):
    (script,) = [block for block in BLOCKS if "initialize()" in block]
    (tmp_path / "train.py").write_text(f"{HIDE.format(hidden=not_installed_by([]))}{script}")
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


def test_errors_name_the_packages_of_an_extra_and_no_index_is_asked_for_keras_dist():
    packages_of = {
        name: " ".join(sorted(re.split("[<>=]", str(Requirement(each)))[0] for each in needed))
        for name, needed in PROJECT["optional-dependencies"].items()
        if name not in ("bench", "test", "dev")
    }
    assert {name: packages.replace("'", "") for name, packages in extras.PACKAGES.items()} == packages_of
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("keras_dist/**/*.py"), *ROOT.glob("notebooks/*")]
    assert not [
        str(file) for file in texts if "pip install 'keras_dist" in file.read_text() and "CHANGE" not in file.name
    ]


def test_what_is_logged_as_loss_is_said_to_be_weighted_by_rows():  # which tests/models/test_token_weights.py computes
    said = [README, keras_dist.Model.fit.__doc__, keras_dist.Model.evaluate.__doc__]
    assert all("weighted by their rows" in re.sub(r"\s+(# )?", " ", text) for text in said)


def test_the_ways_to_install_are_extras_that_jax_has():
    named = re.findall(r'"jax\[(\w+)\]"', README)
    assert {"cuda13", "tpu"} <= set(named) <= set(importlib.metadata.metadata("jax").get_all("Provides-Extra"))


def test_readme_links_lead_somewhere():
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / "README.md").read_text())
    assert targets
    assert all((ROOT / target).exists() for target in targets)


@pytest.mark.parametrize("name", few(MODULES, *(name for name in MODULES if name != "keras_dist.planner.compiled")))
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
