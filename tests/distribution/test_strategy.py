from types import SimpleNamespace
from typing import Any

import pytest

import keras_dist as kd
from keras_dist.distribution import register_strategy
from keras_dist.errors import ConfigError, DataError, DistributionError, LayoutError
from keras_dist.jobs import job
from tests.distribution.shapes import axes_of, f32
from tests.jobs import CONTIGUOUS, INTERLEAVED, be


def pretend_to_be(monkeypatch: pytest.MonkeyPatch, count: int, index: int) -> None:
    """Let this be process `index` of a job of `count`."""
    monkeypatch.setattr(job, "process_count", lambda: count)
    monkeypatch.setattr(job, "process_index", lambda: index)


@pytest.mark.parametrize("value", [None, "data=8", (2, 4)])
def test_a_mesh_is_needed(value: Any) -> None:
    with pytest.raises(DistributionError, match=r"`device_mesh` must be a keras_dist.DeviceMesh"):
        kd.Distribution(value)


@pytest.mark.parametrize("name", ["dta", ("data", "dta"), ("data", "data"), ()])
def test_the_batch_dim_lies_on_axes_of_the_mesh(mesh: kd.DeviceMesh, name: Any) -> None:
    with pytest.raises(DistributionError, match="`batch_dim_name` must be one of"):
        kd.Distribution(mesh, name)


@pytest.mark.parametrize(
    ("mesh", "processes", "ids"),
    [
        ("data=8,model=1", CONTIGUOUS[4], [0, 1, 2, 3]),
        ("data=4,model=2", CONTIGUOUS[4], [0, 1, 2, 3]),
        ("data=2,model=4", CONTIGUOUS[4], [0, 0, 1, 1]),  # the model axis spans processes
        ("data=1,model=8", CONTIGUOUS[2], [0, 0]),
        ("data=4,model=2", INTERLEAVED[4], [0, 0, 1, 1]),  # four replicas of the model in two parts
        ("data=2,model=4", INTERLEAVED[4], [0, 0, 0, 0]),
        ("data=8,model=1", [1, 1, 1, 1, 0, 0, 0, 0], [1, 0]),
    ],
)
@pytest.mark.filterwarnings("ignore:axis 'model' of")
def test_the_part_of_the_data_that_each_process_reads(
    monkeypatch: pytest.MonkeyPatch, mesh: str, processes: list[int], ids: list[int]
) -> None:
    found = []
    for index in range(len(ids)):
        be(monkeypatch, processes, index)
        distribution = kd.ModelParallel(kd.LayoutMap(kd.DeviceMesh(mesh, devices=kd.list_devices())), "data")
        assert distribution.num_data_shards == max(ids) + 1
        found.append(distribution.data_shard_id)
    assert found == ids


def test_the_parts_of_a_batch_over_some_of_the_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    be(monkeypatch, CONTIGUOUS[4], 3)
    with pytest.warns(kd.errors.LayoutWarning):
        distribution = kd.DataParallel(kd.DeviceMesh("data=2,model=4"))
    assert (distribution.num_model_replicas, distribution.num_data_shards, distribution.data_shard_id) == (8, 2, 1)


def test_a_process_without_a_device_in_the_mesh_reads_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    be(monkeypatch, CONTIGUOUS[4], 3)
    with pytest.raises(DataError, match="process 3 owns no row"):
        _ = kd.DataParallel(devices=kd.list_devices()[:4]).data_shard_id


def test_a_strategy_of_ones_own_plans(mesh: kd.DeviceMesh) -> None:
    class LastDim(kd.Distribution):
        def get_variable_layout(self, variable: Any) -> kd.TensorLayout | None:
            return kd.TensorLayout((None, "model"), self.device_mesh) if len(variable.shape) == 2 else None

    plan = LastDim(mesh).plan({"kernel": f32(4, 8), "bias": f32(8)})
    assert axes_of(plan) == {"kernel": (None, "model"), "bias": (None,)}


