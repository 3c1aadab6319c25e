"""`operation`: one way for a function of arrays to become a step of a functional model."""

import pickle

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import DataError
from keras_dist.ops.operation import as_array, operation
from keras_dist.symbolic.tensors import OPERATIONS


@pytest.fixture
def scaled():
    @operation
    def scaled_for_test(x, factor=2, *, offset=0):
        """`x * factor + offset`."""
        return as_array(x) * factor + offset

    yield scaled_for_test
    del OPERATIONS["scaled_for_test"]


def test_takes_arrays_numbers_lists_and_variables(scaled):
    for x in (3, [3], np.array([3]), kd.Variable([3])):
        result = scaled(x, offset=kd.Variable(1))
        assert np.all(np.asarray(result) == 7)


def test_a_symbolic_tensor_makes_a_step_of_a_model(scaled):
    x = kd.Input((3,))
    y = scaled(x, factor=3, offset=1)
    assert (y.shape, y.dtype, y.name) == ((None, 3), "float32", "scaled_for_test/output")
    model = kd.Model(x, y)
    for made in (model, type(model).from_config(model.get_config()), kd.models.clone_model(model)):
        np.testing.assert_array_equal(made(np.ones((2, 3), "float32")), np.full((2, 3), 4))


def test_several_results_and_symbolic_tensors_in_lists(tmp_path):
    @operation
    def halves_for_test(parts):
        """The sum of the parts, in two halves."""
        total = parts[0] + parts[1]
        return total[:, :1], [total[:, 1:]]

    x = kd.Input((3,))
    first, (second,) = halves_for_test([x, x * 2])
    assert (first.shape, second.shape) == ((None, 1), (None, 2))
    model = kd.Model(x, [first, second])
    model.save(tmp_path / "model")
    loaded = kd.models.load_model(tmp_path / "model")
    for one, other in zip(model(np.ones((2, 3))), loaded(np.ones((2, 3))), strict=True):
        np.testing.assert_array_equal(one, other)
    lines = []
    model.summary(print_fn=lines.append)
    assert "halves_for_test (operation)" in "".join(lines)
    del OPERATIONS["halves_for_test"]


def test_a_name_of_a_table_is_the_package_s_own():
    assert pickle.loads(pickle.dumps(kd.ops.det)) is kd.ops.det
    with pytest.raises(TypeError):
        kd.ops.det(np.eye(2), 1)


def test_integers_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match="does not fit int32"):
        as_array(np.array([2**40]))


def test_python_s_operators_compute_what_operations_of_the_same_name_do():
    x = kd.Input((2,), dtype="int32")
    model = kd.Model(x, [abs(x - 3), x % 2, x < 2, round(x), x.reshape((-1,))])
    values = np.array([[1, 4]], "int32")
    expected = [abs(values - 3), values % 2, values < 2, values, values.reshape(-1)]
    for one, other in zip(model(values), expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("call", "note"),
    [
        (
            lambda: kd.ops.take(np.ones((2, 3), "float32"), "word"),
            "keras_dist.ops.take(x=float32[2, 3], indices='word')",
        ),
        (lambda: kd.ops.sin("word"), "keras_dist.ops.sin(x='word')"),
        (lambda: kd.ops.zeros((2, "b")), "keras_dist.ops.zeros(shape=(2, 'b'))"),
        (
            lambda: kd.ops.map(lambda x: kd.ops.matmul(x, np.ones((5, 5))), np.ones((2, 3))),
            "keras_dist.ops.map(f=<function",
        ),
    ],
)
def test_errors_of_jax_name_the_operation_and_its_arguments(call, note):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert not isinstance(caught.value, kd.errors.KerasDistError)
    (given,) = (line for line in caught.value.__notes__ if line.startswith("  given:"))
    assert given.startswith(f"  given:    {note}")
