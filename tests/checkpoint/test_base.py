"""Arrays that training does not change are kept once, beside the states that share them."""

import contextlib
import dataclasses
import json
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.checkpoint import CheckpointManager, Stored, examine, manifest
from keras_dist.checkpoint.snapshot import bases_in
from keras_dist.checkpoint.unchanged_arrays import SHARED_BYTES, fingerprints
from keras_dist.errors import CheckpointError, CheckpointWarning
from tests.checkpoint.buckets import BUCKET, bucket_in
from tests.checkpoint.conftest import Held, flip

SIZE = SHARED_BYTES // 4
UNTRAINED = frozenset({"variables/a", "variables/b", "variables/moving", "variables/small"})


class Frozen(Held):
    """Two frozen arrays, one that is trained, one that moves without being trained, and a small one."""

    def __init__(self, step=0):
        super().__init__(step)
        self.arrays = {f"variables/{name}": np.full(SIZE, index, np.float32) for index, name in enumerate("abc")}
        self.arrays["variables/small"] = np.zeros(8, np.float32)
        self.untrained = UNTRAINED
        self.read = {}

    def snapshot(self):
        for name in ("variables/c", "variables/moving"):
            self.arrays[name] = np.full(SIZE, self.step, np.float32)
        return dataclasses.replace(super().snapshot(), untrained=self.untrained)

    def restore(self, stored):
        found = values_of(stored)
        self.read = {name: float(found[f"variables/{name}"][0]) for name in "abc"}
        self.step = stored.step


def values_of(stored):
    noted = stored.record["arrays"].items()
    return stored.arrays({name: jax.ShapeDtypeStruct(one["shape"], np.float32) for name, one in noted})


def names(directory):
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))


def manager_of(held, directory, **arguments):
    return CheckpointManager(held, directory, **{"keep": 2, "share_frozen": True, **arguments})


def save(directory, *steps, held=None, change=(), **arguments):
    """Save states of these steps; before those in `change` a frozen array changes."""
    held = held or Frozen()
    with manager_of(held, directory, **arguments) as manager:
        manager.newest()
        manager.note_frozen()
        for held.step in steps:
            if held.step in change:
                held.arrays["variables/a"] = np.full(SIZE, 100 + held.step, np.float32)
            manager.save()
    return held


def read(directory):
    with manager_of(Frozen(), directory) as manager:
        manager.restore_or_initialize()
        return manager._model.read


@pytest.mark.parametrize("asynchronous", [False, True])
def test_they_are_written_once(directory, asynchronous):
    save(directory, 1, 2, 3, asynchronous=asynchronous)
    assert names(directory) == ["base_00000001", "step_00000002", "step_00000003"]
    assert read(directory) == {"a": 0.0, "b": 1.0, "c": 3.0}
    stored = Stored(directory / "step_00000002")
    assert [*stored.bases] == ["base_00000001"]
    assert stored.bases["base_00000001"].keys() == {"variables/a", "variables/b"}
    assert stored.arrays_below("variables/").keys() == {"a", "b", "c", "moving", "small"}
    save(directory, 4, 5, asynchronous=asynchronous)  # started again
    assert names(directory) == ["base_00000001", "step_00000004", "step_00000005"]


def test_what_has_changed_is_written_anew_and_older_states_keep_theirs(directory):
    held = Frozen()
    save(directory, 1, 2, 3, held=held, change=[3])
    assert Stored(directory / "step_00000003").bases["base_00000001"].keys() == {"variables/b"}
    old, new = (values_of(Stored(directory / f"step_{step:08d}"))["variables/a"][0] for step in (2, 3))
    assert (old, new) == (0.0, 103.0)
    save(directory, 4, 5, held=held)
    assert names(directory) == ["base_00000001", "base_00000004", "step_00000004", "step_00000005"]
    assert {name: [*arrays] for name, arrays in Stored(directory / "step_00000005").bases.items()} == {
        "base_00000001": ["variables/b"],
        "base_00000004": ["variables/a"],
    }
    assert read(directory) == {"a": 103.0, "b": 1.0, "c": 5.0}
    held.arrays["variables/b"] = np.full(SIZE, 7, np.float32)
    save(directory, 6, 7, held=held)
    assert names(directory) == ["base_00000004", "base_00000006", "step_00000006", "step_00000007"]


