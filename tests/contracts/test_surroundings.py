"""Tests give the same on every machine: an empty home, no settings, no font cache, no locale."""

import ast
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from matplotlib import font_manager

import keras_dist
from tests.surroundings import CACHE, FOREIGN

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = pathlib.Path(keras_dist.__file__).parent

ISOLATED = """
import json, os, sys
from tests import surroundings
surroundings.isolate()
home = os.environ["HOME"]
with open("probe", "w") as file:
    found = [os.listdir(home), file.encoding, os.stat("probe").st_mode & 0o777, os.path.expanduser("~") == home]
surroundings.remove_home()
print(json.dumps([found, os.path.exists(home), dict(os.environ)]))
"""
HOSTILE = {
    name: "/dev/null/x"
    for name in (
        *(
            "XDG_CACHE_HOME",
            "XDG_CONFIG_HOME",
            "MPLCONFIGDIR",
            "MPLBACKEND",
            "MATPLOTLIBRC",
            "KERAS_HOME",
            "KERAS_BACKEND",
        ),
        *(
            "JAX_ENABLE_X64",
            "FLAX_PROFILE",
            "TFDS_DATA_DIR",
            "TF_CONFIG",
            "HF_HOME",
            "IPYTHONDIR",
            "JUPYTER_CONFIG_DIR",
        ),
        *(
            "SLURM_JOB_ID",
            "KUBERNETES_SERVICE_HOST",
            "MASTER_ADDR",
            "KERAS_DIST_MESH",
            "COLUMNS",
            "FORCE_COLOR",
            "NO_COLOR",
        ),
        *(
            "SOURCE_DATE_EPOCH",
            "PYTHONSTARTUP",
            "PYTHONWARNINGS",
            "PYTHONIOENCODING",
            "GIT_DIR",
            "LANG",
            "LC_TIME",
            "RANK",
        ),
    )
}
KEPT = ("CI", "SOAK", "PATH", "TMPDIR", "XLA_FLAGS", "PIP_INDEX_URL", "HTTPS_PROXY", "PYTHONPATH", "PYTEST_ADDOPTS")


@pytest.mark.multiprocess
@pytest.mark.parametrize("home", [None, "", "/dev/null/home"])
def test_a_run_has_an_empty_home_and_default_settings(home, tmp_path):
    environ = {**HOSTILE, "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LC_ALL": "C", "TERM": "dumb"}
    environ |= {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"} | ({} if home is None else {"HOME": home})
    del environ["PYTHONIOENCODING"], environ["PYTHONWARNINGS"]  # Python itself would complain
    # without `site`, which in such a locale reads no path of this folder that is not ASCII
    command = ["sh", "-c", 'umask 077; exec "$@"', "sh", sys.executable, "-S", "-c", ISOLATED]
    run = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0 and not run.stderr, run.stderr
    found, is_left, seen = json.loads(run.stdout)
    assert found == [[], "UTF-8", 0o644, True] and not is_left
    assert not seen.keys() & HOSTILE.keys() - {"MPLCONFIGDIR"}
    assert os.fsencode(seen["MPLCONFIGDIR"]) == os.fsencode(CACHE / "matplotlib")
    assert (seen["PYTHONUTF8"], seen["PY_COLORS"]) == ("1", "0")


def test_which_variables_are_settings():
    assert all(map(FOREIGN.match, HOSTILE)) and not any(map(FOREIGN.match, KEPT))
    assert pathlib.Path.home() == pathlib.Path(os.environ["HOME"]) and "keras_dist_home_" in os.environ["HOME"]


def test_fonts_are_looked_for_where_no_cache_has_them(monkeypatch, tmp_path):
    """On a machine where matplotlib has not been used, the first picture starts `fc-list`."""
    monkeypatch.setattr(font_manager.mpl, "get_cachedir", lambda: str(tmp_path))
    font_manager._get_fontconfig_fonts.cache_clear()
    assert font_manager._load_fontmanager().ttflist
    assert any(tmp_path.iterdir())


def test_text_files_of_the_package_are_utf_8_whatever_the_locale():
    unsaid = []
    texts = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    for path in (path for path, text in texts.items() if re.search(r"\bopen\(|(read|write)_text\(", text)):
        for node in ast.walk(ast.parse(texts[path])):
            if isinstance(node, ast.Call) and _opens_text(node) and "utf-8" not in ast.unparse(node):
                unsaid.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert not unsaid


def _opens_text(call):
    """Whether this call is `open(...)` in text mode, or a method of `pathlib.Path` that reads or writes text."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr == "read_text" or (call.func.attr == "write_text" and len(call.args) == 1)
    modes = [argument.value for argument in call.args[1:2] if isinstance(argument, ast.Constant)]
    return isinstance(call.func, ast.Name) and call.func.id == "open" and not any("b" in mode for mode in modes)
