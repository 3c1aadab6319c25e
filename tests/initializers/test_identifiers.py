"""What `initializers.get` accepts, and configs."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from keras_dist import initializers, saving
from keras_dist.errors import ConfigError, ModelError, UnknownNameError
from keras_dist.saving.vocabulary import snake_case

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
    ("name", "cls"),
    [
        ("HeNormal", initializers.HeNormal),
        ("he_normal", initializers.HeNormal),
        ("glorot_uniform", initializers.GlorotUniform),
        ("zeros", initializers.Zeros),
        ("zero", initializers.Zeros),
        ("one", initializers.Ones),
        ("normal", initializers.RandomNormal),
        ("uniform", initializers.RandomUniform),
        ("OrthogonalInitializer", initializers.Orthogonal),
        ("IdentityInitializer", initializers.Identity),
        ("lecun_uniform", initializers.LecunUniform),
        ("variance_scaling", initializers.VarianceScaling),
    ],
)
def test_names(name: str, cls: type) -> None:
    assert type(initializers.get(name)) is cls


def test_all_classes_are_known_by_both_spellings() -> None:
    classes = {
        value
        for value in vars(initializers).values()
        if isinstance(value, type) and issubclass(value, initializers.Initializer)
    }
    special = {
        initializers.Initializer,
        initializers.RandomInitializer,
        initializers.FromArray,
        initializers.FromFunction,
    }
    assert len(classes - special) == 15
    for cls in classes - special:
        snake = snake_case(cls.__name__)
        assert type(initializers.get(cls.__name__)) is type(initializers.get(snake)) is cls
        assert getattr(initializers, snake) is cls
        assert {cls.__name__, snake} <= set(initializers.__all__)


def test_objects_classes_and_none() -> None:
    he = initializers.HeNormal(seed=1)
    assert initializers.get(he) is he
    assert type(initializers.get(initializers.HeNormal)) is initializers.HeNormal
    assert initializers.get(None) is None
    assert initializers.get(house_form) is house_form


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


@pytest.mark.parametrize(
    ("identifier", "error", "words"),
    [
        ("he_norml", UnknownNameError, "did you mean 'he_normal'"),
        ("nothing like it", UnknownNameError, "unknown initializer"),
        (0.5, ModelError, "not an initializer"),
        ([1.0], ModelError, "not an initializer"),
        (lambda: 1, ModelError, r"parameters \(\)"),
        (lambda shape: 1, ModelError, r"parameters \(shape\)"),
        (lambda key, shape: 1, ModelError, r"parameters \(key, shape\)"),
        (lambda shape, dtype, scale: 1, ModelError, r"parameters \(shape, dtype, scale\)"),
        (KerasStyle, ConfigError, "needs arguments"),
        ({"class_name": "Zeross", "config": {}}, ConfigError, "'Zeross', which is not known"),
        ({"class_name": "Zeros"}, ModelError, "not an initializer"),
        ({"class_name": "HeNormal", "config": {"sede": 1}}, ConfigError, "config with sede"),
    ],
)
def test_what_is_no_initializer_is_named(identifier: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        initializers.get(identifier)
    assert caught.value.given
    assert caught.value.expected
    assert caught.value.fix


@pytest.mark.parametrize(
    "initializer",
    [
        initializers.HeNormal(seed=3),
        initializers.Constant(0.25),
        initializers.Constant(np.float32(0.25)),
        initializers.Constant(np.arange(3.0)),
        initializers.VarianceScaling(2.0, "fan_out", "uniform", 5, [0], (1,)),
        initializers.Orthogonal(2.0, seed=4),
        initializers.Identity(2.0),
        initializers.RandomUniform(0.0, 1.0, seed=9),
        initializers.FromArray(np.eye(3, dtype="float32")),
        initializers.get(jnp.eye(3)),
    ],
    ids=lambda initializer: type(initializer).__name__,
)
def test_configs_survive_json(initializer: Any) -> None:
    config = json.loads(json.dumps(initializers.serialize(initializer)))
    assert config["module"] == "keras_dist.initializers"
    for again in (initializers.deserialize(config), initializers.get(config), saving.deserialize_keras_object(config)):
        assert type(again) is type(initializer)
        assert np.array_equal(again((3, 3)), initializer((3, 3)))


def test_configs_of_keras_are_read() -> None:
    assert initializers.get({"class_name": "zeros", "config": {}})((1,)).tolist() == [0.0]
    config = {
        "module": "keras.initializers",
        "class_name": "Constant",
        "config": {"value": 2.0},
        "registered_name": None,
    }
    assert initializers.get(config)((1,)).tolist() == [2.0]


def test_custom_objects() -> None:
    config = initializers.serialize(KerasStyle(2.0))
    with pytest.raises(ConfigError, match="KerasStyle"):
        initializers.deserialize(config)
    again = initializers.deserialize(config, {"KerasStyle": KerasStyle})
    assert again((2,), "float32", key=KEY).tolist() == [2.0, 2.0]
    with saving.custom_object_scope({"threes": keras_form}):
        assert initializers.get("threes")((1,), "float32", key=KEY).tolist() == [3.0]
    with saving.custom_object_scope({"keras_form": keras_form}):
        again = initializers.get(initializers.serialize(initializers.get(keras_form)))
        assert again((1,), "float32", key=KEY).tolist() == [3.0]
