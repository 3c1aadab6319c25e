"""Checkpoints at `gs://bucket/folder`, where nothing is locked or renamed."""

import sys

import numpy as np
import pytest
from etils.epath import backend, gpath

import keras_dist as kd
from keras_dist.checkpoint import CheckpointManager
from keras_dist.errors import CheckpointError, CheckpointWarning, MissingExtraError, ModelError
from tests.checkpoint.buckets import BUCKET, bucket_in
from tests.checkpoint.conftest import Held, flip

STATES = f"{BUCKET}/runs/states"


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with bucket_in(tmp_path / "objects", monkeypatch) as bucket:
        yield bucket
    assert {path.name for path in tmp_path.iterdir()} <= {"objects"}  # nothing has gone to a folder named `gs:`


def save(*steps, **arguments):
    held = Held()
    with CheckpointManager(held, STATES, **{"keep": None, **arguments}) as manager:
        for held.step in steps:
            manager.save()
    return [f"{STATES}/step_{step:08d}" for step in steps]


def local(bucket, path):
    return bucket.root / path.removeprefix("gs://")


def test_states_are_saved_pruned_and_restored(bucket):
    save(1, 2, 10, 11, 12, keep=1, keep_every=10, asynchronous=True, fsync=True)
    assert bucket.written.count("manifest.json") == 5 and bucket.moved == []
    held = Held()
    with CheckpointManager(held, STATES) as manager:
        assert manager.steps == [10, 12]
        assert manager.latest_checkpoint == f"{STATES}/step_00000012"
        assert manager.restore_or_initialize() == manager.latest_checkpoint
        (kernel,) = manager.newest().arrays_below("variables/").values()
        np.testing.assert_array_equal(kernel, held.arrays["variables/d1/kernel"])
        manager.delete()
    assert not any(path.is_file() for path in bucket.root.rglob("*"))


def test_nothing_to_restore(bucket):
    with CheckpointManager(Held(), STATES) as manager:
        assert manager.restore_or_initialize() is None and manager.checkpoints == []


def test_the_manifest_comes_last_and_without_it_there_is_no_state(bucket, monkeypatch):
    save(1)
    assert bucket.written[-1] == "manifest.json"
    opens = type(bucket)._open

    def killed(self, path, mode="rb", **options):
        if "w" in mode and path.endswith("manifest.json"):
            raise KeyboardInterrupt
        return opens(self, path, mode, **options)

    monkeypatch.setattr(type(bucket), "_open", killed)
    monkeypatch.setattr("keras_dist.checkpoint.folder.BucketDraft.abandon", lambda draft: None)  # nor this
    with pytest.raises(CheckpointError, match="was not written"):
        save(2)
    monkeypatch.setattr(type(bucket), "_open", opens)
    half = local(bucket, f"{STATES}/step_00000002")
    assert (half / "record.json").exists() and (half / "arrays").exists()
    with (
        pytest.warns(CheckpointWarning, match="step_00000002: left by a process that was killed; removed"),
        CheckpointManager(Held(), STATES) as manager,
    ):
        assert manager.steps == [1]
    assert not (half / "record.json").exists()


def test_a_save_that_fails_leaves_nothing_but_the_states_before(bucket, monkeypatch):
    def fail(*arguments):
        raise OSError("the bucket is gone")

    save(1)
    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="the bucket is gone"):
        patch.setattr("keras_dist.checkpoint.folder.write_manifest", fail)
        save(2)
    with CheckpointManager(Held(), STATES) as manager:
        assert manager.steps == [1]


def test_damage_is_seen_and_passed_over_and_put_aside_when_its_step_is_saved_again(bucket):
    first, second = save(1, 2)
    flip(local(bucket, second) / "record.json", 20)
    held = Held(2)
    with CheckpointManager(held, STATES) as manager:
        with pytest.warns(CheckpointWarning, match="record.json has other bytes"):
            assert manager.restore_or_initialize() == first
        with pytest.warns(CheckpointWarning, match=r"is kept as step_00000002\.damaged"):
            assert manager.save() == second
        assert manager.newest().step == 2
    assert (local(bucket, f"{second}.damaged") / "record.json").exists()