@pytest.mark.parametrize("layout", [(None, "model"), "model"])
def test_a_layout_is_a_layout(mesh: kd.DeviceMesh, layout: Any) -> None:
    class Loose(kd.Distribution):
        def get_variable_layout(self, variable: Any) -> Any:
            return layout

    with pytest.raises(DistributionError, match="Loose: the layout of 'kernel' must be a TensorLayout"):
        Loose(mesh).plan({"kernel": f32(4, 8)})


def test_a_layout_of_another_mesh_cannot_be_planned(mesh: kd.DeviceMesh) -> None:
    class Elsewhere(kd.Distribution):
        def get_variable_layout(self, variable: Any) -> kd.TensorLayout:
            return kd.TensorLayout((None, "model"), kd.DeviceMesh("data=4,model=2"))

    with pytest.raises(LayoutError, match="the layout of 'kernel' belongs to a different mesh"):
        Elsewhere(mesh).plan({"kernel": f32(4, 8)})


def test_slots_may_have_layouts_of_their_own(mesh: kd.DeviceMesh) -> None:
    class SlotsApart(kd.Distribution):
        def get_variable_layout(self, variable: Any) -> None:
            return None

        def get_slot_layout(self, variable: Any) -> kd.TensorLayout:
            return kd.TensorLayout(("data",), self.device_mesh)

    plan = SlotsApart(mesh).plan({"bias": f32(8)})
    assert axes_of(plan) == {"bias": (None,)}
    assert axes_of(plan.follow({"mu": {"bias": f32(8)}})) == {"mu/bias": ("data",)}
    with pytest.raises(LayoutError, match="cannot shard dim 0 of 'bias'"):
        SlotsApart(mesh).plan({"bias": f32(7)})


def test_equal_by_value(mesh: kd.DeviceMesh) -> None:
    def build(axes: tuple = (None, "model"), **options: Any) -> kd.ModelParallel:
        rules = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
        rules["kernel"] = axes
        return kd.ModelParallel(rules, **options)

    assert build() == build()
    assert hash(build()) == hash(build())
    assert build() != build(axes=("data", None))
    assert build() != build(batch_dim_name="model")
    assert build() != build(strict=True)
    assert kd.DataParallel() == kd.DataParallel(devices=kd.list_devices())
    assert kd.DataParallel() != kd.DataParallel(shard_optimizer=True)
    assert kd.FullySharded(mesh) != kd.FullySharded(mesh, min_size_bytes=1)
    assert kd.FullySharded(kd.DeviceMesh("batch=8")) != kd.DataParallel()


@pytest.mark.parametrize("dataset", [object(), [1, 2], (batch for batch in ())])
def test_one_process_reads_the_whole_data_set(dataset: Any) -> None:
    assert kd.DataParallel().distribute_dataset(dataset) is dataset


def test_without_auto_sharding_each_process_gets_what_it_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_to_be(monkeypatch, 2, 0)
    dataset = SimpleNamespace()
    assert kd.DataParallel(auto_shard_dataset=False).distribute_dataset(dataset) is dataset


def test_data_without_a_batch_dim() -> None:
    with pytest.raises(DataError, match="data without a batch dim"):
        kd.DataParallel().get_data_layout(())


def test_names_of_strategies_are_strings_that_no_other_class_has() -> None:
    class Other(kd.DataParallel):
        pass

    with pytest.raises(ConfigError, match="'data_parallel' is the name of keras_dist") as caught:
        register_strategy("data_parallel")(Other)
    assert "keras_dist.distribution.data_parallel.DataParallel" in str(caught.value)
    with pytest.raises(ConfigError, match="`name` must be a string that is not empty"):
        register_strategy(3)  # type: ignore[arg-type]
    assert register_strategy("data_parallel")(kd.DataParallel) is kd.DataParallel  # as a reloaded module does


@pytest.mark.parametrize(
    ("make", "name", "right"), [(kd.FullySharded, "layout_map", "rules"), (kd.ModelParallel, "rules", "layout_map")]
)
def test_an_unknown_argument_names_the_right_one(mesh: kd.DeviceMesh, make: Any, name: str, right: str) -> None:
    with pytest.raises(TypeError, match=rf"`{make.__name__}` has no argument '{name}' \(did you mean '{right}'\?\)"):
        make(mesh, **{name: {}})
