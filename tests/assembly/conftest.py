"""What the tests of runs share."""

import pathlib
import sys

import pytest

from tests.assembly.my_run import MODULE, TOML


@pytest.fixture(autouse=True)
def my_run(tmp_path, monkeypatch):
    """A module of a user, and a config of a run of it."""
    (tmp_path / "my_run.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    pathlib.Path("run.toml").write_text(TOML)
    yield
    sys.modules.pop("my_run", None)
