"""The index of errors lists the texts that functions make, each with the way out that the error itself has."""

import ast
import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import keras_dist as kd
from docs.generate import errors
from tests.messages.test_distribution_messages import GOLDEN

SOURCE = """
argument_error("units", units, "a positive integer", example=8)
argument_error("bias", bias, "a flag", wrong="does not fit", error=DataError, layer=name)
argument_error(name, value, expected)
unknown_name_error("the mesh has no axis", axis, names, error=MeshError)
MeshError("the mesh has no devices", given=f"{n}", fix="pass some")
"""


def listed(source: str) -> list[Any]:
    return list(errors.raised(ast.parse(source)))


def test_rows_of_each_way_to_raise():
    assert {*listed(SOURCE)} == {
        ("ModelError", ("`units` must be a positive integer", "", "for example units=8")),
        ("DataError", ("`bias` of layer … does not fit", "", "expected: a flag")),
        ("MeshError", ("the mesh has no axis …", "", "correct the name: the error lists all names")),
        ("MeshError", ("the mesh has no devices", "", "pass some")),
    }


def test_a_message_has_the_way_out_of_its_own_branch():
    source = """
FIX = "of the module"
def first(kind):
    fix = "of the first"
    if kind:
        summary, fix = "the first kind is wrong", "of the branch"
    else:
        summary = f"the {kind} is another one"
    raise ModelError(summary, fix=fix)
def second(fix):
    raise ModelError("the second one is wrong", fix=fix)
def third():
    if early:
        fix = "of an error before"
        raise ModelError("the third one is early", fix=fix)
    return ModelError("the third one is late", fix=FIX)
def fourth():
    second(fix="of the caller")
def fifth():
    for name, fix in (("a", "of a"), ("b", "of b")):
        yield ModelError(f"the weight {name} is wrong", fix=fix)
def sixth():
    return ModelError("the sixth has none of them", fix=fix)
"""
    assert {(summary, fix) for _, (summary, _, fix) in listed(source)} == {
        ("the first kind is wrong", "of the branch"),
        ("the … is another one", "of the first"),
        ("the second one is wrong", "of the caller"),
        ("the third one is early", "of an error before"),
        ("the third one is late", "of the module"),
        ("the weight a is wrong", "of a"),
        ("the weight b is wrong", "of b"),
        ("the sixth has none of them", ""),
    }


def matches(cell: str, text: str) -> bool:
    """Return whether a cell of the index stands for the text of an error; `…` and alternatives stand for anything."""
    cell = re.sub(r"\\(.)", r"\1", cell)
    text = text.replace("\n", " ")
    return any(
        re.fullmatch(".*".join(map(re.escape, re.split(separators, each))), text)
        for separators, each in [(r"…+", way) for way in cell.split(" / ")] + [(r"…+| / ", cell)]
    )


@functools.cache
def rows() -> dict[str, set[errors.Row]]:
    return errors.rows()


def compiled() -> kd.Model:
    layers: list[Any] = [kd.Input((8,)), kd.layers.Dense(1)]
    model = kd.Sequential(layers)
    model.compile("sgd", "mse")
    return model


WRONG: Any = 1.5
RAISED: dict[str, Callable[[], Any]] = {
    **{name: make for name, (make, _) in GOLDEN.items()},
    "an axis of several dims": lambda: kd.TensorLayout(("data", "data"), kd.DeviceMesh("data=8")),
    "names of axes": lambda: kd.DeviceMesh((8,), (" data",)),
    "a size of zero": lambda: kd.DeviceMesh((0,), ("data",)),
    "repeated axes": lambda: kd.DeviceMesh((2, 4), ("data", "data")),
    "ranks without adapters": lambda: compiled().merge_lora(),
    "a loss that is missing": lambda: compiled().compile("sgd", metrics=["mae"]),
    "rows": lambda: compiled().fit(np.zeros((8, 8)), np.zeros((4, 1)), verbose=0),
    "not JSON": lambda: kd.models.model_from_json("{"),
    "JSON of something else": lambda: kd.models.model_from_json("[1]"),
    "a missing folder": lambda: compiled().load_weights("no/such/folder"),
    "sparse input": lambda: kd.Input((8,), sparse=True),
    "no shape": lambda: kd.Input(),
    "an empty model": lambda: kd.Sequential().summary(),
    "a warm-up without an aim": lambda: kd.optimizers.schedules.CosineDecay(0.1, 10, warmup_steps=2),
    "boundaries": lambda: kd.optimizers.schedules.PiecewiseConstantDecay([2, 1], [1.0, 0.5, 0.1]),
    "a constant scale": lambda: kd.optimizers.LossScaleOptimizer(kd.optimizers.SGD(), dynamic=False),
    "an integer": lambda: compiled().fit(np.zeros((8, 8)), np.zeros((8, 1)), epochs=WRONG),
    "a number": lambda: kd.optimizers.SGD(momentum=WRONG),
    "a flag": lambda: kd.DataParallel(shard_optimizer=WRONG),
    "an option": lambda: kd.losses.MeanSquaredError(reduction="summ"),
    "a path": lambda: kd.callbacks.BackupAndRestore(WRONG),
    "two arguments": lambda: kd.optimizers.SGD(clipnorm=1.0, clipvalue=1.0),
    "a name": lambda: compiled().compile("adm"),
    "a name in a config": lambda: kd.losses.get({"class_name": "msee", "config": {}}),
    "a loss": lambda: compiled().compile("sgd", 3),
    "a file of a folder that is missing": lambda: compiled().save_weights("no/such/folder/m.safetensors"),
    "an index": lambda: kd.losses.SparseCategoricalCrossentropy()([3], np.ones((1, 2)) / 2),
    "a vocabulary": lambda: kd.layers.StringLookup(vocabulary="none.txt"),
    "an empty dict of optimizers": lambda: compiled().compile({}, "mse"),
}


@pytest.mark.parametrize("name", RAISED)
def test_the_index_has_the_way_out_of_an_error_that_is_raised(name):
    try:
        RAISED[name]()
    except kd.errors.KerasDistError as error:
        listed = rows()[type(error).__name__] | rows()[errors.OF_EVERY_CLASS]
        found = [row for row in listed if matches(row[0], error.summary)]
        assert found, error.summary
        ways, way = [errors.way_out(*row[1:]) for row in found], error.fix or f"expected: {error.expected}"
        assert any(each == errors.UNKNOWN or matches(each, way) for each in ways), (error.summary, ways)
