"""Operations in configs are those of Keras: the same classes, and what their constructors and their calls take."""

import importlib
import inspect

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.formats.keras_configs import operation_from_keras, operation_to_keras
from keras_dist.symbolic.tensors import OPERATIONS

WITHOUT_CLASS = {"bartlett", "blackman", "extract_patches_3d", "hamming", "hanning", "kaiser"}


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


def of_functions(k):
    """A model of operations that take functions, which are registered in this library from now on."""
    register = k.saving.register_keras_serializable("operations")

    @register
    def double(x):
        return x * 2.0

    @register
    def step(carry, x):
        return carry + x, carry * x

    ops, x = k.ops, k.Input(batch_shape=(3, 4))
    outputs = [ops.map(double, x), ops.vectorized_map(double, x), ops.scan(step, ops.zeros((4,)), x)[1]]
    outputs += [ops.switch(ops.convert_to_tensor(1), [double, double], x), ops.rearrange(x, "b h -> h b")]
    return k.Model(x, [*outputs, ops.cdist(x, x), ops.pinv(x), ops.matrix_rank(x)])


@pytest.mark.parametrize("reader", ["keras", "keras_dist"])
def test_operations_that_take_functions_are_read_by_both(keras, reader, tmp_path):
    x = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    writer, other = (kd, keras) if reader == "keras" else (keras, kd)
    written = of_functions(writer)
    written.save(tmp_path / "m.keras")
    of_functions(other)  # so that its functions are those that the names stand for
    read = other.saving.load_model(tmp_path / "m.keras")
    for one, expected in zip(read(x), written(x), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(expected), 1e-4, 1e-5)
