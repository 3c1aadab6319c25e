"""Objects as plain configs and back."""

import json
import sys
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from keras_dist import activations, initializers, saving, serialization
from keras_dist.errors import ConfigError


class Part(serialization.Configurable):
    def __init__(self, value: Any = None) -> None:
        self.value = value


class Foreign:
    """Reads its own part, as Keras's guide has it."""

    def __init__(self, part: Any) -> None:
        self.part = part

    def get_config(self) -> dict[str, Any]:
        return {"part": saving.serialize_keras_object(self.part)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Foreign":
        return cls(saving.deserialize_keras_object(config["part"]))


def triple(x: Any) -> Any:
    return 3 * x


CUSTOM = {"Part": Part, "Foreign": Foreign, "triple": triple}


def there_and_back(obj: Any, **kwargs: Any) -> Any:
    config = json.loads(json.dumps(saving.serialize_keras_object(obj)))
    return saving.deserialize_keras_object(config, CUSTOM, **kwargs)


plain = (
    st.none()
    | st.booleans()
    | st.text().map(str.encode)
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.slices(9)
    | st.just(...)
)
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=3)
        | inner.map(Part)
    ),
    max_leaves=8,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Part):
        return isinstance(b, Part) and same(a.value, b.value)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


@given(values)
def test_plain_values_and_objects_survive_json(value: Any) -> None:
    assert same(there_and_back(value), value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype="int8").reshape(2, 3),
        np.array(2.5),
        np.zeros((2, 0)),
        np.array([True]),
        jnp.eye(2, dtype="bfloat16"),
    ],
)
def test_arrays_keep_shape_and_dtype(array: Any) -> None:
    again = there_and_back(array)
    assert (again.shape, again.dtype) == (array.shape, array.dtype)
    assert np.array_equal(again, array)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64(0.5), 0.5),
        (np.int32(3), 3),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (np.dtype("float32"), "float32"),
        (np.float16, "float16"),
        (jnp.bfloat16, "bfloat16"),
        (jnp.float32, "float32"),
    ],
)
def test_scalars_and_dtypes_become_plain(value: Any, expected: Any) -> None:
    config = saving.serialize_keras_object(value)
    assert type(config) is type(expected)
    assert config == expected


def test_tensors_of_keras_are_read() -> None:
    config = {"class_name": "__tensor__", "config": {"value": [1.0, 2.0], "dtype": "float32"}}
    again = saving.deserialize_keras_object(config)
    assert (again.tolist(), again.dtype) == ([1.0, 2.0], np.float32)


def test_functions_are_found_by_name() -> None:
    assert there_and_back(triple) is triple
    assert there_and_back(activations.relu) is activations.relu
    with pytest.raises(ConfigError, match="'triple', which is not known") as caught:
        saving.deserialize_keras_object(saving.serialize_keras_object(triple))
    assert "custom_objects={'triple': triple}" in caught.value.fix


def test_configs_of_custom_objects_hold_their_registered_name() -> None:
    @saving.register_keras_serializable("shop")
    class Till(Part):
        pass

    config = saving.serialize_keras_object(Till(1))
    assert config["registered_name"] == "shop>Till"
    assert type(saving.deserialize_keras_object(config)) is Till
    assert saving.serialize_keras_object(Part())["registered_name"] == "Part"


@pytest.mark.parametrize(
    "module", ["keras.initializers", "keras_dist.initializers", "keras_dist.initializers.constants"]
)
def test_names_of_keras_mean_those_of_this_house(module: str) -> None:
    config = {"module": module, "class_name": "Ones", "config": {}, "registered_name": None}
    assert type(saving.deserialize_keras_object(config)) is initializers.Ones


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("subprocess", "Popen"),
        ("builtins", "eval"),
        ("this", "s"),
        ("keras_dist", "distribution"),
        ("keras_dist.os", "system"),
        ("keras_dist.initializers.os", "system"),
        ("keras_dist.initializers", "Configurable"),  # there, not exported
        ("keras_dist.initializers", "get"),  # exported, but no part of a model
        ("keras_dist.saving", "deserialize_keras_object"),
        ("keras_dist.saving", "Configurable"),
        ("keras_dist.config", "load"),
        ("keras_dist.datasets", "digits"),
        ("keras_dist.cli", "demo"),
        ("keras_dist._unstable.flax_internals", "adopt_traced_buffers"),
        ("keras_dist.initializers.", "Ones"),
        ("keras_dist..initializers", "Ones"),
        ("keras_dist.initializers.nowhere", "Nothing"),
        ("numpy", "ndarray"),
        (None, "Ones"),
        (7, "Ones"),
    ],
)
def test_nothing_else_is_reached(module: Any, name: str) -> None:
    before = set(sys.modules)
    for config in ({"class_name": name, "config": {}}, {"class_name": "function", "config": name}):
        for registered in (None, f"{module}>{name}"):
            with pytest.raises(ConfigError, match=f"{name}', which is not known") as caught:
                saving.deserialize_keras_object({**config, "module": module, "registered_name": registered})
        assert "register_keras_serializable" in caught.value.fix
    assert {module.split(".")[0] for module in set(sys.modules) - before} <= {"keras_dist"}


