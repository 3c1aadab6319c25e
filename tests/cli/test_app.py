"""What all commands share: help without JAX, errors as lines, exit codes, completion."""

import importlib
import json
import os
import re
import subprocess
import sys
import tomllib

import pytest

import keras_dist as kd
from keras_dist import assembly, errors
from tests import commands, forks

COMMANDS = ["train", "plan", "auto", "explain", "check", "devices", "doctor", "convert", "demo", "launch"]


def python(*arguments, **env):
    return subprocess.run(
        [sys.executable, *arguments], env=os.environ | env, capture_output=True, text=True, check=False
    )


@pytest.mark.multiprocess
def test_help_loads_neither_jax_nor_what_else_takes_long():
    program = f"""
import sys
from keras_dist.cli.app import app
for arguments in [["--help"], *([command, "--help"] for command in {COMMANDS})]:
    try:
        app(arguments)
    except SystemExit as ended:
        assert not ended.code
print([name for name in ("jax", "flax", "numpy", "rich", "yaml") if name in sys.modules])
"""
    run = python("-c", program)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "[]"


def test_help_lists_the_commands_and_the_exit_codes(capsys):
    assert commands.run("--help") == 0
    text = capsys.readouterr().out
    assert re.findall(r"^  (\w+) {2,}\w", text.partition("Commands:")[2].partition("Exit codes")[0], re.M) == COMMANDS
    assert [int(code) for code in re.findall(r"^    (\d+) {2,}\w", text, re.M)] == [0, 1, 2, 3, 4, 75, 130]
    assert "..." not in text.partition("Commands:")[2], "the first sentences of commands fit on a line"


def test_the_page_of_the_shell_lists_them_too():
    text = (forks.ROOT / "docs" / "reference" / "shell.md").read_text()
    assert sorted(re.findall(r"^\| `(\w+)", text, re.M)[1:]) == sorted(COMMANDS)
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", text, re.M)] == [0, 1, 2, 3, 4, 75, 130]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_and_debug(command, capsys):
    assert commands.run(command, "--help") == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: keras-dist {command} [OPTIONS]")
    assert "--debug" in text
    assert ("--json" in text) == (command in ("plan", "auto", "explain", "check", "devices", "doctor"))


@pytest.mark.multiprocess
def test_the_module_and_the_script_are_the_same_program():
    run = python("-m", "keras_dist", "--version")
    assert (run.returncode, run.stdout) == (0, f"keras_dist {kd.__version__}\n")
    scripts = tomllib.loads((forks.ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["keras-dist"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.multiprocess
def test_shells_complete_commands_and_options():
    ask = {"_KERAS_DIST_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
    assert python("-m", "keras_dist", **ask, COMP_WORDS="keras-dist d").stdout.split() == ["devices", "doctor", "demo"]
    words = ask | {"COMP_WORDS": "keras-dist plan --m", "COMP_CWORD": "2"}
    assert python("-m", "keras_dist", **words).stdout.split() == ["--mesh"]
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # whatever shell started the tests
    assert "_KERAS_DIST_COMPLETE" in python("-m", "keras_dist", "--show-completion", "bash", **named).stdout


@pytest.mark.parametrize(
    "arguments", [[], ["plaan"], ["train"], ["devices", "--fake", "0"], ["doctor", "a", "b"]], ids=str
)
def test_wrong_usage_ends_with_2(arguments, capsys):
    assert commands.run(*arguments) == 2
    assert "Usage: keras-dist" in "".join(capsys.readouterr())


def test_errors_are_their_lines_and_end_with_2(tmp_path, capsys):
    assert commands.run("doctor", tmp_path / "missing") == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("CheckpointError: examine: ")
    assert [line.split()[0] for line in lines[1:]] == ["given:", "fix:"]
    assert commands.run("doctor", tmp_path / "missing", "--debug") == 2
    assert capsys.readouterr().err.startswith("Traceback (most recent call last)")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (errors.DataError("no rows", fix="add some"), 2, "DataError: no rows\n  fix:      add some\n"),
        (ZeroDivisionError("by zero"), 3, "ZeroDivisionError: by zero\n(--debug shows the traceback)\n"),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(75), 75, ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_how_a_training_ends_is_the_exit_code(error, code, line, tmp_path, capsys, monkeypatch):
    (tmp_path / "run.toml").write_text("mesh.shape = 'data=8'")

    def train(config):
        raise error

    monkeypatch.setattr(assembly, "train", train)
    assert commands.run("train", tmp_path / "run.toml") == code
    assert capsys.readouterr().err == line
    if isinstance(error, Exception):
        assert commands.run("train", tmp_path / "run.toml", "--debug") == code
        assert "in train\n" in capsys.readouterr().err


def test_options_change_the_config(tmp_path, monkeypatch):
    (tmp_path / "run.toml").write_text("mesh.shape = 'data=8'")
    given = []
    monkeypatch.setattr(assembly, "train", given.append)
    monkeypatch.setenv("KERAS_DIST_MESH", "data=2,model=4")
    options = ["--set", "training.epochs=3", "--set", "optimizer=adam"]
    assert commands.run("train", tmp_path / "run.toml", "--mesh", "data=4,model=2", *options) == 0
    assert commands.run("train", tmp_path / "run.toml") == 0
    assert [config.mesh.shape for config in given] == [{"data": 4, "model": 2}, {"data": 2, "model": 4}]
    assert (given[0].training.epochs, given[0].optimizer.name) == (3, "adam")


def test_mistakes_in_options_are_named(tmp_path, capsys):
    (tmp_path / "run.toml").write_text("mesh.shape = 'data=8'")
    assert commands.run("train", tmp_path / "run.toml", "--set", "training.epoch=3") == 2
    assert "--set training.epoch=3: training.epoch: unknown key (did you mean 'epochs'?)" in capsys.readouterr().err
    assert commands.run("train", tmp_path / "run.toml", "--mesh", "data") == 2
    assert "'data' has no '='" in capsys.readouterr().err


def test_devices_and_their_meshes(capsys):
    assert commands.run("devices", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["devices"] == kd.list_devices() and {"data": 2, "model": 4} in found["mesh_shapes"]
    assert commands.run("devices") == 0
    assert capsys.readouterr().out.startswith("8 devices (cpu): cpu:0")
    assert commands.run("devices", "--fake", 4) == 2
    assert "JAX has already started" in capsys.readouterr().err


@pytest.mark.multiprocess
def test_so_many_fake_devices(monkeypatch):
    run = python("-m", "keras_dist", "devices", "--fake", "3", "--json", XLA_FLAGS="", PJRT_NPROC="")
    found = json.loads(run.stdout)
    assert found["fake_devices"] == 3 and found["environment"]["PJRT_NPROC"] == "6"
    assert [shape["model"] for shape in found["mesh_shapes"]] == [1, 3]
