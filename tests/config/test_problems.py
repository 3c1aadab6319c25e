"""How key paths and values are shown."""

import pytest

from keras_dist.config.problems import Problem, config_error, key_path, show


@pytest.mark.parametrize(
    ("loc", "path"),
    [
        (("mesh",), "mesh"),
        (("distribution", "layout", "d1/kernel", 1), 'distribution.layout."d1/kernel"[1]'),
        (("distribution", "layout", "a", 0, 2), "distribution.layout.a[0][2]"),
        (("mesh", "shape", 'a"b'), 'mesh.shape."a\\"b"'),
        (("", "a-b", "1"), '"".a-b."1"'),
    ],
)
def test_key_path(loc: tuple[str | int, ...], path: str) -> None:
    assert key_path(loc) == path


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true (a boolean)"),
        (None, "null"),
        ("4", '"4" (a string)'),
        (2.5, "2.5 (a float)"),
        ({"model": [1, None], "data": "軸"}, '{"model": [1, null], "data": "軸"} (a table)'),
    ],
)
def test_values_are_shown_as_config_files_write_them(value: object, text: str) -> None:
    assert show(value, with_type=True) == text


def test_long_values_are_cut() -> None:
    assert len(show("x" * 1000)) < 100
    assert len(show(["x" * 1000] * 1000)) < 1000
    assert len(show({str(i): [[["x"]]] for i in range(1000)})) < 1000


def test_one_problem_keeps_its_parts_on_the_error() -> None:
    error = config_error("run.toml", [Problem(("mesh", "shape"), "is odd", "1", "2", "write 2")])
    assert str(error).splitlines() == [
        "run.toml: mesh.shape: is odd",
        "  given:    1",
        "  expected: 2",
        "  fix:      write 2",
    ]
    assert (error.given, error.expected, error.fix) == ("1", "2", "write 2")