def test_a_base_of_the_same_step_gets_another_name(directory):
    held = save(directory, 1)
    held.arrays["variables/a"] = np.full(SIZE, 101, np.float32)
    save(directory, 1, held=held)
    assert names(directory) == ["base_00000001", "base_00000001_", "step_00000001"]
    assert read(directory)["a"] == 101.0


def test_without_a_note_two_saves_tell_what_is_frozen(directory):
    held = Frozen()
    with manager_of(held, directory, keep=None) as manager:
        for held.step in (1, 2, 3):
            manager.save()
    assert [bool(Stored(directory / f"step_0000000{step}").bases) for step in (1, 2, 3)] == [False, True, True]
    assert [name for name in names(directory) if "base" in name] == ["base_00000002"]


def test_what_is_trained_again_is_with_each_state(directory):
    held = save(directory, 1)
    held.untrained = frozenset({"variables/b"})
    save(directory, 2, held=held)
    assert names(directory) == ["base_00000001", "step_00000001", "step_00000002"]
    assert Stored(directory / "step_00000002").bases["base_00000001"].keys() == {"variables/b"}
    held.untrained = frozenset()
    with manager_of(held, directory, keep=1) as manager:
        manager.newest()
        held.step = 3
        manager.save()
        assert names(directory) == ["step_00000003"]  # nobody needs the base
        held.step, held.untrained = 4, UNTRAINED
        manager.note_frozen()
        manager.save()
    assert names(directory) == ["base_00000004", "step_00000004"]
    assert read(directory) == {"a": 0.0, "b": 1.0, "c": 4.0}


def largest_file(folder):
    return max(
        (path for path in (folder / "arrays").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )


def test_a_damaged_base_damages_its_states_alone(directory):
    save(directory, 1)
    with manager_of(Frozen(2), directory) as manager:  # which has looked at no state, and writes a base of its own
        manager.note_frozen()
        manager.save()
    flip(largest_file(directory / "base_00000002"), 20)
    with pytest.raises(CheckpointError, match=r"base_00000002: .* has other bytes than were written"):
        Stored(directory / "step_00000002")
    found = examine(directory)
    assert not found.is_good
    assert [state.is_good for state in found.states] == [True, False]
    assert "damaged: step_00000002: base_00000002: " in str(found)
    with pytest.warns(CheckpointWarning, match="step_00000002 is skipped"):
        assert read(directory) == {"a": 0.0, "b": 1.0, "c": 1.0}
    with pytest.warns(CheckpointWarning):
        save(directory, 3)  # with the base of the good one
    assert names(directory) == ["base_00000001", "base_00000002", "step_00000001", "step_00000002", "step_00000003"]


def other():
    held = Frozen()
    held.arrays["variables/a"] = np.full(SIZE, 9, np.float32)
    return held


@pytest.mark.parametrize(
    "harm",
    [
        lambda directory: shutil.rmtree(directory / "base_00000001"),
        lambda directory: (directory / "base_00000001" / "manifest.json").unlink(),
        lambda directory: (shutil.rmtree(directory / "base_00000001"), (directory / "base_00000001").touch()),
        lambda directory: (
            save(directory.parent / "other", 1, held=other()),
            shutil.rmtree(directory / "base_00000001"),
            shutil.copytree(directory.parent / "other" / "base_00000001", directory / "base_00000001"),
        ),
    ],
    ids=["gone", "without manifest", "a file", "another one"],
)
def test_a_base_that_is_not_there(directory, harm):
    save(directory, 1, 2)
    harm(directory)
    with pytest.raises(CheckpointError, match="base_00000001") as caught, pytest.warns(CheckpointWarning):
        read(directory)
    assert len(caught.value.problems) == 2
    assert not examine(directory).is_good


def rewrite(folder, document, content):
    (folder / f"{document}.json").write_text(content)
    (folder / "manifest.json").unlink()
    manifest.write_manifest(folder)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        "[" * 10**5,
        '{"../base_00000001": {}}',
        '{"/base_00000001": {}}',
        '{"step_00000001": {}}',
        '{"base_00000001": []}',
        '{"base_00000001": {"variables/a": 3}}',
        '{"base_00000001": {"variables/a": "float32[16384] 0000000000000000"}}',
        '{"base_00000001": {}, "base_00000002": {}}',
        '{"base_00000001": {"variables/z": "0"}}',
    ],
)
def test_a_forged_document_is_an_error_of_ours(directory, content):
    save(directory, 1)
    rewrite(directory / "step_00000001", "bases", content)
    with pytest.raises(CheckpointError, match="base"):
        Stored(directory / "step_00000001")
    assert not examine(directory).is_good


