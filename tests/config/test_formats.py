"""Files that cannot be read, and why."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_dist.config import RunConfig, load
from keras_dist.errors import ConfigError

Load = Callable[..., RunConfig]
Refused = Callable[..., ConfigError]

TOML = """
[mesh]
shape = {data = 2, model = 4}
[distribution]
batch_axis = "data"
layout = {"d1/kernel" = ["-", "model"], "e/kernel" = [["data", "model"], "-"]}
"""
YAML = """
mesh:
  shape: {data: 2, model: 4}
distribution:
  batch_axis: data
  layout:
    d1/kernel: ["-", model]
    e/kernel:
      - [data, model]
      - null
"""
JSON = """
{"mesh": {"shape": {"data": 2, "model": 4}},
 "distribution": {"batch_axis": "data",
                  "layout": {"d1/kernel": ["-", "model"], "e/kernel": [["data", "model"], null]}}}
"""


def load_error(path: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(path, environ={})
    return caught.value


def test_the_three_formats_say_the_same(loaded: Load) -> None:
    texts = {".toml": TOML, ".yaml": YAML, ".yml": YAML, ".json": JSON, ".TOML": TOML}
    configs = [loaded(text, suffix) for suffix, text in texts.items()]
    assert all(config == configs[0] for config in configs)
    assert configs[0].distribution.layout_axes() == {
        "d1/kernel": (None, "model"),
        "e/kernel": (("data", "model"), None),
    }


def test_byte_order_mark_and_windows_lines(loaded: Load) -> None:
    assert loaded(b"\xef\xbb\xbf" + TOML.replace("\n", "\r\n").encode()) == loaded(TOML)


@pytest.mark.parametrize("suffix", [".ini", ".tml", ""])
def test_other_suffix(refused: Refused, suffix: str) -> None:
    error = refused(TOML, suffix)
    assert error.summary.startswith(f"run{suffix}: ")
    assert repr(suffix) in error.given
    for known in (".toml", ".yaml", ".yml", ".json"):
        assert known in error.summary


def test_missing_file_names_the_nearest(loaded: Load) -> None:
    loaded(TOML)
    error = load_error("rn.toml")
    assert error.summary == "rn.toml: the file does not exist (did you mean 'run.toml'?)"
    assert str(Path("rn.toml").absolute()) in error.given
    assert "run.toml" in error.expected
    assert error.fix == "use 'run.toml'"


@pytest.mark.parametrize("name", ["folder", "folder.toml"])
def test_directory(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    error = load_error(str(folder))
    assert error.summary == f"{folder}: is a directory"


def test_unreadable_file(loaded: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(TOML)

    def deny(self: Path, mode: str) -> bytes:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(Path, "open", deny)
    error = load_error("run.toml")
    assert error.summary == "run.toml: cannot be read: Permission denied"
    assert "permissions" in error.fix


def test_impossible_paths(loaded: Load) -> None:
    loaded(TOML)
    assert "cannot be read: embedded null byte" in load_error("a\0b.toml").summary
    assert load_error("run.toml/run.toml").summary.startswith("run.toml/run.toml: cannot be read: Not a directory")


def test_not_utf8(refused: Refused) -> None:
    error = refused(TOML.encode("utf-16"))
    assert error.summary == "run.toml: the file must be text in UTF-8"
    assert error.given == "byte 0xff at offset 0"
    assert "UTF-8" in error.fix


@pytest.mark.parametrize(
    ("suffix", "text", "place", "line"),
    [
        (".toml", "[mesh]\nshape = {data = }\n", "line 2, column 17", "shape = {data = }"),
        (".toml", '[mesh]\nshape = "data', "line 2, column 14", 'shape = "data'),
        (".yaml", "mesh:\n  shape: {data: 2\n", "line 3, column 1", ""),
        (".yaml", "mesh:\n shape: a: b", "line 2, column 10", "shape: a: b"),
        (".yaml", "a: 1\nb: \x01", "line 2, column 4", "b: ?"),
        (".yaml", "a: 1\u2028b: 2\x85c: }".encode(), "line 3, column 4", "c: }"),
        (".json", '{"mesh":\n {"shape" 2}}', "line 2, column 11", '{"shape" 2}}'),
        (".json", "", "line 1, column 1", ""),
    ],
)
def test_syntax_error_gives_line_and_column(refused: Refused, suffix: str, text: str, place: str, line: str) -> None:
    error = refused(text, suffix)
    assert error.summary.startswith(f"run{suffix}: {place}: ")
    assert error.given == line
    assert error.expected == f"a {suffix[1:].upper().replace('YML', 'YAML')} file"
    assert error.fix.startswith("correct line ")
    assert "need" in error.fix


@pytest.mark.parametrize(
    ("suffix", "text", "summary", "expected", "fix"),
    [
        (".yaml", "a: &a {<<: [*a]}", "nested too deeply", "at most 32 tables", "nest less"),
        (".yaml", "[" * 999, "nested too deeply", "at most 32 tables", "nest less"),
        (".yaml", "a: !!int ''", "line 1, column 4: not a valid int", "without tags", "put it in quotes"),
        (".yaml", "a: 2020-13-45", "line 1, column 4: not a valid timestamp", "text, numbers", "put it in quotes"),
        (".yaml", "a: !!timestamp x", "line 1, column 4: not a valid timestamp", "without tags", "put it in quotes"),
        (".yaml", "a: !!python/none", "the tag 'python/none' is not available", "without tags", "leave out the tag"),
        (".yaml", "a: !x 1", "line 1, column 4: the tag '!x' is not available", "without tags", "leave out the tag"),
        (".yaml", "a: !!int []", "the value does not fit its tag", "without tags", "leave out the tag"),
        (".yaml", "a: {<<: 3}", "<< needs tables", "a table, or a list of tables", "give the alias"),
        (".yaml", "? [a]\n: 1", "line 1, column 3: a key is a list or a table", "keys that are text", "as text"),
        (".yaml", r'a: "\Uffffffff"', "an escape is not a character", r"\U0010ffff", "correct the escape"),
        (
            ".yaml",
            "a: &a 1\nb: &a 2",
            "line 2, column 4: a key, table or anchor is given twice",
            "each key",
            "keep one of the two",
        ),
        (".yaml", "a: 1\n---\nb: 1", "line 2, column 1: a second document begins", "one document", "keep one"),
        (".yaml", f"{{{'k' * 500}: 1, {'k' * 500}: 2}}", f"{'k' * 116}... is given twice", "each key", "keep one"),
        (".json", "9" * 4400, "an integer of more than 4,300 digits", "at most 64 bits", "a smaller integer"),
        (
            ".toml",
            "a = 1\na = 2\n",
            "line 2, column 6: a key, table or anchor is given twice",
            "each key",
            "keep one of the two",
        ),
        (".toml", "[a.b]\n[a.b]\n", "line 2, column 5: a key, table or anchor is given", "each key", "keep one"),
        (".toml", "a = {b = 1, b = 2}", "a key, table or anchor is given twice", "each key", "keep one of the two"),
    ],
)
def test_each_limit_says_which_with_the_way_out(
    refused: Refused, suffix: str, text: str, summary: str, expected: str, fix: str
) -> None:
    error = refused(text, suffix)
    assert summary in error.summary and expected in error.expected and fix in error.fix and len(str(error)) < 600


@pytest.mark.parametrize(
    ("suffix", "text", "place"),
    [
        (".yaml", "mesh:\n  shape: {data: 2, 'data': 3}", "line 2, column 20: the key 'data' is given twice"),
        (".json", '{"mesh": {"shape": {"data": 2, "data": 3}}}', "the key 'data' is given twice: 2, then 3"),
    ],
)
def test_key_given_twice(refused: Refused, suffix: str, text: str, place: str) -> None:
    error = refused(text, suffix)
    assert error.summary == f"run{suffix}: {place}"
    assert "each key" in error.expected
    assert error.fix == "keep one of the two"


def test_yaml_merge_keys_are_not_keys_given_twice(loaded: Load) -> None:
    text = "distribution:\n  layout:\n    a: &a ['-']\n    b: *a\nmesh:\n  <<: {shape: {x: 1}}\n  shape: {data: 8}"
    config = loaded(text, ".yaml")
    assert config.mesh.shape == {"data": 8}
    assert config.distribution.layout_axes() == {"a": (None,), "b": (None,)}


@pytest.mark.parametrize(
    ("suffix", "text", "given"),
    [(".json", "[1, 2]", "[1, 2] (a list)"), (".json", "null", "null"), (".yaml", "data=8", '"data=8" (a string)')],
)
def test_top_level_is_not_a_table(refused: Refused, suffix: str, text: str, given: str) -> None:
    error = refused(text, suffix)
    assert error.summary == f"run{suffix}: a config file must be a table of keys with values"
    assert error.given == given
    assert error.fix == "put everything under keys such as mesh and distribution"


def test_an_empty_yaml_file_is_an_empty_table(loaded: Load) -> None:
    environ = {"KERAS_DIST_MESH": "data=8"}
    assert loaded("# nothing\n", ".yaml", environ) == loaded("", ".toml", environ) == loaded("{}", ".json", environ)


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".toml"])
def test_deep_nesting_is_an_error_of_ours(refused: Refused, suffix: str) -> None:
    text = "a = " * (suffix == ".toml") + "[" * 50_000 + "]" * 50_000
    assert "nested too deeply" in refused(text, suffix).summary


def test_yaml_that_contains_itself(refused: Refused) -> None:
    error = refused("mesh: {shape: {data: 8}}\ndistribution: {layout: {a: &a [*a]}}", ".yaml")
    assert error.summary.startswith("run.yaml: distribution.layout.a[0]")
    assert "is nested too deeply" in error.summary and "[...]" in error.given


def test_a_colon_makes_no_number_in_base_60(refused: Refused) -> None:
    assert "1:30" in str(refused("mesh:\n  shape: {data: 1:30}\n", ".yaml"))
