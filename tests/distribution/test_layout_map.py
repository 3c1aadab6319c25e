from typing import Any

import pytest

import keras_dist as kd
from keras_dist.errors import LayoutError


def test_lookup_is_exact_path_first_then_whole_path_regex(rules: Any) -> None:
    rules["dense/kernel"] = (None, "model")
    rules[".*dense.*kernel"] = ("data", None)
    assert rules["dense/kernel"].axes == (None, "model")
    assert rules["dense_2/kernel"].axes == ("data", None)
    assert rules["dense_2/kernel/extra"] is None
    assert rules["conv/kernel"] is None


@pytest.mark.parametrize(
    "layout", [(None, "model"), [None, "model"], kd.TensorLayout([None, "model"])], ids=["tuple", "list", "layout"]
)
def test_inserting_gives_the_layout_the_mesh(rules: Any, mesh: kd.DeviceMesh, layout: object) -> None:
    rules["dense/kernel"] = layout
    assert rules["dense/kernel"] == kd.TensorLayout((None, "model"), mesh)
    assert rules["dense/kernel"].device_mesh is mesh


def test_a_duplicate_key_raises(rules: Any) -> None:
    rules["dense/kernel"] = (None, "model")
    with pytest.raises(LayoutError, match="dense/kernel already exist"):
        rules["dense/kernel"] = ("data", None)
    assert rules["dense/kernel"].axes == (None, "model")


@pytest.mark.parametrize("value", [["a", "b"], "model", 3, None, {"model"}])
def test_what_is_no_layout_says_what_it_should_be(rules: Any, value: object) -> None:
    with pytest.raises(LayoutError, match="should be a TensorLayout"):
        rules["conv.kernel"] = value
    assert len(rules) == 0


def test_an_axis_typo_raises_on_insertion(rules: Any) -> None:
    layout = kd.TensorLayout((None, "modle"))
    with pytest.raises(LayoutError, match="Invalid axis names for Layout: 'modle' \\(did you mean 'model'\\?\\)"):
        rules["dense/kernel"] = layout
    assert "dense/kernel" not in rules
    assert layout.device_mesh is None


@pytest.mark.parametrize("key", [3, None, ("d1", "kernel")])
def test_a_key_is_a_string(rules: Any, key: object) -> None:
    with pytest.raises(LayoutError, match="`rule` must be a string"):
        rules[key] = (None,)


def test_a_key_that_is_no_regular_expression(rules: Any) -> None:
    with pytest.raises(LayoutError, match="is not a regular expression") as caught:
        rules["d1/kernel[0"] = (None,)
    assert "d1/kernel\\\\[0" in caught.value.fix


def test_a_layout_of_another_mesh_is_refused(rules: Any) -> None:
    layout = kd.TensorLayout((None, "model"))
    kd.LayoutMap(kd.DeviceMesh("data=4,model=2"))["kernel"] = layout
    with pytest.raises(LayoutError, match="belongs to a different mesh") as caught:
        rules["kernel"] = layout
    assert "{data: 4, model: 2}" in caught.value.given
    assert "{data: 2, model: 4}" in caught.value.given
    assert len(rules) == 0


@pytest.mark.parametrize("value", ["data=2,model=4", (2, 4)])
def test_the_mesh_is_a_mesh(value: object) -> None:
    with pytest.raises(LayoutError, match=r"`device_mesh` must be a keras_dist.DeviceMesh"):
        kd.LayoutMap(value)  # type: ignore[arg-type]


def test_without_a_mesh_layouts_stay_unbound() -> None:
    rules: Any = kd.LayoutMap(None)
    rules["kernel"] = ("anything",)
    assert rules.device_mesh is None
    assert rules["kernel"].device_mesh is None


def test_pop_and_del_see_keys_not_paths(rules: Any) -> None:
    rules["dense/kernel"] = (None, "model")
    rules[".*bias"] = ("model",)
    assert rules.pop("dense/kernel").axes == (None, "model")
    with pytest.raises(KeyError):
        rules.pop("dense/bias")
    with pytest.raises(KeyError):
        rules.pop("nothing")
    assert rules.pop("nothing", None) is None
    del rules[".*bias"]
    assert len(rules) == 0
    with pytest.raises(KeyError):
        del rules[".*bias"]


def test_get_looks_up_as_brackets_do(rules: Any) -> None:
    rules[".*bias"] = ("model",)
    assert rules.get("dense/bias").axes == ("model",)
    assert rules.get("dense/kernel") is None
    assert rules.get("dense/kernel", "default") == "default"


def test_setdefault_and_update(rules: Any) -> None:
    assert rules.setdefault("d1/kernel", (None, "model")).axes == (None, "model")
    assert rules.setdefault("d1/kernel", ("data", None)).axes == (None, "model")
    rules.update({"d1/bias": ("model",)})
    assert rules["d1/bias"].axes == ("model",)


def test_equal_by_value(mesh: kd.DeviceMesh) -> None:
    one, other = kd.LayoutMap(mesh), kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    one["kernel"] = other["kernel"] = (None, "model")
    assert one == other
    other["bias"] = ("model",)
    assert one != other


def test_is_printed_with_its_rules(rules: Any) -> None:
    rules["kernel"] = (None, "model")
    assert "'kernel': (None, 'model')" in repr(rules)
