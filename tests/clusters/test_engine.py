"""Engines that are not installed are skipped, and those that are leave nothing behind."""

import pathlib

import psutil
import pytest

from tests.clusters import engine
from tests.clusters.engine import Engine


def test_a_missing_engine_is_a_skip_that_names_its_package(monkeypatch):
    monkeypatch.setattr(engine.shutil, "which", lambda program, path: None)
    with pytest.raises(pytest.skip.Exception, match="slurmctld is missing: apt-get install slurm-wlm"):
        engine.require("slurm-wlm", "slurmctld")


@pytest.mark.multiprocess
def test_an_engine_ends_its_orphans_and_names_them(tmp_path, monkeypatch):
    tree = Engine(tmp_path)
    file = tmp_path / "pid"
    tree.start("sh", "-c", f"setsid sh -c 'echo $$ > {file}.draft; mv {file}.draft {file}; exec sleep 600' &")
    engine.wait_until(file.exists, tree.names)
    orphan = psutil.Process(int(pathlib.Path(file).read_text()))
    monkeypatch.setattr(engine, "MOMENT_S", 1)
    with pytest.raises(AssertionError, match="sleep"):
        tree.close()
    assert not orphan.is_running()
