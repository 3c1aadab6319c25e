"""What `initializers.get` accepts, and configs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from keras_dist import initializers, saving

KEY = jax.random.key(11)


class KerasStyle(initializers.Initializer):
    """As Keras's guide has it: without a key."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, shape: Any, dtype: Any = None) -> Any:  # type: ignore[override]
        return jnp.full(shape, self.value, dtype)


def keras_form(shape: Any, dtype: Any) -> Any:
    return 3 * np.ones(shape, dtype)


def house_form(shape: Any, dtype: Any, key: Any) -> Any:
    return jax.random.uniform(key, shape, dtype)


@pytest.mark.parametrize(
    "function",
    [
        keras_form,
        lambda s, d: jnp.full(s, 3, d),
        lambda shape, dtype=None: jnp.full(shape, 3, dtype),
        lambda shape, *, dtype: jnp.full(shape, 3, dtype),
        lambda shape, dtype=None, layout=None: jnp.full(shape, 3, dtype),
        lambda shape, dtype=None, **kwargs: jnp.full(shape, 3, dtype),
        lambda *args, **kwargs: jnp.full(*args[:1], 3, **kwargs),
        lambda key, shape, dtype: jnp.full(shape, 3, dtype),
        lambda k, s, d: jnp.full(s, 3, d),
        lambda rng, dims, dtype=jnp.float32: jnp.full(dims, 3, dtype),
        jax.nn.initializers.constant(3),
        nnx.initializers.constant(3),
        KerasStyle(3.0),
        lambda shape, dtype: 3 * np.ones(shape),  # float64
    ],
)
def test_functions_of_either_form(function: Any) -> None:
    initializer = initializers.get(function)
    values = initializer((2, 3), "float32", key=KEY)
    assert values.dtype == jnp.float32
    assert np.array_equal(values, np.full((2, 3), 3.0))


def test_functions_of_jax_get_the_key() -> None:
    for function in (jax.nn.initializers.normal(0.5), jax.random.normal):
        wrapped = initializers.get(function)
        assert np.array_equal(wrapped((3, 4), "float32", key=KEY), function(KEY, (3, 4), "float32"))
    assert np.array_equal(
        initializers.get(house_form)((3,), "float32", key=KEY), jax.random.uniform(KEY, (3,), "float32")
    )


def test_functions_run_inside_a_trace() -> None:
    wrapped = initializers.get(jax.nn.initializers.lecun_normal())
    inside = jax.jit(lambda key: wrapped((3, 4), "float32", key=key))(KEY)
    np.testing.assert_allclose(inside, wrapped((3, 4), "float32", key=KEY), rtol=1e-5)


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), jnp.arange(6.0).reshape(2, 3)])
def test_arrays_are_the_values(array: Any) -> None:
    values = initializers.get(array)((2, 3), "bfloat16", key=KEY)
    assert values.dtype == jnp.bfloat16
    assert np.array_equal(values.astype("float32"), array)


def test_functions_survive_configs_where_they_are_known() -> None:
    with saving.custom_object_scope({"keras_form": keras_form, "threes": keras_form}):
        again = initializers.get(initializers.serialize(initializers.get(keras_form)))
        for found in (again, initializers.get("threes")):
            assert found((1,), "float32", key=KEY).tolist() == [3.0]
