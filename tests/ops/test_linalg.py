"""`ops.linalg` gives what Keras gives."""

import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import ops
from keras_dist.errors import ModelError
from tests.ops.agreement import Draws, agree, properties

EYE = np.eye(3, dtype="float32")


def square(d, *shape):
    """Matrices that are far from singular."""
    return d.array((*shape, 3, 3)) + 5 * EYE


def positive(d, *shape):
    halves = d.array((*shape, 3, 3))
    return halves @ np.swapaxes(halves, -1, -2) + EYE


def some(d):
    return d.one_of((), (2,))


CASES = {
    "cholesky": lambda d: ((positive(d, *some(d)),), {"upper": d.one_of(False, True), "batch": False}),
    "cholesky_inverse": lambda d: (
        (np.linalg.cholesky(positive(d)),),
        {"upper": d.one_of(False, True), "batch": False},
    ),
    "det": lambda d: ((square(d, 2),), {}),
    "eigh": lambda d: ((positive(d, 2),), {}),
    "inv": lambda d: ((square(d, 2),), {}),
    "lstsq": lambda d: ((d.array((5, 3)), d.array(d.one_of((5,), (5, 2)))), {"batch": False, "tolerance": 1e-4}),
    "lu_factor": lambda d: ((square(d, *some(d)),), {"symbolic": False}),  # the pivots that Keras tells are floats
    "matrix_rank": lambda d: ((d.array((2, 3, 4)),), {"tol": d.one_of(None, 0.5)}),
    "norm": lambda d: (
        (d.numbers(2),),
        d.one_of(
            {}, {"ord": 1, "axis": 1}, {"ord": "fro", "axis": (0, 1)}, {"ord": np.inf, "axis": 0, "keepdims": True}
        ),
    ),
    "pinv": lambda d: ((d.array((2, 3, 2)),), {"tolerance": 1e-4}),
    "qr": lambda d: ((d.array((2, 4, 3)),), {"mode": d.one_of("reduced", "complete")}),
    "solve": lambda d: ((square(d), d.array(d.one_of((3,), (3, 2)))), {"batch": False}),
    "solve_triangular": lambda d: (
        (square(d), d.array(d.one_of((3,), (3, 2)))),
        {"lower": d.one_of(False, True), "batch": False},
    ),
    "svd": lambda d: (
        (d.array((2, 4, 3)),),
        {"full_matrices": d.one_of(False, True), "compute_uv": d.one_of(False, True)},
    ),
}


@properties
@hypothesis.given(data=st.data())
def test_gives_what_keras_gives(keras, data):
    for name, case in CASES.items():
        args, kwargs = case(Draws(data))
        agree(keras, name, *args, **kwargs)


def test_gradients(keras):
    matrices = np.random.default_rng(0).normal(size=(2, 3, 3)).astype("float32") + 5 * EYE
    for name in ("det", "inv", "norm", "qr"):
        agree(keras, name, matrices, gradients=True, symbolic=False)
    agree(keras, "solve", matrices[0], matrices[1], gradients=True, symbolic=False)


def test_eigenvalues_of_any_matrix(keras):
    matrix = np.array([[0, 1], [-1, 0]], "float32")
    for ours, theirs in zip(ops.eig(matrix), keras.ops.eig(matrix), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    np.testing.assert_allclose(np.sort(ops.eig(matrix)[0].imag), [-1, 1], atol=1e-6)


def test_inverses_of_several_factors():
    matrices = np.stack([4 * EYE, EYE + 0.5])
    np.testing.assert_allclose(ops.cholesky_inverse(ops.cholesky(matrices)), np.linalg.inv(matrices), atol=1e-6)


def test_derivatives_in_a_direction():
    value, derivative = ops.jvp(jnp.square, [jnp.asarray(3.0)], [jnp.asarray(1.0)])
    assert (float(value), float(derivative)) == (9, 6)
    *_, aux = ops.jvp(lambda x: (x * x, x + 1), [jnp.asarray(3.0)], [jnp.asarray(1.0)], has_aux=True)
    assert float(aux) == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.cholesky(-EYE), "not positive definite"),
        (lambda: ops.det(np.ones((2, 3))), "square matrices"),
        (lambda: ops.qr(np.ones(3)), "matrices"),
        (lambda: ops.solve(EYE, np.ones(2)), "3 rows"),
        (lambda: ops.qr(EYE, mode="r"), "mode"),
    ],
)
def test_what_does_not_fit_is_an_error(call, message):
    with pytest.raises(ModelError, match=message):
        call()
