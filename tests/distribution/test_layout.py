import jax
import pytest
from jax.sharding import PartitionSpec as P

import keras_dist as kd
from keras_dist.errors import LayoutError


def test_keeps_what_it_was_given(mesh: kd.DeviceMesh) -> None:
    layout = kd.TensorLayout(["data", None], mesh)
    assert layout.axes == ("data", None)
    assert layout.device_mesh is mesh


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


def test_an_axis_twice_is_found_without_a_mesh() -> None:
    with pytest.raises(LayoutError, match="'data' is used for more than one dim"):
        kd.TensorLayout(("data", "data"))


def test_the_mesh_may_come_later(mesh: kd.DeviceMesh) -> None:
    layout = kd.TensorLayout(("data", None))
    assert layout.device_mesh is None
    layout.device_mesh = mesh
    assert layout.device_mesh is mesh
    assert layout.axes == ("data", None)


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


@pytest.mark.parametrize(
    ("axes", "spec"),
    [
        (("data", None), P("data", None)),
        ((None, "model"), P(None, "model")),
        ((("data", "model"), None), P(("data", "model"), None)),
        ((["data", "model"],), P(("data", "model"))),
        (("model", None, "data"), P("model", None, "data")),
        ((), P()),
    ],
)
def test_backend_layout_is_that_of_jax(mesh: kd.DeviceMesh, axes: tuple, spec: P) -> None:
    assert kd.TensorLayout(axes, mesh).backend_layout == jax.sharding.NamedSharding(mesh.backend_mesh, spec)


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


def test_a_dim_over_two_axes_is_cut_into_their_product(mesh: kd.DeviceMesh) -> None:
    layout = kd.TensorLayout((("data", "model"), None), mesh)
    array = jax.device_put(jax.numpy.arange(32.0).reshape(16, 2), layout.backend_layout)
    assert [shard.data.shape for shard in array.addressable_shards] == [(2, 2)] * 8
    assert [int(shard.data[0, 0]) for shard in array.addressable_shards] == list(range(0, 32, 4))
