"""Machines to plan for: their names, devices, and where these stand in a mesh."""

import math

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.planner import devices, target
from keras_dist.planner.targets import CHIPS, places_in_mesh

TARGETS = {
    "cpu:8": (8, 1, "cpu"),
    "v5e:4x4": (16, 1, "tpu"),
    "v5p:8x8x16": (1024, 1, "tpu"),
    "v5e:4x4*2": (32, 2, "tpu"),
    "v2:4x4": (32, 1, "tpu"),  # a chip has two cores with memory of their own
    "tpu7x:2x2x1": (8, 1, "tpu"),
    "h100:1x128x8": (1024, 1, "cuda"),
    "b200:2x4x8": (64, 2, "cuda"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_name_gives_devices_slices_and_the_platform_to_lower_for(name):
    machine = target(name)
    assert (machine.device_count, machine.slices, machine.platform) == TARGETS[name]
    assert len(set(devices(name))) == machine.device_count


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("v5ee:4x4", kd.errors.UnknownNameError, "`target`: unknown chip 'v5ee' .did you mean 'v5e'"),
        ("h10:1x1x8", kd.errors.UnknownNameError, "did you mean 'h100'"),
        ("v5e", kd.errors.ConfigError, "(?s)`target` must be .*target='v5e'"),
        ("v5e:4", kd.errors.ConfigError, "two dims"),
        ("v5e:4x0", kd.errors.ConfigError, "at least one device"),
        ("cpu:1000000", kd.errors.ConfigError, "at most 131,072"),
        ("cpu:2x4", kd.errors.ConfigError, "one number of devices"),
        ("h100:8", kd.errors.ConfigError, "slices x hosts x GPUs"),
        ("v5e:\N{FULLWIDTH DIGIT FOUR}x4", kd.errors.ConfigError, "a chip and a shape"),
        ("cpu:" + "9" * 5000, kd.errors.ConfigError, "a chip and a shape"),
        (8, kd.errors.ConfigError, "(?s)`target` must be .*target=8"),
    ],
)
def test_what_names_no_machine_is_refused(name, error, text):
    with pytest.raises(error, match=text):
        target(name)


def test_devices_have_the_numbers_places_and_hosts_that_libtpu_gives_them():
    found = {place.id: (place.slice_index, place.host, place.coords) for place in target("v5e:4x4*2").places}
    assert [found[number] for number in (100_000, 100_001, 100_004, 100_010, 200_015)] == [
        (0, 0, (0, 0, 0)),
        (0, 0, (1, 0, 0)),
        (0, 0, (0, 1, 0)),
        (0, 3, (2, 2, 0)),
        (1, 7, (3, 3, 0)),
    ]
    cores = [(place.id, place.coords, place.core_on_chip) for place in target("tpu7x:2x2x1").places[:3]]
    assert cores == [(0, (0, 0, 0), 0), (1, (0, 0, 0), 1), (2, (1, 0, 0), 0)]


def test_gpus_are_numbered_slice_by_slice_and_host_by_host():
    places = target("h100:2x2x4").places
    assert [place.name for place in places] == [f"gpu:{index}" for index in range(16)]
    assert [(place.slice_index, place.host) for place in places[::4]] == [(0, 0), (0, 1), (1, 2), (1, 3)]


def test_a_mesh_of_a_target_needs_no_devices():
    mesh = kd.DeviceMesh("data=64,model=16", devices=devices("v5p:8x8x16", (64, 16)))
    assert mesh.shape == (64, 16)
    assert mesh.platform == "tpu"


def test_inner_axes_go_along_wires_and_outer_ones_over_slices():
    places = places_in_mesh(target("v5e:4x4*2"), (8, 4))
    for line in places:
        coords = np.array([place.coords for place in line])
        assert (np.ptp(coords, axis=0) > 0).sum() == 1, "four neighbours in one dim of the net"
        assert len({place.slice_index for place in line}) == 1
    assert len({place.slice_index for place in places[:, 0]}) == 2


def test_all_devices_are_in_a_mesh_in_the_order_of_their_names_or_else_by_default():
    machine = target("v5e:2x4")
    backwards = devices(machine)[::-1]
    placed = places_in_mesh(machine, (2, 4), backwards)
    assert [place.name for place in placed.flat] == backwards
    others = places_in_mesh(machine, (2, 4), [f"cpu:{index}" for index in range(8)])
    assert [place.id for place in others.flat] == [place.id for place in places_in_mesh(machine, (2, 4)).flat]


@pytest.mark.parametrize("call", [lambda: devices("v5e:4x4", (2, 4)), lambda: places_in_mesh(target("cpu:8"), (3,))])
def test_a_mesh_of_another_size_is_refused(call):
    with pytest.raises(kd.errors.MeshError, match="must have all of its ") as caught:
        call()
    assert "fake" not in caught.value.fix


def test_a_mesh_of_eight_on_a_target_of_sixteen_is_advised_to_use_sixteen():
    with pytest.raises(kd.errors.MeshError) as caught:
        kd.AutoParallel("data=2,model=4", target="v5e:4x4")
    assert caught.value.fix == "shape=(4, 4) for the 16 devices that were given; or devices=[...] with 8 devices"
    with pytest.raises(kd.errors.MeshError) as caught:
        kd.planner.roofline("v5e:4x4", {"data": 8}, flops=1, accessed_nbytes=1, collectives=[])
    assert (
        caught.value.fix == "a mesh of shape (16,) with devices=kd.planner.devices('v5e:4x4', (16,)); or another target"
    )
    with pytest.raises(kd.errors.MeshError) as caught:
        kd.DeviceMesh("a=-1,b=3", devices=devices("v5e:4x4"))
    assert caught.value.fix == "shape=(16, 1) for the 16 devices that were given"


@pytest.mark.parametrize("wrong", ["ab", 8, (2, 4.0), (-2, -4), {"data": 8}])
def test_a_shape_of_a_mesh_is_of_sizes(wrong):
    with pytest.raises(kd.errors.MeshError, match="`mesh_shape` must be sizes"):
        devices("v5e:2x4", wrong)


@pytest.mark.parametrize("name", CHIPS)
def test_each_chip_has_figures_and_says_where_they_stand(name):
    chip = CHIPS[name]
    assert chip.name == name
    assert chip.source
    assert all(value > 0 and math.isfinite(value) for value in chip.flops_per_second.values())
    assert min(chip.hbm_bytes_per_second, chip.link_bytes_per_second, chip.network_bytes_per_second) > 0
    if chip.platform != "cpu":
        assert chip.hbm_nbytes >= 16 * 2**30
        assert chip.hbm_bytes_per_second > chip.link_bytes_per_second > chip.network_bytes_per_second