@pytest.mark.parametrize(
    "config",
    [
        {"class_name": ["a"], "config": {}},
        {"class_name": None, "config": {}},
        {"class_name": "Part", "config": None},
        {"class_name": "Part", "config": [1]},
        {"class_name": "function", "config": {"x": 1}},
        {"class_name": "__tuple__", "config": 5},
        {"class_name": "__tuple__", "config": {}},
        {"class_name": "__tuple__", "config": {"value": 5}},
        {"class_name": "__slice__", "config": {"start": 1}},
        {"class_name": "__numpy__", "config": {"value": [1], "dtype": "nothing"}},
        {"class_name": "__numpy__", "config": {"value": [[1], [2, 3]], "dtype": "float32"}},
    ],
)
def test_damaged_configs_are_named(config: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        saving.deserialize_keras_object(config, CUSTOM)
    assert isinstance(caught.value, TypeError)  # as in Keras
    assert caught.value.given
    assert caught.value.fix


@pytest.mark.parametrize("obj", [object(), {1, 2}, b"\xff", jax.random.key(0), print], ids=lambda o: type(o).__name__)
def test_what_cannot_be_written_down_or_read_again_is_named(obj: Any) -> None:
    with pytest.raises(ConfigError, match=r"cannot hold|not known"):
        there_and_back(obj)


def test_objects_in_what_get_config_gives_are_written_down_too() -> None:
    class Holder(Foreign):
        def get_config(self) -> dict[str, Any]:
            return {"part": [Part(1), triple, (np.float32(2.5), "x")]}

    config = json.loads(json.dumps(saving.serialize_keras_object(Holder(None))))
    part, function, numbers = saving.deserialize_keras_object(config, {**CUSTOM, "Holder": Holder}).part
    assert (part.value, function, numbers) == (1, triple, (2.5, "x"))


def test_a_class_without_from_config_is_named() -> None:
    class Half:
        def get_config(self) -> dict[str, Any]:
            return {}

    with pytest.raises(ConfigError, match="Half cannot be made from its config: it has no from_config") as caught:
        saving.deserialize_keras_object(saving.serialize_keras_object(Half()), {"Half": Half})
    assert isinstance(caught.value, TypeError)  # as in Keras


@pytest.mark.parametrize("safe_mode", [True, False])
@pytest.mark.parametrize("holder", [lambda function: function, Part, lambda function: Foreign(Part([function]))])
def test_lambdas_are_refused_by_name_and_their_code_is_in_no_config(holder: Any, safe_mode: bool) -> None:
    by = 3
    config = json.loads(json.dumps(saving.serialize_keras_object(holder(lambda x, *, power=2: x**power * by))))
    with pytest.raises(ConfigError, match=r"holds a lambda: 'tests\.serialization\..*<lam") as caught:
        saving.deserialize_keras_object(config, CUSTOM, safe_mode=safe_mode)
    assert "@saving.register_keras_serializable()" in caught.value.fix
    assert "power" not in json.dumps(config)


@pytest.mark.parametrize("inner", [{"value": "4wAAAAA=", "defaults": []}, {"name": 5}, {"function": "os.system"}, {}])
def test_code_of_others_is_never_read(inner: Any) -> None:
    for safe_mode in (True, False):
        with pytest.raises(ConfigError, match="holds a lambda"):
            saving.deserialize_keras_object({"class_name": "__lambda__", "config": inner}, safe_mode=safe_mode)


CODE = ["4wEAAAAAAAAAAAAAAAIAAAADAAAA\n", None, None]
"""The code of a lambda as Keras 3 writes it."""


@pytest.mark.parametrize("code", [{"value": CODE}, {"class_name": "__lambda__", "config": {"value": CODE}}])
@pytest.mark.parametrize("name", ["activation", "kernel_initializer"])
def test_code_of_keras_is_refused_by_argument_and_layer(name: str, code: Any) -> None:
    config = {"module": "keras.layers", "class_name": "Dense", "config": {"name": "d1", "units": 2, name: code}}
    with pytest.raises(ConfigError, match=f"holds a lambda: its code is in the config, for `{name}` of Dense 'd1'"):
        saving.deserialize_keras_object(config)


def test_what_was_done_after_the_constructor_is_done_again() -> None:
    class Built(Part):
        size = None

        def get_build_config(self) -> Any:
            return self.size

        def build_from_config(self, config: Any) -> None:
            self.size = config

    built = Built()
    assert "build_config" not in saving.serialize_keras_object(built)
    built.size = [3]
    assert saving.deserialize_keras_object(saving.serialize_keras_object(built), {"Built": Built}).size == [3]
