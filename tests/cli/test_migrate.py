"""`keras-dist migrate` prints the rules of a config, and says what became of each."""

import json
import re
import tomllib

import pytest

import keras_dist as kd
from tests import commands, forks

PROGRAM = """
layout_map = dtensor.keras.LayoutMap(mesh=mesh)
layout_map["feature.*kernel"] = dtensor.Layout.batch_sharded(mesh, "batch", rank=2)
"""


def test_the_table_goes_to_stdout_and_the_rest_to_stderr(tmp_path, capsys):
    (tmp_path / "train.py").write_text(PROGRAM)
    assert commands.run("migrate", tmp_path / "train.py") == 0
    output, told = capsys.readouterr()
    assert tomllib.loads(output) == {"distribution": {"layout": {".*feature.*kernel.*": ["batch", "-"]}}}
    assert "taken for rules of re.search" in told
    assert commands.run("migrate", tmp_path / "train.py", "--matching", "match", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layout"] == {"feature.*kernel.*": ["batch", None]}


def test_what_cannot_be_read_ends_with_1_and_no_file_with_2(tmp_path, capsys):
    (tmp_path / "train.py").write_text(PROGRAM + 'layout_map["a"] = f()')
    assert commands.run("migrate", tmp_path / "train.py") == 1
    output, told = capsys.readouterr()
    assert ".*feature.*kernel.*" in output and "problem: line 4: layout_map['a'] = f()" in told
    assert commands.run("migrate", tmp_path / "missing.py") == 2
    assert commands.run("migrate", tmp_path / "train.py", "--matching", "exact") == 2


@pytest.mark.parametrize("name", ["nofile.py", "nofile.toml", "nofile"])
def test_a_file_that_is_not_there_is_told_with_those_beside_it(name, tmp_path, capsys):
    for beside in ("rules.py", "rules.toml", "m.keras"):
        (tmp_path / beside).write_text("")
    assert commands.run("migrate", tmp_path / name) == 2
    output, told = capsys.readouterr()
    assert output == "" and "there is no such file" in told
    assert "a layout map: a table of rules" in told and "beside it are: rules.py, rules.toml" in told


@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5", "m.safetensors"])
def test_a_model_is_not_taken_for_rules(name, tmp_path, capsys):
    (tmp_path / name).write_bytes(b"PK\x03\x04\xff")
    assert commands.run("migrate", tmp_path / name) == 2
    told = capsys.readouterr().err
    assert "not a layout map by its name" in told and "of files of models and weights" in told
    assert "name the program or the table in which the rules are" in told and "rename" not in told


def test_a_config_of_keras_is_not_taken_for_rules(tmp_path, capsys):
    (tmp_path / "model.json").write_text(kd.Sequential([kd.Input((3,)), kd.layers.Dense(2)]).to_json())
    assert commands.run("migrate", tmp_path / "model.json") == 2
    output, told = capsys.readouterr()
    assert output == "" and "is the config of an object of Keras" in told and 'class_name="Sequential"' in told
    assert "name the program or the table in which the rules are" in told


@pytest.mark.parametrize(
    "distribution", ["", '[distribution]\nstrategy = "model_parallel"\nlayout = {"d1/kernel" = ["m"]}']
)
def test_a_config_is_not_taken_for_rules(tmp_path, capsys, distribution):
    file = tmp_path / "run.toml"
    file.write_text(f'model = "m:n"\nmesh.shape = "m=2"\n{distribution}')
    assert commands.run("migrate", file) == 2
    output, told = capsys.readouterr()
    assert output == "" and "is the config of a run, not a layout map" in told and "settings model, mesh" in told
    assert f"keras-dist check {file}" in told
    file.write_text('mesh = ["m"]\nmodel = 1')
    assert commands.run("migrate", file) == 1, "a layer may be called as a setting"
    assert "'mesh' -> '.*mesh.*'" in capsys.readouterr().err


def test_the_documents_show_what_it_prints(tmp_path, capsys):
    text = (forks.ROOT / "docs" / "migrating.md").read_text().partition("## Layout maps as configs")[2]
    program, printed = re.search(
        r"```python tensorflow\n(.*?)```.*?```console\n\$.*?\n(.*?)```", text, re.DOTALL
    ).groups()
    (tmp_path / "model.py").write_text(program)
    assert commands.run("migrate", tmp_path / "model.py") == 0
    assert capsys.readouterr().out == printed
