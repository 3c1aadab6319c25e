"""NumPy's names in `keras_dist.ops`: lists, models on meshes, errors. `tests/parity` compares them with Keras."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import mixed_precision, ops
from keras_dist.errors import ModelError

X = np.arange(6, dtype="float32").reshape(2, 3)

LISTS = [
    ("any", ([[0, 1]],), {}),
    ("flip", ([1, 2],), {}),
    ("roll", ([1, 2, 3], [1]), {}),
    ("repeat", ([1, 2], [2, 1]), {}),
    ("outer", ([1], [2, 3]), {}),
    ("moveaxis", ([[1, 2]], 0, 1), {}),
    ("meshgrid", ([1, 2], [3]), {}),
    ("nonzero", ([1, 0, 2],), {}),
    ("hstack", ([[1], [2, 3]],), {}),
    ("quantile", ([[1.0, 2.0]], 0.5), {"axis": [0, 1]}),
    ("full", ((2, 2), [1.0, 2.0]), {}),
    ("zeros_like", ([1, 2],), {}),
]


@pytest.mark.parametrize(("name", "args", "options"), LISTS)
def test_lists_are_arrays(name, args, options):
    found, expected = getattr(ops, name)(*args, **options), getattr(np, name)(*args, **options)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert isinstance(one, jax.Array)
        np.testing.assert_allclose(one, other)


def test_variables_are_arrays_wherever_they_stand():
    variable = kd.Variable(X)
    np.testing.assert_array_equal(ops.concatenate([variable, X]), np.concatenate([X, X]))
    np.testing.assert_array_equal(ops.where(variable > 2, x1=variable, x2=0), np.where(X > 2, X, 0))
    np.testing.assert_array_equal(ops.get_item(variable, kd.Variable([1, 0])), X[[1, 0]])


@pytest.mark.filterwarnings("error")
def test_64_bits_are_32_without_a_warning():
    for made in (
        ops.zeros(2, "int64"),
        ops.arange(3, dtype="int64"),
        ops.array(X, "int64"),
        ops.cumsum(X, dtype="int64"),
    ):
        assert made.dtype == "int32"
    assert ops.ones_like(X, dtype="float64").dtype == ops.full(2, 1, dtype=float).dtype == "float32"


@pytest.fixture
def bfloat16():
    mixed_precision.set_dtype_policy("bfloat16")
    yield
    mixed_precision.set_dtype_policy("float32")


def test_new_arrays_have_the_element_type_of_weights(bfloat16):
    for made in (ops.zeros(2), ops.ones(2), ops.empty(2), ops.full(2, 1), ops.eye(2), ops.identity(2), ops.tri(2)):
        assert made.dtype == "bfloat16"
    assert ops.hamming(3).dtype == ops.kaiser(3, 2.0).dtype == "bfloat16"


def test_a_model_of_operations_on_a_mesh():
    kd.set_distribution(kd.DataParallel())
    x = kd.Input((3,))
    left, right = ops.split(ops.concatenate([x, ops.square(x)], axis=-1), 2, axis=-1)
    centred = ops.subtract(right, ops.mean(right, axis=-1, keepdims=True))
    chosen = ops.where(ops.greater(left, 1), centred, ops.full_like(left, -1.0))
    y = ops.einsum("bi,ij->bj", chosen, ops.eye(3)) + ops.take(ops.sort(left), [0], axis=1)
    assert y.shape == (None, 3)
    model = kd.Model(x, y)
    values = np.random.default_rng(0).uniform(-3, 3, (16, 3)).astype("float32")
    squares = values**2
    expected = np.where(values > 1, squares - squares.mean(-1, keepdims=True), -1) + values.min(-1, keepdims=True)
    for made in (model, kd.Model.from_config(model.get_config())):
        np.testing.assert_allclose(made.predict(values, verbose=0), expected, rtol=1e-5, atol=1e-5)


DEPEND_ON_VALUES = {
    "arange": lambda x: ops.arange(x),
    "bartlett": lambda x: ops.bartlett(x),
    "bincount": lambda x: ops.bincount(x),
    "nonzero": lambda x: ops.nonzero(x),
    "unique": lambda x: ops.unique(x),
    "where": lambda x: ops.where(x),
}


@pytest.mark.parametrize("name", DEPEND_ON_VALUES)
def test_what_has_no_shape_without_values_says_so(name):
    for call in (lambda f: f(kd.Input((3,), dtype="int32")), lambda f: jax.jit(f)(jnp.array([1, 2]))):
        with pytest.raises(ModelError, match=rf"shape of the result of `ops.{name}` depends on values") as caught:
            call(DEPEND_ON_VALUES[name])
        assert caught.value.fix
    ops.unique(kd.Input((3,)), size=2)


SHAPED = {
    "reshape": lambda x, batch: ops.reshape(x, (batch, -1)),
    "broadcast_to": lambda x, batch: ops.broadcast_to(x, (batch, 3)),
    "tile": lambda x, batch: ops.tile(x, (batch, 1)),
    "zeros": lambda x, batch: ops.zeros((batch, 3)),
    "ones": lambda x, batch: ops.ones((batch,)),
    "empty": lambda x, batch: ops.empty([batch]),
    "full": lambda x, batch: ops.full((batch, 2), 1.0),
}


@pytest.mark.parametrize("name", SHAPED)
def test_sizes_that_are_not_known_are_told(name):
    x = kd.Input((3,))
    for call in (lambda f: f(x, ops.shape(x)[0]), lambda f: jax.jit(functools.partial(f, X))(2)):
        with pytest.raises(ModelError, match=rf"shape of the result of `ops.{name}` is not known") as caught:
            call(SHAPED[name])
        assert "call` of a Layer" in caught.value.fix


def test_numbers_make_arrays_inside_of_compiled_functions():
    made = jax.jit(lambda: (ops.arange(1, 4), ops.arange(0, 1, 0.5), ops.hanning(3), ops.linspace(0, 1, 3)))()
    for found, expected in zip(made, ([1, 2, 3], [0, 0.5], [0, 1, 0], [0, 0.5, 1]), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


WRONG = {
    "newshape": lambda: ops.reshape(X, (-1, -1)),
    "sorted_sequence": lambda: ops.searchsorted(X, 1),
    "array": lambda: ops.rot90([1, 2]),
    "axis2": lambda: ops.diagonal(X, axis1=1, axis2=-1),
    "axes": lambda: ops.rot90(X, axes=(0, 0)),
    "constant_values": lambda: ops.pad(X, 1, mode="edge", constant_values=1),
    "indices_or_sections": lambda: ops.array_split(X, 0),
    "axis": lambda: ops.split(X, 2, axis=10),
    "x": lambda: ops.vander(X),
    "N": lambda: ops.vander([1, 2], N=-1),
    "x ": lambda: ops.histogram(X),
    "bins": lambda: ops.histogram([1, 2], bins=2.5),
    "range": lambda: ops.histogram([1, 2], range=(1, 0)),
    "x2": lambda: ops.where(X, 1),
    "condlist": lambda: ops.select(X, [X]),
    "choicelist": lambda: ops.select([X > 0], []),
    "sparse": lambda: ops.bincount([1], sparse=True),
    "pyfunc": lambda: ops.vectorize(3),
}


@pytest.mark.parametrize("argument", WRONG)
def test_errors_name_the_argument(argument):
    with pytest.raises(ModelError, match=f"`{argument.strip()}`"):
        WRONG[argument]()


def test_sums_of_products_of_8_bits_have_32():
    x = np.full((2, 2), 100, "int8")
    for result in (ops.matmul(x, x), ops.einsum("ij,jk->ik", x, x)):
        assert result.dtype == "int32"
        assert result[0, 0] == 20000
    assert ops.einsum("ij,jk->ik", x, x, preferred_element_type="float32").dtype == "float32"


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.array])
def test_integers_of_numpy_are_integers(kind):
    x = np.arange(9, dtype="float32").reshape(3, 3)
    np.testing.assert_array_equal(ops.triu(x, kind(0)), np.triu(x))  # in uint8, 0 - 1 is 255
    np.testing.assert_array_equal(ops.tril(x, kind(1)), np.tril(x, 1))
    np.testing.assert_array_equal(ops.diagflat(x[0], kind(1)), np.diag(x[0], 1))
    assert ops.extract_sequences(x, kind(4), kind(1)).shape == (3, 0, 4)
    assert ops.stft(x[0], kind(2), kind(1), kind(2))[0].shape == (4, 2)