def test_a_base_that_names_itself(directory):
    save(directory, 1)
    base = directory / "base_00000001"
    shutil.copy(directory / "step_00000001" / "bases.json", base / "bases.json")
    (base / "manifest.json").unlink()
    manifest.write_manifest(base)
    assert read(directory) == {"a": 0.0, "b": 1.0, "c": 1.0}


def test_a_base_is_kept_while_a_state_that_cannot_be_read_may_need_it(directory):
    save(directory, 1, 2)
    (directory / "step_00000002" / "bases.json").write_text("{")
    held = other()
    held.arrays["variables/b"] = held.arrays["variables/a"]
    with pytest.warns(CheckpointWarning, match="skipped"):
        save(directory, 3, 4, 5, held=held)
    assert names(directory)[:2] == ["base_00000001", "base_00000003"]


def test_one_that_was_put_aside_keeps_its_base(directory):
    save(directory, 1)
    flip(directory / "step_00000001" / "record.json", 5)
    with pytest.warns(CheckpointWarning, match="damaged"), manager_of(Frozen(1), directory, keep=1) as manager:
        manager.note_frozen()
        manager.save()
    assert names(directory) == ["base_00000001", "base_00000001_", "step_00000001", "step_00000001.damaged"]


def test_delete_leaves_nothing(directory):
    save(directory, 1, 2, 3, change=[2])
    manager = manager_of(Frozen(), directory)
    manager.delete()
    assert not directory.exists()


def test_without_a_limit_bases_that_nobody_needs_go_too(directory):
    held = save(directory, 1, keep=None)
    held.untrained = frozenset()
    save(directory, 1, held=held, keep=None)
    assert names(directory) == ["step_00000001"]


def test_a_kill_at_any_time_leaves_a_whole_state(directory, tmp_path, monkeypatch):
    """Before each change of a name, each deletion and each manifest the directory is kept as a kill would leave it."""
    left, saved = [], []

    def before(function):
        def call(*arguments, **keywords):
            copy = tmp_path / f"killed {len(left)}"
            if directory.exists():
                copytree(directory, copy)
                left.append((copy, list(saved)))
            return function(*arguments, **keywords)

        return call

    def copytree(source, target):
        shutil.copytree(source, target, symlinks=True, ignore=lambda folder, found: [n for n in found if ".lock" in n])

    held = Frozen()
    with monkeypatch.context() as patch, manager_of(held, directory, keep=1) as manager:
        patch.setattr(os, "rename", before(os.rename))
        patch.setattr(shutil, "rmtree", before(shutil.rmtree))
        patch.setattr("keras_dist.checkpoint.folder.write_manifest", before(manifest.write_manifest))
        manager.note_frozen()
        for held.step, value in ((1, 0), (2, 5), (3, 5), (3, 6), (4, 6)):
            held.arrays["variables/a"] = np.full(SIZE, value, np.float32)
            saved.append((held.step, float(value)))
            manager.save()
    assert [path.name for path in bases_in(directory)] != []
    assert len(left) > 20
    for copy, before_it in left:
        held = Frozen()
        told = pytest.warns(CheckpointWarning) if _is_left_over(copy) else contextlib.nullcontext()
        with told, manager_of(held, copy, keep=1) as manager:
            assert manager.restore_or_initialize() is not None or len(before_it) == 1
            if held.read:  # the last one that was saved, or the one before
                assert (held.step, held.read["a"]) in before_it[-2:]
                held.arrays["variables/a"] = np.full(SIZE, held.read["a"], np.float32)
            held.step += 1
            manager.save()
        state, needed = names(copy)[-1], Stored(copy / names(copy)[-1]).bases
        assert state == f"step_{held.step:08d}"
        assert names(copy) == [*sorted(needed), state]
        assert read(copy)["b"] == 1.0


