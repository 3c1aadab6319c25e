"""Hypothesis strategies: meshes, shapes, and layouts that fit both."""

import math

from hypothesis import strategies as st

from keras_dist import distribution as kdd

DEVICE_COUNT = 8
AXIS_NAMES = ("data", "model", "expert")

shapes = st.lists(st.integers(1, 9), max_size=3).map(tuple)
names = st.text("abc", min_size=1, max_size=3)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


@st.composite
def meshes(draw: st.DrawFn) -> kdd.DeviceMesh:
    """A mesh of one to three axes on some of the 8 devices."""
    sizes = draw(
        st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=3).filter(
            lambda s: math.prod(s) <= DEVICE_COUNT
        )
    )
    orders = [range(DEVICE_COUNT), range(DEVICE_COUNT)[::-1]]  # few: each is compiled for
    devices = draw(st.sampled_from(orders))[: math.prod(sizes)]
    return kdd.DeviceMesh(sizes, AXIS_NAMES[: len(sizes)], [f"cpu:{index}" for index in devices])


@st.composite
def axes_for(draw: st.DrawFn, mesh: kdd.DeviceMesh, rank: int) -> tuple:
    """Entries of a layout for `rank` dims: each mesh axis on one dim at most, several on one dim too."""
    entries: list[list[str]] = [[] for _ in range(rank)]
    for name in draw(st.permutations(list(mesh.axis_names))):
        dim = draw(st.integers(-1, rank - 1))
        if dim >= 0:
            entries[dim].append(name)
    return tuple(None if not e else e[0] if len(e) == 1 else tuple(e) for e in entries)


@st.composite
def placed_shapes(draw: st.DrawFn) -> tuple[kdd.DeviceMesh, tuple, tuple[int, ...]]:
    """A mesh, the axes of a layout, and a shape that they divide."""
    mesh = draw(meshes())
    axes = draw(axes_for(mesh, draw(st.integers(0, 3))))
    shape = tuple(draw(st.integers(1, 3)) * mesh.axis_size(axis) for axis in axes)
    return mesh, axes, shape
