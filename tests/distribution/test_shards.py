"""`plan.show`: which device holds which block, as numbers, text and pictures."""

import html
import math
import re
from typing import Any
from xml.etree import ElementTree

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given

import keras_dist as kd
from keras_dist.distribution.device_blocks import ShardPicture
from keras_dist.distribution.drawing import device_labels, ranges
from keras_dist.errors import UnknownPathError


def mesh_of(shape: str) -> kd.DeviceMesh:
    """Of devices that need not be there."""
    count = math.prod(int(size) for size in re.findall(r"\d+", shape))
    return kd.DeviceMesh(shape, devices=[f"tpu:{index}" for index in range(count)])


def picture(mesh: kd.DeviceMesh, shape: tuple[int, ...], axes: tuple[Any, ...], path: str = "w") -> ShardPicture:
    return ShardPicture(path, shape, "float32", axes, "a rule", 4, mesh)


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")] for line in text.splitlines() if "│" in line]


def pictures_in(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


@given(st.data())
def test_blocks_are_where_jax_puts_them(data: st.DataObject) -> None:
    sizes = data.draw(st.sampled_from([(2, 4), (8,), (2, 2, 2), (1, 8), (4, 2)]))
    names = ["a", "b", "c"][: len(sizes)]
    mesh = kd.DeviceMesh(sizes, names)
    order = data.draw(st.permutations(names))
    rank = data.draw(st.integers(1, 4))
    at = [data.draw(st.integers(0, rank)) for _ in order]
    axes = tuple(
        tuple(name for name, dim in zip(order, at, strict=True) if dim == place) or None for place in range(rank)
    )
    shape = tuple(mesh.axis_size(axis) * data.draw(st.integers(1, 3)) for axis in axes)
    drawn = picture(mesh, shape, axes)
    sharding = jax.sharding.NamedSharding(mesh.backend_mesh, jax.sharding.PartitionSpec(*axes))
    where = {
        f"cpu:{device.id}": tuple(slice(*part.indices(size)[:2]) for part, size in zip(parts, shape, strict=True))
        for device, parts in sharding.devices_indices_map(shape).items()
    }
    ours = {name: drawn.block_slices(int(b)) for name, b in zip(mesh.device_names, drawn.blocks, strict=True)}
    assert ours == where
    rows, columns = drawn._folded
    seen = {drawn._block(row, column) for row in range(rows) for column in range(columns)}
    assert seen == set(map(int, drawn.blocks)), "each block has one place in the picture"


def test_a_matrix() -> None:
    text = str(picture(mesh_of("data=2,model=4"), (16, 8), (None, "model")))
    assert text.splitlines()[0] == "w: 16 x 8 float32, (-, model), rule: a rule, on mesh {data: 2, model: 4}"
    assert "4 blocks of 16 x 2" in text and "each on 2 devices, which differ in data; device 0 is tpu:0" in text
    assert cells(text) == [["", "0:2", "2:4", "4:6", "6:8"], ["0:16", "0, 4", "1, 5", "2, 6", "3, 7"]]


@pytest.mark.parametrize(
    ("shape", "axes", "found"),
    [
        ((), (), [["", "all 4 devices"]]),
        ((8,), ("a",), [["", "0:4", "4:8"], ["", "0, 1", "2, 3"]]),
        ((8,), (("b", "a"),), [["", "0:2", "2:4", "4:6", "6:8"], ["", "0", "2", "1", "3"]]),
        ((3, 3, 2, 4), (None,) * 4, [["dims 0, 1, 2 ↓ \\ dim 3 →", "0:4"], ["3 x 3 x 2", "all 4 devices"]]),
        (
            (4, 6, 5),
            ("a", "b", None),
            [["dims 0, 2 ↓ \\ dim 1 →", "0:3", "3:6"], ["0:2, 0:5", "0", "1"], ["2:4, 0:5", "2", "3"]],
        ),
    ],
)
def test_other_ranks(shape: tuple[int, ...], axes: tuple[Any, ...], found: list[list[str]]) -> None:
    assert cells(str(picture(mesh_of("a=2,b=2"), shape, axes))) == found


@pytest.mark.parametrize(
    ("mesh", "axes"),
    [
        ("data=1024", (("data",), None)),
        ("data=32,model=32", ("data", "model")),
        ("a=8,b=8,c=16", (("a", "b"), "c")),
        ("data=1024", (None, None)),
    ],
)
def test_a_thousand_devices_are_readable(mesh: str, axes: tuple[Any, ...]) -> None:
    drawn = picture(mesh_of(mesh), (4096, 4096), axes)
    lines = str(drawn).splitlines()
    assert len(lines) < 25 and max(map(len, lines)) <= 120
    for svg in pictures_in(drawn._repr_html_()):
        assert float(svg.get("width", "")) < 800 and float(svg.get("height", "")) < 400
    assert ("..." in str(drawn)) == (axes != (None, None))
    (devices,) = pictures_in(drawn.mesh._repr_html_())
    assert float(devices.get("width", "")) < 1000 and float(devices.get("height", "")) < 600


def test_a_notebook_sees_the_array_and_the_mesh() -> None:
    drawn = picture(mesh_of("data=2,model=2"), (8, 8), ("model", None), path="<b>&w")
    text = drawn._repr_html_()
    assert "&lt;b&gt;&amp;w" in text and "<b>" not in text
    array, mesh = pictures_in(text)
    assert array.get("aria-label") == "<b>&w: 8 x 8 in 2 blocks"
    assert [field.findtext("text") for field in array.findall("g")] == ["0, 2", "1, 3"]
    assert [field.findtext("title") for field in array.findall("g")] == ["[0:4, 0:8]", "[4:8, 0:8]"]
    colours = [[field.find("rect").get("fill") for field in svg.findall("g")] for svg in (array, mesh)]  # type: ignore[union-attr]
    assert colours[1] == colours[0] * 2 and len(set(colours[0])) == 2


@pytest.fixture
def plan(mesh: kd.DeviceMesh) -> kd.LayoutPlan:
    rules = kd.LayoutMap(mesh)
    rules["d1/(kernel|<i>)"] = (None, "model")
    return kd.ModelParallel(rules).plan({"d1": {"kernel": np.zeros((8, 16)), "bias": np.zeros(16)}})


def test_a_plan_shows_its_arrays(plan: kd.LayoutPlan) -> None:
    shown_kernel = plan.show("d1/kernel")
    assert repr(shown_kernel) == str(shown_kernel) and "rule: d1/(kernel|<i>)" in str(shown_kernel)
    assert cells(str(shown_kernel))[1] == ["0:8", "0, 4", "1, 5", "2, 6", "3, 7"]
    assert cells(str(plan.show("d1/bias"))) == [["", "0:16"], ["", "all 8 devices"]]


@pytest.mark.parametrize("path", ["d1/kernle", "d1/kernel/", None, ["d1/kernel"], 3])
def test_a_path_that_is_not_there(plan: kd.LayoutPlan, path: Any) -> None:
    with pytest.raises(UnknownPathError) as caught:
        plan.show(path)
    assert isinstance(caught.value, KeyError)
    assert str(caught.value).startswith(f"the plan has no array {path!r}")
    if isinstance(path, str):
        assert "(did you mean 'd1/kernel'?)" in str(caught.value)


def test_notebooks_see_meshes_rules_and_plans_as_tables(plan: kd.LayoutPlan, mesh: kd.DeviceMesh) -> None:
    (svg,) = pictures_in(mesh._repr_html_())
    assert [field.findtext("text") for field in svg.findall("g")] == [str(index) for index in range(8)]
    assert svg.findall("g")[6].findtext("title") == "cpu:6: data 1, model 2"
    assert "DeviceMesh {data: 2, model: 4} of 8 devices; device 0 is cpu:0" in mesh._repr_html_()
    rules = kd.LayoutMap(mesh)
    rules["<script>.*"] = (("data", "model"), None)
    assert "<td>&lt;script&gt;.*</td><td>(data+model, -)</td>" in rules._repr_html_()
    assert "LayoutMap of 0 rules on no mesh" in kd.LayoutMap(None)._repr_html_()
    table = plan._repr_html_()
    found = [html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", table)]
    assert found[8:10] + found[13:16] == ["d1/kernel", "8 x 16", "d1/(kernel|<i>)", "512 B", "128 B"]
    ElementTree.fromstring(table)  # all elements are closed


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["cpu:3", "cpu:1"], ["3", "1"]),
        (["cpu:0", "gpu:0"], ["0", "1"]),
        (["v5p/0/1", "v5p/0/2"], ["0", "1"]),
        (["cpu:0", "x"], ["0", "1"]),
    ],
)
def test_numbers_of_devices(names: list[str], labels: list[str]) -> None:
    assert device_labels(names) == labels


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "3"),
        ([0, 4], "0, 4"),
        ([0, 1], "0, 1"),
        ([7, 6, 5], "5-7"),
        ([*range(4), *range(16, 20)], "0-3, 16-19"),
        ([*range(0, 1024, 16)], "0, 16, ... 1008 (64)"),
    ],
)
def test_numbers_in_few_words(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text
