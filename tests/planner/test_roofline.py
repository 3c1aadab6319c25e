"""The least time of a step, beside the textbook's formulas worked out by hand."""

import pytest

import keras_dist as kd
from keras_dist.planner import Collective, roofline, target
from keras_dist.planner.roofline import collective_seconds, group_of
from keras_dist.planner.targets import places_in_mesh

V = 10**9
LINK = {"v5e": 50e9, "v5p": 100e9}


def seconds(name, shape, axes, kind="all_reduce"):
    """Of V bytes over axes of a mesh `a, b, ...` of this shape, as it is arranged by default."""
    machine = target(name)
    names = "abcd"[: len(shape)]
    return collective_seconds(machine, kind, V, group_of(places_in_mesh(machine, shape), names, tuple(axes)))


@pytest.mark.parametrize(
    ("name", "shape", "axes", "bandwidth"),
    [
        ("v5e:4x4", (4, 4), "b", LINK["v5e"]),  # a line of four: one link sends
        ("v5e:16x16", (16, 16), "b", 2 * LINK["v5e"]),  # a ring of sixteen: two
        ("v5e:4x4", (4, 4), "ab", 2 * LINK["v5e"]),  # lines in both dims
        ("v5p:4x4x4", (16, 4), "b", 2 * LINK["v5p"]),  # a ring of a cube
        ("v5p:4x4x4", (4, 16), "b", 4 * LINK["v5p"]),  # rings in two dims
        ("v5p:2x2x4", (4, 4), "a", LINK["v5p"]),  # no whole cube: no optical switch closes a ring
        ("tpu7x:4x4x4", (32, 4), "b", 2 * 100e9 / 2),  # links of a ring, shared by the two cores of a chip
        ("h100:1x4x8", (4, 8), "b", 450e9),
    ],
)
def test_rings_and_lines(name, shape, axes, bandwidth):
    machine = target(name)
    count = len(group_of(places_in_mesh(machine, shape), "ab", tuple(axes)))
    share = (count - 1) / count * V / bandwidth
    assert seconds(name, shape, axes, "all_gather") == pytest.approx(share)
    assert seconds(name, shape, axes, "reduce_scatter") == pytest.approx(share)
    assert seconds(name, shape, axes, "all_reduce") == pytest.approx(2 * share)


def test_a_part_of_a_ring_is_a_line():
    machine = target("v5e:16x16")
    group = [place for place in machine.places if place.coords[1] == 0 and place.coords[0] < 4]
    assert collective_seconds(machine, "all_gather", V, group) == pytest.approx(3 / 4 * V / LINK["v5e"])


def test_across_slices_the_network_carries_what_is_left_after_a_reduce_scatter():
    inside = 15 / 16 * V / (2 * LINK["v5e"])
    between = 1 / 2 * (V / 16) / 3.125e9
    assert seconds("v5e:4x4*2", (2, 16), "ab") == pytest.approx(2 * (inside + between))
    assert seconds("v5e:4x4*2", (2, 16), "a") == pytest.approx(2 * 1 / 2 * V / 3.125e9)


def test_across_hosts_each_gpu_has_a_network_card():
    inside, between = 7 / 8 * V / 450e9, 3 / 4 * (V / 8) / 50e9
    assert seconds("h100:1x4x8", (4, 8), "ab") == pytest.approx(2 * (inside + between))
    assert seconds("h100:1x4x8", (4, 8), "a", "all_gather") == pytest.approx(3 / 4 * V / 50e9)


def test_all_to_all_is_limited_by_the_cut_of_a_ring_and_not_of_a_switch():
    assert seconds("v5e:16x16", (16, 16), "b", "all_to_all") == pytest.approx(16 * V / (4 * 2 * LINK["v5e"]))
    assert seconds("h100:1x1x8", (8,), "a", "all_to_all") == pytest.approx(7 / 8 * V / 450e9)
    between = 3 / 4 * V / 50e9
    assert seconds("h100:1x4x8", (4, 8), "ab", "all_to_all") == pytest.approx(7 / 8 * V / 450e9 + between)


def test_a_permute_goes_over_one_link():
    assert seconds("v5e:4x4", (4, 4), "b", "collective_permute") == pytest.approx(V / LINK["v5e"])
    assert seconds("v5e:4x4*2", (2, 16), "a", "collective_permute") == pytest.approx(V / 3.125e9)


def test_cores_of_a_chip_exchange_through_its_memory():
    assert seconds("tpu7x:2x2x1", (4, 2), "b", "all_gather") == pytest.approx(V / 2 / (7380e9 / 2))


