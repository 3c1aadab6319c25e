"""Rules are read from tables and from programs, which are not run."""

import pytest

from keras_dist import errors
from keras_dist.config.layout_maps import read_layout_map

RULES = {"d1/kernel": (None, "model"), "d2/.*": (("data", "model"),)}


def read(tmp_path, text, suffix=".py"):
    file = tmp_path / f"map{suffix}"
    file.write_text(text)
    return read_layout_map(file)


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".json", '{"d1/kernel": [null, "model"], "d2/.*": [["data", "model"]]}'),
        (".toml", '[distribution.layout]\n"d1/kernel" = ["-", "model"]\n"d2/.*" = [["data", "model"]]'),
        (".yaml", "layout_map:\n  d1/kernel: [unsharded, model]\n  d2/.*: [[data, model]]"),
        (".py", '{"d1/kernel": (None, "model"), "d2/.*": (("data", "model"),)}'),
        (".py", 'mesh = {"data": 2}\nRULES = {"d1/kernel": (None, "model"), "d2/.*": [("data", "model")]}'),
        (
            ".py",
            'layout_map["d1/kernel"] = None, "model"\nself.layout_map["d2/.*"] = TensorLayout([("data", "model")])',
        ),
    ],
)
def test_tables_and_programs_say_the_same(tmp_path, suffix, text):
    assert read(tmp_path, text, suffix) == (RULES, [])


def test_layouts_of_dtensor(tmp_path):
    program = """
    BATCH = "batch"
    whole = dtensor.Layout.replicated(mesh, rank=2)
    rules = LayoutMap(mesh=mesh)
    rules["a.kernel"] = whole
    rules["b.kernel"] = dtensor.Layout([dtensor.UNSHARDED] * 2, mesh)
    rules["c.kernel"] = Layout.batch_sharded(mesh, BATCH, rank=3)
    rules["d.kernel"] = Layout.batch_sharded(mesh, batch_dim=BATCH, rank=3, axis=1)
    rules["e.kernel"] = Layout.inner_sharded(mesh, "model", 2)
    rules["f.kernel"] = dtensor.Layout(sharding_specs=["unsharded", "model"], mesh=mesh)
    """
    assert read(tmp_path, f"if True:{program}") == (
        {
            "a.kernel": (None, None),
            "b.kernel": (None, None),
            "c.kernel": ("batch", None, None),
            "d.kernel": (None, "batch", None),
            "e.kernel": (None, "model"),
            "f.kernel": (None, "model"),
        },
        [],
    )
    printed = '{"a.kernel": "sharding_specs:unsharded,model, mesh:|batch=2,model=4|0,1,2,3,4,5,6,7"}'
    assert read(tmp_path, printed, ".json") == ({"a.kernel": (None, "model")}, [])


def test_what_must_be_run_is_told_with_its_line(tmp_path):
    program = """
made = LayoutMap(mesh)
os.environ["HOME"] = "no layout"
made["a"] = ("model",)
for index in range(3):
    made[f"blocks/{index}/kernel"] = (None, "model")
made["b"] = layout_of("b")
made["c"] = Layout.batch_sharded(mesh, "batch", rank=2, axis=2)
made["d"] = "model"
whole = Layout.replicated(mesh, 2)
whole = f()
made["e"] = whole
"""
    rules, problems = read(tmp_path, program)
    assert rules == {"a": ("model",)}
    assert [problem.split(":")[0] for problem in problems] == [f"line {line}" for line in (6, 7, 8, 9, 12)]
    assert "made['b'] = layout_of('b'): expected a list or tuple" in problems[1]


def test_programs_are_not_run(tmp_path):
    evil = f'open({str(tmp_path / "ran")!r}, "w")'
    assert read(tmp_path, f'layout_map[{evil}] = ("a",)\nlayout_map["b"] = [{evil}]\nlayout_map["c"] = ("a",)')[0] == {
        "c": ("a",)
    }
    assert not (tmp_path / "ran").exists()


def test_wrong_layouts_in_a_table_are_told(tmp_path):
    rules, problems = read(tmp_path, '{"a": ["x"], "b": "x", "c": [1], "d": [["x", null]], "e": [[]]}', ".json")
    assert list(rules) == ["a"]
    assert [problem[:8] for problem in problems] == ["rule 'b'", "rule 'c'", "rule 'd'", "rule 'e'"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no rule of a layout map"),
        ("x = {1: 2}", "there is no rule of a layout map"),
        ("x = ", "line 1: invalid syntax"),
        ("x = " + "(" * 5000, "map.py: "),
        ("x = " + "-" * 100_000 + "1", "map.py: "),
        ("x = '\0'", "map.py: "),
    ],
)
def test_no_program_or_no_rules_is_an_error(tmp_path, text, message):
    with pytest.raises(errors.ConfigError, match=message):
        read(tmp_path, text)


def test_deep_or_large_layouts_are_no_layouts(tmp_path):
    deep = "[" * 60 + "'a'" + "]" * 60
    assert read(tmp_path, f"layout_map['a'] = {deep}")[0] == {}
    assert read(tmp_path, "layout_map['a'] = [None] * 10**9")[0] == {}
    assert read(tmp_path, "layout_map['a'] = Layout.replicated(mesh, 10**9)")[0] == {}
    doubled = "a = [None] * 32\n" + "a = [a] * 32\n" * 30 + "layout_map['a'] = a"
    assert read(tmp_path, doubled)[0] == {}
