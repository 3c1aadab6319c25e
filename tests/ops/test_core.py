"""`ops.core` and `ops.rearrange` give what Keras gives."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import ops
from keras_dist.errors import ModelError
from tests.ops.agreement import FLOATS, INTEGERS, Draws, agree, properties

INDICES = np.array([[0, 1], [2, 0], [0, 1]])


def doubled(x):
    return x * 2


def summed(state, row):
    return state + row, state * row


PATTERNS = [
    ("b h w -> b w h", {}),
    ("b h w -> (b h) w", {}),
    ("(b c) h w -> h b (w c)", {"b": 2, "c": 2}),
    ("b h w->b (w h)", {}),
]
CASES = {
    "cast": lambda d: ((d.numbers(), d.one_of(*FLOATS, *INTEGERS, "bool")), {}),
    "saturate_cast": lambda d: (
        (d.array((2, 3), d.one_of(*FLOATS, "int32"), -300, 300), d.one_of("uint8", "int8", "float16")),
        {},
    ),
    "convert_to_tensor": lambda d: ((d.numbers(),), {"dtype": d.one_of(None, "float32", "int32")}),
    "stop_gradient": lambda d: ((d.floats(),), {}),
    "unstack": lambda d: ((d.numbers(2, 3),), {"axis": d.one_of(1, -1)}),
    "slice": lambda d: ((d.numbers(2), (0, 1), d.one_of((2, 2), (1, -1), (-1, 1))), {"batch": False}),
    "slice_update": lambda d: ((d.array((4, 3)), (1, 0), d.array((2, 3))), {"batch": False}),
    "scatter": lambda d: ((INDICES, d.array((3,), d.one_of("float32", "int32")), (3, 2)), {"batch": False}),
    "scatter_update": lambda d: (
        (d.array((3, 2)), INDICES[:2], d.array((2,))),
        {"reduction": d.one_of(None, "add", "max", "min", "mul"), "batch": False},
    ),
    "map": lambda d: ((doubled, d.array((3, 2))), {}),
    "vectorized_map": lambda d: ((doubled, d.array((3, 2))), {}),
    "scan": lambda d: ((summed, d.array((2,)), d.array((3, 2))), {"reverse": d.one_of(False, True), "batch": False}),
    "associative_scan": lambda d: ((jnp.add, d.array((4, 2))), {"reverse": d.one_of(False, True), "batch": False}),
    "fori_loop": lambda d: ((0, 3, lambda i, x: x + i, d.array((2,))), {}),
    "while_loop": lambda d: (
        (lambda x: jnp.sum(x) < 50, doubled, d.array((2,), low=1)),
        {"maximum_iterations": d.one_of(None, 2)},
    ),
    "rearrange": lambda d: (lambda pattern, sizes: ((d.array((4, 2, 3)), pattern), {**sizes, "batch": False}))(
        *d.one_of(*PATTERNS)
    ),
}


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of limits and powers in Keras
@properties
@hypothesis.given(data=st.data())
def test_gives_what_keras_gives(keras, data):
    for name, case in CASES.items():
        args, kwargs = case(Draws(data))
        agree(keras, name, *args, **kwargs)


def test_branches(keras):
    branches = (lambda x: x + 1, lambda x: x * 2)
    for package in (ops, keras.ops):
        for index, expected in ((0, 4), (1, 6), (5, 6)):
            assert package.switch(index, branches, jnp.asarray(3)) == expected
        assert package.cond(jnp.asarray(True), lambda: jnp.ones(()), lambda: jnp.zeros(())) == 1
    index = kd.KerasTensor((), "int32")
    assert ops.switch(index, branches, kd.Input((2,))).shape == (None, 2)


def test_facts_about_arrays():
    variable, symbol = kd.Variable(np.zeros((2, 3), "float32")), kd.Input((4,), dtype="int32")
    assert [ops.shape(x) for x in (variable, symbol, [[1], [2]])] == [(2, 3), (None, 4), (2, 1)]
    assert [ops.dtype(x) for x in (variable, symbol, jnp.zeros(2, jnp.bfloat16))] == ["float32", "int32", "bfloat16"]
    facts = [ops.is_tensor(x) for x in (jnp.ones(2), np.ones(2), variable, symbol)]
    assert facts == [True, False, False, False]
    copy = ops.convert_to_numpy(variable)
    copy += 1
    assert type(copy) is np.ndarray and float(variable.value.sum()) == 0


def test_several_values_of_a_loop():
    turns, total = ops.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x + i), (0, jnp.zeros(())))
    assert (int(turns), float(total)) == (3, 3)
    turns, _ = ops.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x), [0, jnp.ones(())], maximum_iterations=2)
    assert int(turns) == 2


def test_own_gradient_of_variables():
    @ops.custom_gradient
    def clipped(x, y):
        """Of x."""
        return x * y, lambda upstream: (jnp.clip(upstream, -1, 1), jnp.zeros_like(y))

    assert clipped.__doc__ == "Of x."
    gradient = jax.grad(lambda x: 100 * clipped(x, kd.Variable(2.0)))(3.0)
    assert float(gradient) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.cast([1], "float31"), "`dtype` must be an element type"),
        (lambda: ops.unstack([[1, 2]], axis=2), "must be different integers from -"),
        (lambda: ops.convert_to_tensor([1], ragged=True), "ragged"),
        (lambda: ops.scan(summed, jnp.ones(2), jnp.ones((3, 2)), unroll=0), "unroll"),
        (lambda: ops.scatter_update(np.ones(3), [[0]], [1.0], reduction="mean"), "reduction"),
        (lambda: ops.unstack(kd.Input((3,))), "must not depend on a dim of unknown size"),
        (lambda: ops.rearrange(np.ones((2, 3)), "a b -> a c"), "pattern"),
        (lambda: ops.rearrange(np.ones((2, 3)), "(a b) c -> a b c"), "pattern"),
    ],
)
def test_what_does_not_fit_is_an_error(call, message):
    with pytest.raises(ModelError, match=message):
        call()
