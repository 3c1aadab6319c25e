"""What the documentation shows, runs."""

import doctest
import importlib
import importlib.metadata
import json
import pathlib
import re
import socket
import subprocess
import textwrap
import tomllib

import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from keras_dist._support import extras
from keras_dist.cli.app import app
from tests import forks
from tests.documents import coverage
from tests.processes import environment

ROOT = pathlib.Path(__file__).parent.parent
FILES = sorted((ROOT / "keras_dist").rglob("*.py"))
EXAMPLES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in FILES
    if re.search(r"^ *>>> ", path.read_text(), re.MULTILINE)
]

README = (ROOT / "README.md").read_text()
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "generated" not in path.parts]
"""The pages of the site that are written by hand; `tests/documents/test_migrating.py` runs the one about migrating, and
`tests/clusters/test_ray.py` the one about Ray."""


def blocks(text, language="python"):
    """The blocks of a document in a language, without their indent."""
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for block in found]


def file_of(block):
    """The name of the file that a block is to be, which its first line says: `# train.py`."""
    first = re.match(r"# ([\w/]+\.py)$", block.partition("\n")[0])
    return first and first[1]


BLOCKS = blocks(README)
PROGRAMS = [page for page in PAGES if page.name not in ("migrating.md", "ray.md") and blocks(page.read_text())]


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
    names = {name for name, *_ in found} | {"keras-dist", "sphinx"}  # scikit-learn looks for it in `sys.modules`
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
@pytest.mark.parametrize("block", [block for block in BLOCKS if "kd.initialize()" not in block])
def test_every_block_of_the_readme_runs_as_it_stands_without_packages_that_it_does_not_name(block, tmp_path):
    hidden = not_installed_by([])
    assert {"keras", "pytest", "matplotlib", "PIL"} <= {*hidden}
    run = forks.python("-c", f"{HIDE.format(hidden=hidden)}{block}", cwd=tmp_path, env=environment())
    assert run.returncode == 0, run.stderr[-2000:]
    if "Model.from_nnx" in block:
        assert len(block.splitlines()) == 10, "the ten lines"
        assert re.search(r"layers/0/kernel.*\(-, model\)", run.stdout) and "Epoch 3/3" in run.stdout


@pytest.mark.multiprocess
@pytest.mark.parametrize("page", PROGRAMS, ids=[str(page.relative_to(ROOT)) for page in PROGRAMS])
def test_the_blocks_of_a_page_run_in_their_order_without_packages_that_it_does_not_name(page, tmp_path):
    shown = blocks(page.read_text())
    for name, block in [(name, block) for block in shown if (name := file_of(block))]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(block)
    program = "\n".join(block for block in shown if "kd.initialize()" not in block)
    hidden = HIDE.format(hidden=not_installed_by(re.findall(r"# with the extra (\w+)$", program, re.MULTILINE)))
    run = forks.python("-c", f"{hidden}{program}", cwd=tmp_path, env=environment())
    assert run.returncode == 0, run.stderr[-2000:]


JOBS = [page for page in PROGRAMS if "kd.initialize()" in page.read_text() and page.parent.name != "start"]


@pytest.mark.multiprocess
@pytest.mark.parametrize("page", JOBS, ids=[str(page.relative_to(ROOT)) for page in JOBS])
def test_the_scripts_of_a_page_for_several_processes_run_in_the_launcher(page, tmp_path):
    for block in [block for block in blocks(page.read_text()) if "kd.initialize()" in block]:
        name = file_of(block) or "script.py"
        (tmp_path / name).write_text(block)
        command = ("-m", "keras_dist", "launch", "--processes", "2", "--", name)
        run = forks.python(*command, cwd=tmp_path, env=environment())
        assert run.returncode == 0, run.stderr[-2000:]


def parsed(language, block):
    """Raise where a block of data is not of its language."""
    readers = {"toml": tomllib.loads, "json": json.loads, "yaml": lambda text: [*yaml.safe_load_all(text)]}
    return readers[language](block)


@pytest.mark.parametrize("language", ["toml", "json", "yaml"])
def test_blocks_of_data_are_of_their_language(language):
    for page in [ROOT / "README.md", *PAGES]:
        for block in blocks(page.read_text(), language):
            parsed(language, block)


COMMAND = re.compile(r"^(?:\$ )?keras-dist ([a-z]\w*)(.*)$", re.MULTILINE)


def test_commands_that_pages_show_have_these_options():
    known = {name: {*(o for p in command.params for o in (*p.opts, *p.secondary_opts)), "--help"} for name, command in
             typer.main.get_command(app).commands.items()}  # fmt: skip
    shown = [
        (page.name, *found.groups())
        for page in [ROOT / "README.md", *PAGES]
        for block in blocks(page.read_text(), "(?:console|bash|sh|shell)")
        for found in COMMAND.finditer(block.replace("\\\n", " "))
    ]
    assert len(shown) > 5
    for name, command, rest in shown:
        options = {*re.findall(r"(?<= )--[a-z][\w-]*", re.split(r" -- | #", rest)[0])}
        assert command in known and options <= known[command], (name, command, options - known.get(command, set()))