def _is_left_over(copy):
    return any(path.name.startswith(".") and "lock" not in path.name for path in copy.iterdir())


def test_in_a_bucket(tmp_path, monkeypatch):
    with bucket_in(tmp_path / "objects", monkeypatch) as bucket:
        states = f"{BUCKET}/runs/states"
        local = bucket.root / states.removeprefix("gs://")

        def there():
            return sorted(path.parent.name for path in local.glob("*/manifest.json"))

        held = save(states, 1, 2, 3, change=[2])
        assert there() == ["base_00000001", "base_00000003", "step_00000002", "step_00000003"]
        assert read(states) == {"a": 102.0, "b": 1.0, "c": 3.0}
        assert examine(states).is_good
        shutil.copytree(local / "base_00000003", local / "base_00000004")
        (local / "base_00000004" / "manifest.json").unlink()  # as a kill leaves it
        with pytest.warns(CheckpointWarning, match="base_00000004: left by a process that was killed"):
            save(states, 4, held=held)
        held.arrays["variables/b"] = held.arrays["variables/a"]
        save(states, 5, 6, held=held)
        assert there() == ["base_00000003", "base_00000005", "step_00000005", "step_00000006"]


def test_the_doctor_tells_of_them(directory):
    save(directory, 1, 2, 3, change=[2])
    shutil.copytree(directory / "base_00000001", directory / "base_00000007")
    found = examine(directory)
    assert found.is_good
    assert [(state.name, state.bases) for state in found.states] == [
        ("step_00000002", ("base_00000001",)),
        ("step_00000003", ("base_00000001", "base_00000003")),
    ]
    text = str(found)
    assert "base: base_00000001: 2: 128.0 KiB, good; arrays of step_00000002, step_00000003" in text
    assert "base: base_00000003: 1: 64.0 KiB, good; arrays of step_00000003" in text
    assert "base: base_00000007: 2: 128.0 KiB, good; no state needs it; the next save deletes it" in text
    assert json.loads(json.dumps(found.to_dict()))["bases"][0]["name"] == "base_00000001"
    assert [base.name for base in examine(directory / "step_00000002").bases] == ["base_00000001"]
    assert examine(directory / "base_00000003").is_good
    assert (
        sum(array.nbytes for array in found.states[0].arrays) == 4 * SHARED_BYTES + 32
    )  # of the state as it is restored


def test_the_doctor_reads_states_of_weights_alone(directory):
    model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
    model.compile("adam", "mse")
    saves = kd.callbacks.OrbaxCheckpoint(directory, save_weights_only=True)
    model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0, callbacks=[saves])
    found = examine(directory)
    assert found.is_good
    assert [array.name for array in found.states[0].arrays] == [
        f"variables/{weight.path}" for weight in sorted(model.weights, key=lambda weight: weight.path)
    ]


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "float8_e4m3fn", "int4"])
def test_fingerprints_see_each_element_and_no_mesh(dtype):
    values = jnp.asarray(np.random.default_rng(0).integers(0, 2, (8, 6)), dtype)
    expected = fingerprints({"a": values})["a"]
    devices = np.array(jax.devices()[:8]).reshape(4, 2)
    mesh = jax.sharding.Mesh(devices, ("x", "y"))
    for spec in (("x", "y"), (None, "y"), ("y",), (("x", "y"),)):
        placed = jax.device_put(values, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)))
        assert fingerprints({"a": placed})["a"] == expected
    host = np.asarray(values)
    assert fingerprints({"a": host})["a"] == expected
    found = {expected}
    for place in np.ndindex(values.shape):
        changed = host.copy()
        changed[place] = host.dtype.type(1) if not host[place] else host.dtype.type(0)
        found.add(fingerprints({"a": changed})["a"])
    assert len(found) == 1 + values.size
    assert expected.startswith(f"{dtype}[8, 6] ")


def test_fingerprints_of_permutations_and_signs_differ():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    others = [values.T.copy(), values[::-1].copy(), values[:, ::-1].copy(), values.reshape(3, 2), values * -1]
    found = {fingerprints({"a": one})["a"] for one in (values, *others, values.astype(np.int32))}
    assert len(found) == len(others) + 2
    assert fingerprints({"a": np.zeros((0, 3), np.float32), "b": np.float32(3)}).keys() == {"a", "b"}