def test_a_device_alone_exchanges_nothing():
    assert seconds("v5e:4x4", (16, 1), "b") == 0


def line(**given):
    moved = {"data": 10**6, "model": 10**9}
    collectives = [Collective("all_reduce", (axis,), nbytes, 3, "", "") for axis, nbytes in moved.items()]
    arguments = {"flops": 1e12, "accessed_nbytes": 1e9, "collectives": collectives} | given
    return roofline("v5p:4x4x4", {"data": 16, "model": 4}, **arguments)


def test_the_three_times_and_their_sums():
    found = line()
    assert found.compute_seconds == pytest.approx(1e12 / 459e12)
    assert found.memory_seconds == pytest.approx(1e9 / 2765e9)
    over_model = 3 * 2 * 3 / 4 * 1e9 / 200e9
    over_data = 3 * 2 * 15 / 16 * 1e6 / 400e9
    assert found.communication_seconds == pytest.approx({("model",): over_model, ("data",): over_data})
    assert found.step_seconds == pytest.approx(over_model + over_data)
    assert found.serial_step_seconds == pytest.approx(1e12 / 459e12 + over_model + over_data)


@pytest.mark.parametrize(
    ("given", "bottleneck"),
    [
        ({}, "communication over model"),
        ({"flops": 1e15}, "compute"),
        ({"accessed_nbytes": 1e12}, "memory"),
        ({"collectives": []}, "compute"),
    ],
)
def test_the_bottleneck_is_named(given, bottleneck):
    found = line(**given)
    assert found.bottleneck == bottleneck
    assert found.seconds_by_resource[bottleneck] == max(found.seconds_by_resource.values())


def test_multiplications_of_integers_are_faster_and_chips_of_two_devices_share():
    assert line(dtype="int8").compute_seconds == pytest.approx(1e12 / 918e12)
    found = roofline("tpu7x:2x2x1", {"data": 8}, flops=1e12, accessed_nbytes=1e9, collectives=[])
    assert found.compute_seconds == pytest.approx(2 * 1e12 / 2307e12)
    assert found.memory_seconds == pytest.approx(2 * 1e9 / 7380e9)


def test_loops_of_unknown_turns_count_once():
    unknown = Collective("all_reduce", ("model",), 10**9, 0, "", "")
    once = Collective("all_reduce", ("model",), 10**9, 1, "", "")
    assert line(collectives=[unknown]).communication_seconds == line(collectives=[once]).communication_seconds


def test_the_order_of_the_devices_decides_over_which_wires_an_axis_goes():
    arguments = {"flops": 0, "accessed_nbytes": 0}
    gathered = [Collective("all_gather", ("model",), V, 1, "", "")]
    names = kd.planner.devices("h100:1x8x8")
    strided = [names[host * 8 + gpu] for gpu in range(8) for host in range(8)]
    inside = roofline("h100:1x8x8", {"data": 8, "model": 8}, collectives=gathered, devices=names, **arguments)
    across = roofline("h100:1x8x8", {"data": 8, "model": 8}, collectives=gathered, devices=strided, **arguments)
    assert inside.step_seconds == pytest.approx(7 / 8 * V / 450e9)
    assert across.step_seconds == pytest.approx(7 / 8 * V / 50e9)


def test_exchanges_of_a_part_of_an_axis_take_the_time_of_that_part():
    def step_seconds(**places):
        gathered = [Collective("all_gather", ("data",), V, 1, "", "", **places)]
        mesh = {"data": 4, "model": 8}
        return roofline("v5e:4x4*2", mesh, flops=0, accessed_nbytes=0, collectives=gathered).step_seconds

    inside, between = step_seconds(places=(0, 8)), step_seconds(places=(0, 16))
    assert inside == pytest.approx(1 / 2 * V / LINK["v5e"])
    assert between == pytest.approx(1 / 2 * V / 3.125e9)
    assert step_seconds() == pytest.approx(inside + 1 / 2 * (V / 2) / 3.125e9)


def test_wrong_arguments_are_refused():
    with pytest.raises(kd.errors.ModelError, match="`dtype` must be one of 'bfloat16', 'float32', 'int8'"):
        line(dtype="float64")
    with pytest.raises(kd.errors.MeshError, match="must have all of its 16 devices"):
        roofline("v5e:4x4", {"data": 8}, flops=1, accessed_nbytes=1, collectives=[])
