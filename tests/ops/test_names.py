"""All names of `keras.ops` are here, with Keras's parameters."""

import inspect
import types

import pytest

from keras_dist import ops
from keras_dist.symbolic.tensors import OPERATIONS
from tests.parity.signatures import differences

SPACES = ("", "image", "linalg", "nn", "numpy")
PLAIN = {
    "convert_to_numpy", "custom_gradient", "dtype", "empty", "eye", "identity", "is_tensor", "ones", "shape", "tri",
    "vectorize", "zeros",
}  # fmt: skip
"""What takes or returns no arrays, so that it is no step of a model."""


def names_of(package):
    return {name: value for name, value in vars(package).items() if name[0] != "_" and callable(value)}


@pytest.mark.parametrize("space", SPACES)
def test_no_name_of_keras_is_missing(keras, space):
    theirs, ours = (getattr(package, space) if space else package for package in (keras.ops, ops))
    names = names_of(theirs)
    assert len(names) > 10
    assert sorted(names.keys() - {*ours.__all__}) == []
    assert sorted({*ours.__all__} - names.keys()) == [], "names that Keras does not have there"
    differing = {name: found for name in names if (found := differences(getattr(ours, name), names[name]))}
    assert differing == {name: {"implementation": "extra"} for name in names if name == "dot_product_attention"}


@pytest.mark.parametrize("space", SPACES)
def test_every_name_is_a_step_of_models_and_has_a_docstring(space):
    package = getattr(ops, space) if space else ops
    for name in package.__all__:
        function = getattr(package, name)
        assert inspect.getdoc(function), name
        assert (function.__name__ in OPERATIONS) == (name not in PLAIN), name


def test_namespaces_are_those_of_keras(keras):
    spaces = {name for name, value in vars(keras.ops).items() if isinstance(value, types.ModuleType)}
    assert spaces - {"src"} == {*SPACES[1:]}
