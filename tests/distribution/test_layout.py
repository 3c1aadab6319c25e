import pytest

import keras_dist as kd
from keras_dist.errors import LayoutError


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        (("data", "unknown", None), "Invalid axis names for Layout: 'unknown'"),
        (("modle",), "did you mean 'model'"),
        (("data", "data"), "mesh axis 'data' is used for more than one dim"),
        ((("data", "model"), "model"), "mesh axis 'model' is used for more than one dim"),
        ((("data", "data"),), "mesh axis 'data' is used for more than one dim"),
        ("data", "`axes` must be a sequence"),
        (3, "`axes` must be a sequence"),
        ((3,), "an entry of a layout must be .*, not 3"),
        (("",), "an entry of a layout must be .*, not ''"),
    ],
)
def test_refuses_axes_that_do_not_fit(mesh: kd.DeviceMesh, axes: object, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        kd.TensorLayout(axes, mesh)  # type: ignore[arg-type]


def test_the_mesh_comes_once(mesh: kd.DeviceMesh) -> None:
    layout = kd.TensorLayout(("data", None), mesh)
    with pytest.raises(LayoutError, match="Cannot override device mesh value"):
        layout.device_mesh = mesh


def test_a_late_mesh_is_checked_and_not_kept_when_wrong(mesh: kd.DeviceMesh) -> None:
    layout = kd.TensorLayout(("data", "unknown"))
    with pytest.raises(LayoutError, match="Invalid axis names for Layout"):
        layout.device_mesh = mesh
    assert layout.device_mesh is None


def test_a_mesh_of_jax_is_refused(mesh: kd.DeviceMesh) -> None:
    with pytest.raises(LayoutError, match=r"`device_mesh` must be a keras_dist.DeviceMesh"):
        kd.TensorLayout(("data",), mesh.backend_mesh)  # type: ignore[arg-type]


def test_backend_layout_without_a_mesh() -> None:
    with pytest.raises(LayoutError, match="Cannot create sharding when device mesh is not set"):
        _ = kd.TensorLayout(("data", None)).backend_layout


def test_equal_by_value(mesh: kd.DeviceMesh) -> None:
    layout = kd.TensorLayout(("data", None), mesh)
    assert layout == kd.TensorLayout(["data", None], kd.DeviceMesh("data=2,model=4"))
    assert hash(layout) == hash(kd.TensorLayout(["data", None], kd.DeviceMesh("data=2,model=4")))
    assert layout != kd.TensorLayout((None, "data"), mesh)
    assert layout != kd.TensorLayout(("data", None))
    assert layout != kd.TensorLayout(("data", None), kd.DeviceMesh("data=4,model=2"))
    assert layout != ("data", None)


@pytest.mark.parametrize("entry", [("data",), ["data"], "data"])
def test_one_axis_in_a_tuple_is_the_axis(mesh: kd.DeviceMesh, entry: object) -> None:
    assert kd.TensorLayout((entry, None), mesh) == kd.TensorLayout(("data", None), mesh)  # type: ignore[arg-type]
