"""`keras-dist migrate` prints the rules of a config, and says what became of each."""

import json
import re
import sys
import tomllib

import pytest

import keras_dist as kd
from tests import commands, forks

PROGRAM = """
from keras_dist import dtensor

print("made")
mesh = dtensor.create_mesh([("batch", 2), ("model", 4)])
layout_map = dtensor.keras.LayoutMap(mesh=mesh)
layout_map["feature.*kernel"] = dtensor.Layout.batch_sharded(mesh, "batch", rank=2)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Write the text of the module `their_program`, which can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_program", raising=False)
    return (tmp_path / "their_program.py").write_text


def test_the_table_goes_to_stdout_and_the_rest_to_stderr(program, capsys):
    program(PROGRAM)
    assert commands.run("migrate", "their_program:layout_map") == 0
    output, told = capsys.readouterr()
    assert tomllib.loads(output) == {"distribution": {"layout": {".*feature.*kernel.*": ["batch", "-"]}}}
    assert told.startswith("made\n") and "taken for rules of re.search" in told
    assert commands.run("migrate", "their_program:layout_map", "--matching", "match", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layout"] == {"feature.*kernel.*": ["batch", None]}


def test_a_rule_that_cannot_be_read_ends_with_1_and_no_map_with_2(program, capsys):
    program(PROGRAM + 'rules = {**layout_map, "a": "model"}\ndef make(): pass')
    assert commands.run("migrate", "their_program:rules") == 1
    output, told = capsys.readouterr()
    assert ".*feature.*kernel.*" in output and "problem: rule 'a': expected a list or tuple" in told
    assert commands.run("migrate", "their_program:layuot_map") == 2
    assert "has no 'layuot_map' (did you mean 'layout_map'?)" in capsys.readouterr().err
    assert commands.run("migrate", "their_program:make") == 2
    assert "must be called first" in capsys.readouterr().err
    assert commands.run("migrate", "their_program:layout_map", "--matching", "exact") == 2


def test_an_error_in_the_program_is_not_hidden(program, capsys):
    program('raise ValueError("of the program")')
    assert commands.run("migrate", "their_program:layout_map") == 3
    assert "ValueError: of the program" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nofile.toml", "nofile.json"])
def test_a_file_that_is_not_there_is_told_with_those_beside_it(name, tmp_path, capsys):
    for beside in ("rules.toml", "m.keras"):
        (tmp_path / beside).write_text("")
    assert commands.run("migrate", tmp_path / name) == 2
    output, told = capsys.readouterr()
    assert output == "" and "the file does not exist" in told
    assert "a layout map: a table of rules" in told and "the directory has: rules.toml" in told


def test_a_model_and_a_config_are_not_taken_for_rules(tmp_path, capsys):
    (tmp_path / "m.keras").write_bytes(b"PK\x03\x04\xff")
    assert commands.run("migrate", tmp_path / "m.keras") == 2
    assert "not a layout map by its name" in capsys.readouterr().err
    (tmp_path / "model.json").write_text(kd.Sequential([kd.Input((3,)), kd.layers.Dense(2)]).to_json())
    (tmp_path / "run.toml").write_text('model = "m:n"\nmesh.shape = "m=2"')
    for name in ("model.json", "run.toml"):
        assert commands.run("migrate", tmp_path / name) == 2
        output, told = capsys.readouterr()
        assert output == "" and "has no rules of a layout map" in told and "name a table of rules" in told


def test_the_documents_show_what_it_prints(program, capsys):
    text = (forks.ROOT / "docs" / "migrating.md").read_text().partition("## Layout maps as configs")[2]
    text_of_program, printed = re.search(r"```python\n(.*?)```.*?```console\n\$.*?\n(.*?)```", text, re.DOTALL).groups()
    program(text_of_program)
    assert commands.run("migrate", "their_program:layout_map") == 0
    assert capsys.readouterr().out == printed
