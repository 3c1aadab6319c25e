"""SECURITY.md and the page on security agree, and say what configs do."""

import importlib
import sys

from keras_dist import assembly, config
from tests import forks

POLICY, PAGE = ((forks.ROOT / name).read_text() for name in ("SECURITY.md", "docs/concepts/security.md"))


def paragraph(begin, text):
    (found,) = (one for one in text.split("\n\n") if one.startswith(begin))
    return found.split()


def test_both_say_the_same_of_configs_and_of_the_working_directory():
    for begin in ("A config names code", "The commands `train`"):
        assert paragraph(begin, POLICY) == paragraph(begin, PAGE)


def test_a_config_is_read_without_its_modules_which_a_run_imports(tmp_path, monkeypatch):
    (tmp_path / "named_here.py").write_text("import keras_dist as kd\nMAP = {}\n")
    (tmp_path / "run.toml").write_text('mesh.shape = "data=8"\nmodel.name = "named_here:MAP"\n')
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    config.load(tmp_path / "run.toml")
    assert "named_here" not in sys.modules
    assert assembly.imported("named_here:MAP", "MAP") == {}
    assert "named_here" in sys.modules
