"""The state of a model comes back on whatever mesh, or nothing of it is changed."""

from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.checkpoint import CheckpointManager, Snapshot
from keras_dist.errors import CheckpointError, ModelError
from keras_dist.formats import model_state
from keras_dist.formats.model_state import names_of
from tests.layouts import on
from tests.soak import LARGE, crossed, often

MESHES = ["one device", "data=2,model=4", "data=4,model=2", *["data=8,model=1"] * LARGE]
PAIRS = crossed(MESHES, MESHES[1:] + MESHES[:1]) if LARGE else [(MESHES[1], MESHES[0]), (MESHES[0], MESHES[2])]
X = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(16, 4)).astype(np.float32)


def network(mesh="one device", units=16, names=("d1", "d2"), optimizer="adam"):
    with on(mesh, {f"{names[0]}/kernel": (None, "model"), f"{names[1]}/kernel": ("model", None)}).scope():
        layers = [kd.Input((8,)), kd.layers.Dense(units, name=names[0]), kd.layers.BatchNormalization(name="norm")]
        model = kd.Sequential([*layers, kd.layers.Dropout(0.5, name="drop"), kd.layers.Dense(4, name=names[1])])
        model.compile(optimizer, loss="mse")
    return model


def values_of(model):
    """All of a model's state, on the host."""
    snapshot = model.snapshot()
    return {name: np.array(value) for name, value in snapshot.arrays.items()}


