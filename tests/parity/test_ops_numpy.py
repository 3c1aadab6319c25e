"""NumPy's names in `keras_dist.ops` do what those of `keras.ops` do on JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keras_dist
from keras_dist import ops
from keras_dist.ops import numpy as names
from keras_dist.symbolic.tensors import KerasTensor
from tests.parity import numpy_calls
from tests.parity.compare import compare, few_examples
from tests.parity.numpy_calls import CALLS, KNOWN, MADE
from tests.parity.signatures import differences

pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:divide by zero:RuntimeWarning")

SPECS = {"diagonal": "of a batch of unknown size is taken to be as long as the other dim"}
"""Names whose symbolic results are not those of Keras, and why."""


def is_public(name, value):
    return name[0] != "_" and callable(value)


def test_no_name_is_missing_and_parameters_are_those_of_keras(keras):
    theirs = {name: value for name, value in vars(keras.ops.numpy).items() if is_public(name, value)}
    assert {*names.__all__} == {*theirs} == {*CALLS, *MADE, *KNOWN, "vectorize"}
    for name, function in theirs.items():
        ours = getattr(ops, name)
        assert ours is getattr(names, name)
        assert ours.__doc__, name
        assert not differences(ours, function), name


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_of_numbers_is_what_keras_makes(keras, name):
    for call in MADE[name]:
        assert_like_keras(keras, name, call, [array.dtypes[0] for array in call.arrays])


def attempt(run, *args):
    """The result, or the error in place of it."""
    try:
        return run(*args)
    except Exception as error:
        return error


def described(tree):
    return [
        (tuple(leaf.shape), str(leaf.dtype)) for leaf in jax.tree.leaves(tree, is_leaf=lambda x: hasattr(x, "shape"))
    ]


@pytest.mark.parametrize("name", CALLS)
def test_operations_element_types_and_symbolic_results_are_those_of_keras(keras, name):
    seen = set()

    def both_agree(call, dtypes):
        if (call, dtypes) not in seen:  # they may be drawn again
            seen.add((call, dtypes))
            assert_symbolic_like_keras(keras, name, call, dtypes, assert_like_keras(keras, name, call, dtypes))

    @few_examples
    @given(st.data())
    def check(data):
        call = data.draw(st.sampled_from(CALLS[name]))
        both_agree(call, tuple(data.draw(st.sampled_from(array.dtypes)) for array in call.arrays))

    for dtypes in numpy_calls.each_element_type(CALLS[name][0]):
        both_agree(CALLS[name][0], tuple(dtypes))
    check()


def assert_like_keras(keras, name, call, dtypes):
    """Both trace to the same operations; where not, values are compared. Or both refuse the arguments.

    Returns:
        What Keras computes, traced, or its error.
    """
    values = [array.value(dtype, seed) for seed, (array, dtype) in enumerate(zip(call.arrays, dtypes, strict=True))]
    theirs, ours = getattr(keras.ops, name), getattr(ops, name)
    expected = attempt(numpy_calls.traced, theirs, call, values)
    if isinstance(expected, Exception):
        with pytest.raises((TypeError, ValueError)):
            numpy_calls.traced(ours, call, values)
        return expected
    found = numpy_calls.traced(ours, call, values)
    assert described(found.shapes) == described(expected.shapes)
    same = found.program == expected.program and len(found.constants) == len(expected.constants)
    if not (same and all(map(np.array_equal, found.constants, expected.constants))):
        compare(
            lambda *arrays: (call.run(ours, arrays), call.run(theirs, arrays)),
            *values,
            check=assert_equal,
            note=f"{name}: {call}, {dtypes}",
        )
    return expected


def assert_equal(*both):
    for found, expected in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(*(np.asarray(value, "float32") for value in (found, expected)), rtol=1e-5, atol=1e-5)


def assert_symbolic_like_keras(keras, name, call, dtypes, computed):
    """What Keras says of results counts where it is what Keras computes."""
    if not call.arrays:
        return
    inputs = [KerasTensor(array.symbolic_shape, dtype) for array, dtype in zip(call.arrays, dtypes, strict=True)]
    if isinstance(computed, Exception):
        with pytest.raises((TypeError, ValueError)):
            call.run(getattr(ops, name), inputs)
        return
    if name == "reshape" and call.args[1] == (3, 2):
        return  # a batch of unknown size has no fixed one afterwards
    found = described(call.run(getattr(ops, name), inputs))
    assert name in SPECS or fits(found, described(computed.shapes))
    inputs = [keras.KerasTensor(tensor.shape, tensor.dtype) for tensor in inputs]
    expected = attempt(lambda: described(call.run(getattr(keras.ops, name), inputs)))
    if not isinstance(expected, Exception) and fits(expected, described(computed.shapes)) and name not in SPECS:
        assert found == expected


def fits(symbolic, computed):
    """Whether arrays have the shapes and element types that were foretold."""
    return len(symbolic) == len(computed) and all(
        one[1] == other[1]
        and len(one[0]) == len(other[0])
        and all(m in (None, n) for m, n in zip(one[0], other[0], strict=True))
        for one, other in zip(symbolic, computed, strict=True)
    )


@pytest.mark.parametrize("name", KNOWN)
def test_values_are_those_of_keras(keras, name):
    for call in KNOWN[name]:
        for dtypes in [*numpy_calls.each_element_type(call)][:2]:
            values = [jnp.asarray(array.value(dtype)) for array, dtype in zip(call.arrays, dtypes, strict=True)]
            found, expected = call.run(getattr(ops, name), values), call.run(getattr(keras.ops, name), values)
            assert described(found) == described(expected)
            assert_equal(found, expected)


def test_vectorize(keras):
    x = np.arange(6.0, dtype="float32").reshape(2, 3)
    for options in ({}, {"signature": "(n)->()"}, {"excluded": {1}}):
        function = (lambda row: row.sum()) if "signature" in options else (lambda value, factor=2: value * factor)
        args = (x, 3) if "excluded" in options else (x,)
        found, expected = (package.ops.vectorize(function, **options)(*args) for package in (keras_dist, keras))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["add", "maximum", "where", "isclose"])
@pytest.mark.parametrize("shapes", [[(None, 3), (2, None)], [(None, None, 8), (16, 8)], [(2, None, 1), (None, 3)]])
def test_unknown_sizes_broadcast_as_in_keras(keras, name, shapes):
    def result(package, tensor):
        condition = [tensor(shapes[0], "bool")] if name == "where" else []
        return getattr(package.ops, name)(*condition, *(tensor(shape, "float32") for shape in shapes)).shape

    assert result(keras_dist, KerasTensor) == result(keras, keras.KerasTensor)
