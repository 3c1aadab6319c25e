"""Trees as plain JSON and back."""

import collections
import json

import jax
import pytest

from keras_dist.errors import ModelError
from keras_dist.export.structure import arranged, described, filled, is_structure

TREE = {"b": [1.0, (2.0, None)], "a": 3.0, "c": {}}
NAMES = ["x", "y", "z"]


def test_a_tree_survives_json_in_the_order_of_jax():
    structure, leaves = described("it", TREE)
    structure = json.loads(json.dumps(structure))
    assert leaves == jax.tree.leaves(TREE) == arranged(structure, NAMES, TREE)
    assert filled(structure, leaves) == TREE and is_structure(structure, 3)


@pytest.mark.parametrize(
    "tree",
    [{1: 2.0}, collections.OrderedDict(a=1.0), collections.namedtuple("Pair", "a b")(1.0, 2.0)],
    ids=lambda tree: type(tree).__name__,
)
def test_what_json_cannot_tell(tree):
    with pytest.raises(ModelError, match="the output cannot be described in JSON") as error:
        described("the output", [tree])
    assert type(tree).__name__ in error.value.given


def test_inputs_are_arranged():
    for value in (1.0, {"x": 1.0}):
        assert arranged(0, ["x"], value) == arranged({"list": [0]}, ["x"], value) == [1.0]
    for structure in ({"list": [0, 1]}, {"dict": {"a": 0, "b": 1}}):
        assert arranged(structure, ["x", "y"], {"y": 2.0, "x": 1.0, "other": 0.0}) == [1.0, 2.0]
    assert arranged({"list": [0, 1]}, ["x", "y"], (1.0, 2.0)) == [1.0, 2.0]
    assert arranged({"dict": {"a": 0, "b": 1}}, ["x", "y"], {"b": 2.0, "a": 1.0, "other": 0.0}) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("structure", "value", "given"),
    [
        ({"list": [0, 1]}, [1.0], "a list of 1"),
        ({"list": [0, 1]}, 1.0, "1.0"),
        ({"list": [0, 1]}, {"x": 1.0}, "a dict with ['x']"),
        ({"dict": {"a": 0}}, {"b": 1.0}, "a dict with ['b']"),
        ({"dict": {"a": 0}}, [1.0], "a list of 1"),
        ({"list": [0, None]}, [1.0, 2.0], "2.0"),
        ({"list": [0, 1]}, [None, 2.0], "None"),
    ],
)
def test_inputs_of_another_structure(structure, value, given):
    with pytest.raises(ModelError, match="must have the structure") as error:
        arranged(structure, ["x", "y"], value)
    assert error.value.given == given


@pytest.mark.parametrize(
    "value",
    [
        *(1, True, False, "x", [0], {"set": [0]}, {"list": 0}, {"list": [False]}, {"list": [-1]}, {"dict": [0]}),
        *({"list": [0, 0]}, {"list": [0], "dict": {}}),
    ],
)
def test_what_is_no_structure(value):
    assert not is_structure(value, 1)
