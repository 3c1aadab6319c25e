"""Operations in configs are those of Keras: the same classes, and what their constructors and their calls take."""

import importlib
import inspect

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.interop.keras_operations import operation_from_keras, operation_to_keras
from keras_dist.layers.symbolic import OPERATIONS

WITHOUT_CLASS = {
    *("associative_scan", "bartlett", "blackman", "cdist", "cond", "extract_patches_3d", "fori_loop", "hamming"),
    *("hanning", "jvp", "kaiser", "logical_and", "logical_or", "logical_xor", "map", "matrix_rank", "pinv"),
    *("rearrange", "scan", "switch", "vectorized_map", "while_loop"),
}


def entry(name, **kwargs):
    written = {"module": "keras_dist.layers", "class_name": "Operation", "registered_name": None}
    node = {"args": [], "kwargs": kwargs}
    return {**written, "config": {"name": name}, "name": "one", "inbound_nodes": [node]}


def test_constructors_and_calls_take_what_those_of_keras_take(keras):
    assert kd.ops.einsum
    wrong = []
    for name in sorted(set(OPERATIONS) - WITHOUT_CLASS):
        try:
            parameters = inspect.signature(OPERATIONS[name]).parameters
        except ValueError:
            continue
        ours = [one for one in parameters if parameters[one].kind is not inspect.Parameter.VAR_KEYWORD]
        written = operation_to_keras(entry(name, **dict.fromkeys(ours, 1)))
        theirs = getattr(importlib.import_module(written["module"]), written["class_name"], None)
        if theirs is None:
            wrong.append(f"{name}: no {written['class_name']}")
            continue
        made = set(inspect.signature(theirs.__init__).parameters) | {"name"}
        called = set(inspect.signature(theirs.call).parameters)
        known = {one for one in ours if one in made | called}  # the others are of Python's operators
        misplaced = known & set(written["config"]) - made | known & set(written["inbound_nodes"][0]["kwargs"]) - called
        if misplaced:
            wrong.append(f"{name}: {sorted(misplaced)}")
        if operation_from_keras(written) is None:
            wrong.append(f"{name}: not read again")
    assert not wrong


@pytest.mark.parametrize("reader", ["keras", "keras_dist"])
def test_models_of_operations_are_read_by_both(keras, reader, tmp_path):
    def model(library):
        ops, x = library.ops, library.Input((4,))
        y = ops.einsum("bi,bj->bj", x, ops.sin(x)) + ops.stop_gradient(x)
        return library.Model(x, ops.slice(ops.pad(y, [[0, 0], [1, 1]]), [0, 1], [2, 3]))

    x = np.arange(8, dtype="float32").reshape(2, 4)
    writer, other = (kd, keras) if reader == "keras" else (keras, kd)
    written = model(writer)
    written.save(tmp_path / "m.keras")
    found = (
        other.saving.load_model(tmp_path / "m.keras") if other is keras else kd.models.load_model(tmp_path / "m.keras")
    )
    np.testing.assert_allclose(np.asarray(found(x)), np.asarray(written(x)), atol=1e-5)
