"""Files that would take parsers seconds, or for ever, are refused before."""

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

SIZE = LIMIT_BYTES - 64
SECONDS = 2.0  # of CPU; without the limits these take from ten seconds to for ever
DEEP = "nested too deeply"
LISTS = "a0: &a0 [x, x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 30))


@pytest.mark.parametrize(
    ("suffix", "text", "said"),
    {
        "brackets.toml": (".toml", f"a = {'[' * (SIZE // 2)}{']' * (SIZE // 2)}", DEEP),
        "braces.json": (".json", f"{'[' * (SIZE // 2)}{']' * (SIZE // 2)}", DEEP),
        "brackets.yaml": (".yaml", f"{'[' * (SIZE // 2)}{']' * (SIZE // 2)}", DEEP),
        "dashes.yaml": (".yaml", f"{'- ' * (SIZE // 2)}1", DEEP),
        "questions.yaml": (".yaml", f"{'? ' * (SIZE // 2)}1", DEEP),
        "indents.yaml": (".yaml", "".join(f"{' ' * n}a:\n" for n in range(400)), DEEP),
        "dots.toml": (".toml", f"{'.'.join('a' * (SIZE // 2))} = 1", DEEP),
        "quoted dots.toml": (".toml", ".".join(['"a"'] * (SIZE // 4)) + " = 1", DEEP),
        "header.toml": (".toml", f"[{'.'.join('a' * (SIZE // 2))}]", DEEP),
        "inline.toml": (".toml", f"x = {{{'.'.join('a' * (SIZE // 2 - 8))} = 1}}", DEEP),
        "hidden.toml": (".toml", f'x = {{a = """\n\' """, {".".join("b" * (SIZE // 2 - 16))} = 1}}', DEEP),
        "hidden behind quotes.toml": (
            ".toml",
            f'x = {{a = """a"""", {".".join("b" * (SIZE // 2 - 16))} = 1}}',
            DEEP,
        ),
        "hidden too.toml": (".toml", f"x = ['''\n\" ''', {'[' * (SIZE // 2)}", DEEP),
        "aliases.yaml": (".yaml", LISTS, "says too much"),
        "merges.yaml": (".yaml", MERGES, "says too much"),
        "itself.yaml": (".yaml", f"a: &a [{'*a, ' * 9}]", "a[0]: contains itself"),
        "digits.toml": (".toml", f"a = {'1' * SIZE}", "digits"),
    }.values(),
)
def test_what_is_too_much_is_refused_in_time(refused: Refused, suffix: str, text: str, said: str) -> None:
    began = time.process_time()
    error = refused(text, suffix)
    assert time.process_time() - began < SECONDS
    assert said in error.summary
    assert error.fix


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
    with pytest.raises(ConfigError, match="regular file"):
        load(tmp_path / "run.toml", environ={})


def test_brackets_and_dots_in_texts_and_comments_do_not_nest(loaded: Loaded) -> None:
    rules = "".join(f"'{bracket * 40}' = ['-']\n" for bracket in (r"\[", r"\{", "a."))
    text = f"# {'[' * 99} {'a.' * 99}\nmesh.shape = {{data = 2}} # {'{' * 99}\n[distribution.layout]\n{rules}"
    text += f'"{"a." * 50}\\"{"b" * 40}" = ["-"]'
    loaded(text)
    layers = {f"layer{n}/kernel": ["-", "data"] for n in range(1000)}
    loaded("mesh: {shape: {data: 2}}\ndistribution:\n  layout: " + str(layers), ".yaml")


MESH = 'mesh.shape = "data=2,model=4"\n'


@pytest.mark.parametrize(
    ("text", "count"),
    {
        "keys": (MESH + "".join(f"k{n} = 1\n" for n in range(9_000)), 9_000),
        "tables": (MESH + "".join(f"[t{n}]\n" for n in range(9_000)), 9_000),
        "wrong axes": (
            MESH + "[distribution.layout]\n" + "".join(f'"r{n}" = ["modl"]\n' for n in range(1_000)),
            1_000,
        ),
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
    assert error.summary == "run.toml: data: a variable of the environment is not closed"


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