def same(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A state for each mesh, and its values."""
    found = {}
    for mesh in {source for source, _ in PAIRS}:
        model = network(mesh)
        model.fit(X, Y, batch_size=8, epochs=1, verbose=0)
        directory = tmp_path_factory.mktemp("states")
        with CheckpointManager(model, directory) as manager:
            manager.save()
        found[mesh] = directory, values_of(model), model.predict(X, verbose=0)
    return found


@pytest.fixture(scope="module")
def targets():
    """A model on each mesh."""
    return {mesh: network(mesh) for mesh in {target for _, target in PAIRS}}


@pytest.mark.first_cases(1)
@often
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_values_are_equal_and_layouts_are_those_of_the_new_mesh(saved, targets, source, target):
    directory, values, predictions = saved[source]
    model = targets[target]
    assert not same(values_of(model), values)
    with CheckpointManager(model, directory) as manager:
        assert manager.restore_or_initialize() is not None
    assert same(values_of(model), values)
    built = model._with_weights()
    shardings = jax.tree.leaves(built.cell.state_plan.shardings)
    for name, array, sharding in zip(names_of(built), built.cell.arrays, shardings, strict=True):
        assert array.sharding.is_equivalent_to(sharding, array.ndim), name
        assert array.sharding.shard_shape(array.shape) == array.addressable_shards[0].data.shape
    kernel = built.cell.state_plan.row("d1/kernel")
    assert kernel.axes == ((None, "model") if target != "one device" else (None, None))
    np.testing.assert_allclose(model.predict(X, verbose=0), predictions, rtol=1e-5, atol=1e-6)


def test_training_goes_on_as_if_nothing_had_been(tmp_path):
    first = network("data=2,model=4")
    first.train_on_batch(X, Y)
    with (
        CheckpointManager(first, tmp_path / "at once") as manager,
        CheckpointManager(first, tmp_path / "meanwhile", asynchronous=True) as asynchronous,
    ):
        manager.save()
        asynchronous.save()
        first.train_on_batch(X, Y)  # consumes the arrays while they are written
        first.train_on_batch(X, Y)
    second = network("data=2,model=4")
    for place in ("at once", "meanwhile"):
        with CheckpointManager(second, tmp_path / place) as manager:
            manager.restore_or_initialize()
        second.train_on_batch(X, Y)
        second.train_on_batch(X, Y)
        assert same(values_of(first), values_of(second))


def test_another_architecture_is_told_in_full_and_stays_as_it_was(saved):
    directory, values, _ = saved["data=2,model=4"]
    model = network("data=8,model=1", units=24, names=("d1", "head"), optimizer="sgd")
    before = values_of(model)
    with CheckpointManager(model, directory) as manager, pytest.raises(CheckpointError, match="does not fit") as raised:
        manager.restore_or_initialize()
    assert {
        "of another shape or type: variables/d1/kernel is (8, 16) float32, in the model (8, 24) float32",
        "missing in the checkpoint: variables/head/kernel",
        "not in the model: variables/d2/bias",
        "not in the model: optimizers/optimizer/inner/slots/0/nu/d2/bias",
    } <= {*raised.value.problems}
    wrong = {
        *(before.keys() ^ values.keys()),
        *(name for name in before.keys() & values.keys() if before[name].shape != values[name].shape),
    }
    assert len(raised.value.problems) == len(wrong)
    assert all(any(name in problem for problem in raised.value.problems) for name in wrong)
    assert same(values_of(model), before)


def test_another_element_type_is_told(saved, targets):
    directory, _, _ = saved["one device"]
    stored = CheckpointManager(targets["one device"], directory)
    found = stored.newest()
    stored.close()
    found.record["arrays"]["variables/d1/bias"]["dtype"] = "bfloat16"
    with pytest.raises(CheckpointError) as raised:
        targets["one device"].restore(found)
    assert raised.value.problems == (
        "of another shape or type: variables/d1/bias is (16,) bfloat16, in the model (16,) float32",
    )


@pytest.mark.parametrize(("is_large", "failing"), [(False, 1), (True, 1), (True, 3)])
def test_after_arrays_that_could_not_be_read_another_try_gives_all(saved, targets, monkeypatch, is_large, failing):
    directory, values, _ = saved["data=2,model=4"]
    model = targets["data=4,model=2"]
    model.train_on_batch(X, Y)
    before = values_of(model)
    with CheckpointManager(model, directory) as manager:
        stored = manager.newest()
    read, parts = stored.arrays, []

    def fails(wanted):
        parts.append(wanted)
        if len(parts) == failing:
            raise CheckpointError("the arrays cannot be read")
        return read(wanted)

    if is_large:
        monkeypatch.setattr(model_state, "_PART_BYTES", 0)
    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="cannot be read"):
        patch.setattr(stored, "arrays", fails)
        model.restore(stored)
    if failing == 1:  # nothing was given up for what never came
        assert same(values_of(model), before)
        model.train_on_batch(X, Y)
    else:
        with pytest.raises(RuntimeError, match="has been deleted"):
            values_of(model)
    model.restore(stored)
    assert same(values_of(model), values)
    model.train_on_batch(X, Y)


def test_arrays_of_large_models_make_room_before_others_are_read(saved, targets, monkeypatch):
    monkeypatch.setattr(model_state, "_PART_BYTES", 0)
    directory, _, _ = saved["data=2,model=4"]
    model = targets["data=4,model=2"]
    cell = model._with_weights().cell
    old = dict(zip(names_of(model._with_weights()), cell.arrays, strict=True))
    with CheckpointManager(model, directory) as manager:
        stored = manager.newest()
    read, parts = stored.arrays, []

    def look(wanted):
        assert all(old[name].is_deleted() == bool(parts) for name in wanted)
        parts.append(wanted)
        return read(wanted)

    with monkeypatch.context() as patch:
        patch.setattr(stored, "arrays", look)
        model.restore(stored)
    assert len(parts) >= 8
    assert sorted(name for part in parts for name in part) == sorted(old)


class Doing(kd.callbacks.Callback):
    """Does something when the training begins, or after its first batch."""

    def __init__(self, begin=None, batch=None):
        super().__init__()
        self.begin, self.batch = begin, batch

    def on_train_begin(self, logs=None):
        if self.begin is not None:
            self.begin()

    def on_train_batch_end(self, batch, logs=None):
        if batch == 0 and self.batch is not None:
            self.batch()


def test_other_metrics_are_refused_before_any_array_is_changed(tmp_path):
    model, again = network(optimizer="sgd"), network(optimizer="sgd")
    model.compile("sgd", loss="mse", metrics=["mae", "mse"])
    with CheckpointManager(model, tmp_path) as manager:
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=Doing(batch=manager.save))
        stored = manager.newest()
    before = values_of(again)
    restore = Doing(begin=lambda: again.restore(stored, continue_training=True))
    for metrics in (["mae"], ["mae", "mape"], None):
        again.compile("sgd", loss="mse", metrics=metrics)
        with pytest.raises(ModelError, match="loss and metrics differ from the interrupted training") as raised:
            again.fit(X, Y, batch_size=4, verbose=0, callbacks=restore)
        assert raised.value.given != raised.value.expected
        assert same(values_of(again), before)
        assert not any(array.is_deleted() for array in again._with_weights().cell.arrays)


def test_trainings_in_other_threads_wait_until_a_save_has_copied_the_arrays(targets, tmp_path, monkeypatch):
    model = targets["one device"]
    cell, begin, was_free = model._with_weights().cell, Snapshot.begin, []

    def begin_and_look(snapshot, place):
        with ThreadPoolExecutor(1) as other_thread:
            was_free.append(other_thread.submit(cell.lock.acquire, blocking=False).result())
        return begin(snapshot, place)

    monkeypatch.setattr(Snapshot, "begin", begin_and_look)
    model.save(tmp_path / "saved")
    assert was_free == [False]
    assert cell.lock.acquire(blocking=False)
    cell.lock.release()