def test_what_other_processes_have_written_meanwhile_is_seen(bucket):
    held = Held(5)
    with CheckpointManager(held, STATES) as manager:
        manager.save()
        assert manager.steps == [5]
        place = local(bucket, STATES)
        (place / "step_00000005").rename(place / "step_00000004")
        assert manager.steps == [4]


def test_a_folder_of_other_things_is_not_deleted(bucket):
    place = local(bucket, f"{STATES}/step_00000001")
    place.mkdir(parents=True)
    (place / "notes.txt").write_text("mine")
    (place / "manifest.json").write_text("{}")
    with CheckpointManager(Held(1), f"{BUCKET}/other") as manager:
        manager.directory = manager.directory.parent / "runs" / "states"
        manager._put_aside = lambda step: None
        with pytest.raises(CheckpointError, match="folder of other things"):
            manager.save()
    assert (place / "notes.txt").exists()


@pytest.mark.parametrize("place", ["s3://bucket/states", "gs:/bucket/states", "memory://states"])
def test_other_storage_is_refused_and_no_folder_is_made_of_its_name(bucket, place):
    with pytest.raises(CheckpointError, match="cannot hold checkpoints") as raised:
        CheckpointManager(Held(), place)
    assert "gs://bucket/folder" in raised.value.fix


def test_the_package_that_reaches_buckets_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(gpath, "_is_tf_installed", lambda: False)
    monkeypatch.setattr(backend, "fsspec_backend", type(backend.fsspec_backend)())  # which has opened no bucket yet
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    for call in (lambda: CheckpointManager(Held(), STATES), lambda: kd.models.load_model(STATES)):
        with pytest.raises(MissingExtraError, match="needs the package gcsfs") as raised:
            call()
        assert raised.value.fix == "pip install gcsfs"


X, Y = np.ones((8, 3), np.float32), np.ones((8, 2), np.float32)


@pytest.fixture
def model():
    kd.random.set_random_seed(0)
    model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(2)])
    model.compile("sgd", loss="mse")
    return model


def test_a_training_goes_on_from_a_bucket(bucket, model):
    def backup():
        return kd.callbacks.BackupAndRestore(f"{BUCKET}/backup", save_freq=1, delete_checkpoint=False)

    def stop(batch, logs):
        if batch == 1:
            raise KeyError("the end")

    with pytest.raises(KeyError, match="the end"):
        model.fit(X, Y, 2, verbose=0, callbacks=[kd.callbacks.LambdaCallback(on_train_batch_end=stop), backup()])
    kernel = model.get_weights()[0]
    model.set_weights([0 * value for value in model.get_weights()])
    seen = []
    look = kd.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: seen.append(batch))
    model.fit(X, Y, 2, verbose=0, callbacks=[look, backup()])
    assert seen == [1, 2, 3] and not np.array_equal(kernel, model.get_weights()[0])
    found = kd.checkpoint.examine(f"{BUCKET}/backup")
    assert found.is_good and [state.step for state in found.states] == [3, 4] and "step_00000004" in str(found)


def test_models_and_folders_of_weights(bucket, model):
    place = f"{BUCKET}/models/digits"
    for _ in range(2):
        model.save(place)
    with pytest.raises(CheckpointError, match="exists"):
        model.save(place, overwrite=False)
    loaded = kd.models.load_model(place)
    np.testing.assert_equal(loaded.get_weights(), model.get_weights())
    best = kd.callbacks.ModelCheckpoint(f"{BUCKET}/{{epoch}}.orbax", save_weights_only=True)
    model.fit(X, Y, 4, 2, verbose=0, callbacks=[best])
    assert loaded.load_weights(f"{BUCKET}/2.orbax").missing == ()
    np.testing.assert_equal(loaded.get_weights(), model.get_weights())
    with pytest.raises(ModelError, match="a file of weights in a bucket") as raised:
        model.save_weights(f"{BUCKET}/all.safetensors")
    assert "gs://bucket/all.orbax" in raised.value.fix
