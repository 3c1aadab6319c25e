"""Rules are read from tables and from map objects."""

import types

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import dtensor, errors
from keras_dist.config.migration import read_layout_map, rules_of

RULES = {"d1/kernel": (None, "model"), "d2/.*": (("data", "model"),)}


def read(tmp_path, text, suffix=".json"):
    file = tmp_path / f"map{suffix}"
    file.write_text(text)
    return read_layout_map(file)


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".json", '{"d1/kernel": [null, "model"], "d2/.*": [["data", "model"]]}'),
        (".toml", '[distribution.layout]\n"d1/kernel" = ["-", "model"]\n"d2/.*" = [["data", "model"]]'),
        (".yaml", "layout_map:\n  d1/kernel: [unsharded, model]\n  d2/.*: [[data, model]]"),
    ],
)
def test_tables_of_all_formats_give_the_same_rules(tmp_path, suffix, text):
    assert read(tmp_path, text, suffix) == (RULES, [])


def test_maps_of_keras_dist_and_of_dtensor():
    ours = kd.LayoutMap(kd.DeviceMesh({"data": 2, "model": 4}))
    ours.update(RULES)
    assert rules_of(ours) == (RULES, [])
    mesh = dtensor.create_mesh([("batch", 2), ("model", 4)])
    theirs = dtensor.keras.LayoutMap(mesh=mesh)
    theirs["a.*kernel"] = dtensor.Layout.batch_sharded(mesh, "batch", rank=2)
    theirs["a.b.kernel"] = dtensor.Layout([dtensor.UNSHARDED, "model"], mesh)  # an earlier rule matches this key, too
    assert rules_of(theirs) == ({"a.*kernel": ("batch", None), "a.b.kernel": (None, "model")}, [])


def test_layout_objects_of_other_libraries():
    layouts = {"a": types.SimpleNamespace(axes=["x", None]), "b": types.SimpleNamespace(sharding_specs=["unsharded"])}
    assert rules_of(layouts) == ({"a": ("x", None), "b": (None,)}, [])


def test_wrong_layouts_are_problems(tmp_path):
    rules, problems = read(tmp_path, '{"a": ["x"], "b": "x", "c": [1], "d": [["x", null]], "e": [[]]}')
    assert list(rules) == ["a"]
    assert [problem[:8] for problem in problems] == ["rule 'b'", "rule 'c'", "rule 'd'", "rule 'e'"]
    assert "expected a list or tuple" in rules_of({"a": np.ones(2)})[1][0]


def test_a_file_without_rules_is_an_error(tmp_path):
    with pytest.raises(errors.ConfigError, match="has no rules of a layout map"):
        read(tmp_path, "{}")
