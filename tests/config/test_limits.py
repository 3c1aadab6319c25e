"""Files that are too large, and very many problems."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_dist.config import load
from keras_dist.config.formats import LIMIT_BYTES
from keras_dist.errors import ConfigError

Refused = Callable[..., ConfigError]
Loaded = Callable[..., object]

SECONDS = 2.0  # of CPU
LISTS = "a0: &a0 [x, x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))


def test_aliases_that_stand_for_very_many_values_are_refused_in_time(refused: Refused) -> None:
    began = time.process_time()
    error = refused(LISTS, ".yaml")
    assert time.process_time() - began < SECONDS
    assert "has too many values" in error.summary and error.fix


@pytest.mark.parametrize("suffix", [".toml", ".yaml", ".json"])
def test_a_large_file_is_not_read(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / f"run{suffix}"
    with file.open("wb") as sparse:
        sparse.truncate(100 << 20)
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(ConfigError, match="is too large") as caught:
        load(file, environ={})
    assert caught.value.given == "104,857,600 bytes"
    assert caught.value.expected == f"at most {LIMIT_BYTES:,} bytes"


@pytest.mark.skipif(os.name != "posix", reason="named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.toml")
    with pytest.raises(ConfigError, match="is not a regular file"):
        load(tmp_path / "run.toml", environ={})


MESH = 'mesh.shape = "data=2,model=4"\n'


@pytest.mark.parametrize(
    ("text", "count"),
    {
        "keys": (MESH + "".join(f"k{n} = 1\n" for n in range(9_000)), 9_000),
        "tables": (MESH + "".join(f"[t{n}]\n" for n in range(9_000)), 9_000),
        "wrong axes": (MESH + "[distribution.layout]\n" + "".join(f'"r{n}" = ["modl"]\n' for n in range(1_000)), 1_000),
        "variables": (MESH + f'data = "{"".join(f"${{V{n}}}" for n in range(9_000))}"', 9_000),
    }.values(),
)
def test_the_first_of_very_many_problems_are_told_in_time(refused: Refused, text: str, count: int) -> None:
    began = time.process_time()
    error = str(refused(text))
    assert time.process_time() - began < SECONDS
    assert error.startswith(f"run.toml: {count:,} problems")
    assert error.endswith(f"and {count - 20:,} more")
    assert error.count("given: ") == 20


def test_openings_of_variables_are_one_problem(refused: Refused) -> None:
    began = time.process_time()
    error = refused(f'{MESH}data = "{"${" * 50_000}"')
    assert time.process_time() - began < SECONDS
    assert error.summary == "run.toml: data: `${` has no closing brace"


@pytest.mark.parametrize("shape", ['"data=1000000,model=1000000"', "{data = 131073}", '"data=-1,model=200000"'])
def test_a_mesh_that_no_machine_has_is_refused(refused: Refused, shape: str) -> None:
    error = refused(f"mesh.shape = {shape}")
    assert error.summary.startswith("run.toml: mesh.shape: a mesh of ")
    assert "131,072 devices" in error.expected


def test_slices_count_as_devices(refused: Refused, loaded: Loaded) -> None:
    error = refused('mesh = {shape = "data=65536", dcn_shape = "data=4"}')
    assert error.summary == "run.toml: mesh.dcn_shape: a mesh of 262,144 devices or more is too large"
    loaded('mesh = {shape = "data=65536", dcn_shape = "data=2"}')


def test_slices_of_an_axis_that_the_mesh_does_not_have(refused: Refused) -> None:
    error = refused('mesh = {shape = "data=2,model=4", dcn_shape = {slices = 2}}')
    assert error.summary == "run.toml: mesh.dcn_shape: mesh.shape has no axis 'slices'"
    assert error.expected == 'an axis of mesh.shape: "data", "model"'


def merges(levels: int) -> str:
    lines = (f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, levels))
    return "a0: &a0 {x: 1}\n" + "".join(lines)


@pytest.mark.parametrize("text", [merges(7), merges(30), f"a: &a {{x: 1}}\nb: {{<<: [{'*a, ' * 20_000}]}}"])
def test_merge_keys_that_stand_for_very_many_values_are_refused_in_time(refused: Refused, text: str) -> None:
    began = time.process_time()
    error = refused(text, ".yaml")
    assert time.process_time() - began < SECONDS
    assert "merge keys have too many values" in error.summary and "line " in error.summary


def test_merge_keys_that_share_a_table_are_read(loaded: Loaded) -> None:
    text = "mesh:\n  <<: &base {shape: {data: 2, model: 4}}\ndistribution: {batch_axis: data}\n"
    assert loaded(text, ".yaml") == loaded(f'{MESH}distribution.batch_axis = "data"')


HIDDEN = 'x = {"[\'" = ["]"], "["' + ".a" * 60_000 + '."]" = 1}'
DEEP, LONG = ".".join("a" * 4000), "9" * 4400


@pytest.mark.parametrize(
    ("text", "suffix", "words"),
    [
        (f"{MESH}{DEEP} = 1", ".toml", "column 1: a key has too many parts"),
        (f"{MESH}[{DEEP}]", ".toml", "a key has too many parts"),
        (HIDDEN, ".toml", "a key has too many parts"),
        (f"x = [{'0.5, ' * 900}]\ny = '{'a b. ' * 900}' # {'a.b, ' * 900}", ".toml", "mesh: is missing"),
        (f"x: [{'1, ' * 40_000}]", ".yaml", "has too many values"),
        ('{"' + "k" * 50_000 + '": 1}', ".json", f'{"k" * 80}...": unknown'),
        (f"{MESH}training.batch_size = {LONG}", ".toml", "4,300 digits"),
        (f"{MESH}training.batch_size = 0x{LONG}", ".toml", "batch_size: is too large"),
        (f"mesh.shape = {{data = 0x{LONG}}}", ".toml", "data: is too large"),
        (f'{{"training": {{"batch_size": {LONG}}}}}', ".json", "4,300 digits"),
        (f'{{"training": {{"batch_size": {LONG[:4200]}}}}}', ".json", "batch_size: is too large"),
        ('{"a":' * 900 + "1" + "}" * 900, ".json", "nested too deeply"),
        (f"training: {{batch_size: {LONG}}}", ".yaml", "4,300 digits"),
        (f"training: {{batch_size: 0x{LONG}}}", ".yaml", "batch_size: is too large"),
    ],
)
def test_keys_of_many_parts_and_numbers_of_many_digits(refused: Refused, text: str, suffix: str, words: str) -> None:
    error = str(refused(text, suffix))
    assert words in error and len(error) < 2000