UNTRIED = re.compile(r"^\$ (?:sbatch|kubectl|gcloud|mpirun|sky|systemctl) ", re.MULTILINE)


@pytest.mark.multiprocess
def test_shell_blocks_are_bash_and_pages_say_which_commands_were_not_run():
    untried = 0
    for page in [ROOT / "README.md", *PAGES]:
        text = page.read_text()
        for block in blocks(text, "(?:console|bash|sh|shell)"):
            typed = re.findall(r"^\$ (.*)$", block, re.MULTILINE)
            done = subprocess.run(
                ["bash", "-n"], input="\n".join(typed) or block, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, (page.name, done.stderr)
            untried += bool(UNTRIED.search(block))
            assert not UNTRIED.search(block) or re.search(r"have\s+not been run on such machines", text), page.name
    assert untried > 2


def test_the_readme_is_two_screens():
    assert len(README.encode()) <= 9 * 1024
    first, *_ = README.partition("\n## ")
    assert "<picture>" in first and "make demo" in first and BLOCKS[0] in first


SEVERAL = (ROOT / "docs" / "start" / "several_processes.md").read_text()


@pytest.mark.multiprocess
def test_the_script_for_several_processes_runs_as_its_page_says(tmp_path):
    script = next(block for block in blocks(SEVERAL) if file_of(block) == "train.py")
    (tmp_path / "train.py").write_text(f"{HIDE.format(hidden=not_installed_by([]))}{script}")
    shared = dict(re.findall(r"(KERAS_DISTRIBUTION_(?:JOB_ADDRESSES|NUM_PROCESSES))=(\S+)", SEVERAL))
    commands = re.findall(r"^\$ (KERAS_DISTRIBUTION_PROCESS_ID)=(\d) python train.py", SEVERAL, re.MULTILINE)
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


@pytest.mark.multiprocess
def test_the_job_that_kills_one_of_its_processes_heals(tmp_path):
    script = next(block for block in blocks(SEVERAL) if file_of(block) == "heal.py")
    (tmp_path / "heal.py").write_text(script)
    run = forks.python(
        "-m", "keras_dist", "launch", "--processes", "2", "--", "heal.py", cwd=tmp_path, env=environment()
    )
    assert run.returncode == 0, run.stderr[-2000:]
    printed = run.stdout + run.stderr
    assert all(
        line in printed for line in ("was ended by SIGKILL; saved: ", "restart 1 of 3", "resuming from ", "Epoch 4/4")
    )


def test_errors_name_the_packages_of_an_extra_and_no_index_is_asked_for_keras_dist():
    packages_of = {
        name: " ".join(sorted(re.split("[<>=]", str(Requirement(each)))[0] for each in needed))
        for name, needed in PROJECT["optional-dependencies"].items()
        if name not in ("bench", "docs", "test", "dev")
    }
    assert {name: packages.replace("'", "") for name, packages in extras.PACKAGES.items()} == packages_of
    texts = [*ROOT.glob("*.md"), *PAGES, *FILES, *ROOT.glob("notebooks/*")]
    assert not [
        str(file) for file in texts if "pip install 'keras_dist" in file.read_text() and "CHANGE" not in file.name
    ]


def test_the_ways_to_install_are_extras_that_jax_has():
    named = re.findall(r'"jax\[(\w+)\]"', (ROOT / "docs" / "start" / "install.md").read_text())
    assert {"cuda13", "tpu"} <= set(named) <= set(importlib.metadata.metadata("jax").get_all("Provides-Extra"))


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", *PAGES]:
        targets = re.findall(r"\]\((?!http)([^)#\s]+)[^)]*\)|(?:src|srcset)=\"([^\"]+)\"", page.read_text())
        missing = [each for pair in targets for each in pair if each and not (page.parent / each).exists()]
        assert not [each for each in missing if "reference/generated/" not in each and "generated/" not in each], page


def test_every_public_name_is_on_a_page_and_has_an_example_or_a_reason():
    found = coverage.outcomes()
    assert not found[coverage.NO_PAGE] and not found[coverage.MISSING]
    with_reasons = {f"keras_dist.{name}" for names in coverage.OF_NAMES.values() for name in names.split()}
    assert with_reasons <= {*found[coverage.REASON], *found[coverage.EXAMPLE]}


@pytest.mark.slow  # most of them train, and the tests of each module show sooner what is wrong
@pytest.mark.parametrize("name", EXAMPLES)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0 < result.attempted
