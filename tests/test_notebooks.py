"""The notebooks run from beginning to end, and are kept without what a run leaves in them."""

import os
import pathlib

import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted((pathlib.Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
EVERY_NOTEBOOK = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


def read(path):
    notebook = nbformat.read(path, as_version=4)
    return notebook, [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_some():
    assert NOTEBOOKS


@EVERY_NOTEBOOK
def test_it_is_valid_and_has_no_outputs(path):
    notebook, cells = read(path)
    nbformat.validate(notebook)
    assert not any(cell.outputs or cell.execution_count for cell in cells), "clear all outputs before you save"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert set(notebook.metadata.language_info) == {"name"}


@EVERY_NOTEBOOK
@pytest.mark.slow
@pytest.mark.multiprocess
def test_it_runs_without_errors_and_warnings(path):
    notebook, cells = read(path)
    mine = ("XLA_FLAGS", "PJRT_NPROC", "JAX_PLATFORMS")  # of this process: the notebook makes its devices itself
    environment = {name: value for name, value in os.environ.items() if name not in mine}
    nbclient.NotebookClient(notebook, timeout=300).execute(env=environment, cwd=path.parent)
    for cell in cells:
        assert not [output.text for output in cell.outputs if output.get("name") == "stderr"], cell.source
