"""The notebooks run from beginning to end. `python -m tests.test_notebooks` writes what they print into them."""

import pathlib

import nbclient
import nbformat
import pytest

from tests.processes import environment

NOTEBOOKS = sorted((pathlib.Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
EVERY_NOTEBOOK = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


def read(path):
    notebook = nbformat.read(path, as_version=4)
    return notebook, [cell for cell in notebook.cells if cell.cell_type == "code"]


def run(path):
    """The notebook after a run, with its outputs, and nothing else that depends on the machine."""
    notebook, cells = read(path)
    metadata = nbformat.from_dict(dict(notebook.metadata))
    nbclient.NotebookClient(notebook, timeout=300).execute(env=environment(), cwd=path.parent)
    notebook.metadata = metadata
    for cell in cells:
        cell.metadata.pop("execution", None)
    return notebook, cells


def test_there_are_some():
    assert NOTEBOOKS


@EVERY_NOTEBOOK
def test_it_is_valid_and_kept_with_its_outputs(path):
    notebook, cells = read(path)
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run `make notebooks`"
    assert any(cell.outputs for cell in cells) and not any("execution" in cell.metadata for cell in cells)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert set(notebook.metadata.language_info) == {"name"}


@EVERY_NOTEBOOK
@pytest.mark.slow
@pytest.mark.multiprocess
def test_it_runs_without_errors_and_warnings(path):
    _, kept = read(path)
    _, cells = run(path)
    for cell, before in zip(cells, kept, strict=True):
        assert not [output.text for output in cell.outputs if output.get("name") == "stderr"], cell.source
        assert bool(cell.outputs) == bool(before.outputs), "what is kept is of another version: run `make notebooks`"


if __name__ == "__main__":
    for each in NOTEBOOKS:
        nbformat.write(run(each)[0], each)
