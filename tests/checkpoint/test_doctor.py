"""What is told of a directory of checkpoints, without devices, arrays or changes."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.checkpoint import CheckpointManager, examine
from keras_dist.errors import CheckpointError
from tests import commands
from tests.checkpoint.conftest import Held, flip, snapshot_of
from tests.contracts.processes import run_python

KERNEL = np.zeros((4, 8), np.float32)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The states of a training after 3 and 6 of its batches, of which an epoch has 4."""
    directory = tmp_path_factory.mktemp("trained")
    rules = kd.LayoutMap(kd.DeviceMesh((2, 4), ("data", "model")))
    rules["d1/kernel"] = (None, "model")
    with kd.ModelParallel(rules, batch_dim_name="data").scope():
        model = kd.Sequential([kd.Input((8,)), kd.layers.Dense(16, name="d1"), kd.layers.Dense(4, name="d2")])
        model.compile("adam", loss="mse")
        backup = kd.callbacks.BackupAndRestore(directory, save_freq=3, delete_checkpoint=False)
        model.fit(np.ones((32, 8)), np.ones((32, 4)), batch_size=8, epochs=2, verbose=0, callbacks=[backup])
    return directory


NESTED = b"[" * 10**5


def listing(directory):
    return sorted((path.relative_to(directory).as_posix(), path.stat().st_mtime_ns) for path in directory.rglob("*"))


def test_says_what_a_training_holds(trained):
    found = examine(trained)
    assert found.is_good
    assert [(state.step, state.epoch, state.batch) for state in found.states] == [(3, 0, 3), (6, 1, 2)]
    state = found.states[-1]
    assert state.documents == ("model", "training")
    assert state.written is not None
    assert state.versions["keras_dist"] == "0.1.0"
    assert state.mesh == {"data": 2, "model": 4}
    parameters = 8 * 16 + 16 + 16 * 4 + 4
    assert sum(array.nbytes for array in state.arrays if array.kind == "variables") == 4 * parameters
    slots = {array.name for array in state.arrays if array.kind == "optimizers"}
    assert "optimizers/optimizer/inner/slots/0/mu/d1/kernel" in slots
    assert [array.nbytes for array in state.arrays if array.kind == "training"] == [4, 4]
    # three quarters of a kernel and its two slots
    assert state.rules == {"d1/kernel": 3 * 8 * 16 * 4 * 3 // 4}


def test_the_table_names_all_of_it(trained, capsys):
    assert commands.run("doctor", trained) == 0
    text = capsys.readouterr().out
    for part in ("step_00000003", "1, 2", "good", "jax 0.", "mesh {data: 2, model: 4}", "d1/kernel (1.1 KiB)"):
        assert part in text
    assert len(text.splitlines()) < 15


def test_one_folder_is_a_state_of_its_own(trained, capsys):
    assert commands.run("doctor", trained / "step_00000006") == 0
    text = capsys.readouterr().out
    assert "step_00000006" in text
    assert "step_00000003" not in text


def test_each_damaged_file_is_named(write, directory, capsys):
    first, second, third = write(1, 2, 3)
    flip(first / "model.json")
    (second / "arrays" / "_METADATA").unlink()
    assert commands.run("doctor", directory) == 1
    text = capsys.readouterr().out
    assert "damaged: step_00000001: model.json has other bytes than were written" in text
    assert "damaged: step_00000002: arrays/_METADATA is missing" in text
    assert [state.is_good for state in examine(directory).states] == [False, False, True]
    assert examine(third).is_good


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1}', b"\xff", NESTED, None], ids=range(7))
def test_a_record_that_cannot_be_read_is_told(write, directory, content, capsys):
    (path,) = write(1)
    (path / "record.json").unlink() if content is None else (path / "record.json").write_bytes(content)
    assert commands.run("doctor", directory) == 1
    assert "record.json" in capsys.readouterr().out


def test_a_record_of_another_form_is_told(directory):
    snapshot = snapshot_of({"variables/k": KERNEL})
    broken = dataclasses.replace(snapshot, documents={"record": {"format": 1}})
    broken.begin(directory / "step_00000001")()
    later = dataclasses.replace(snapshot, documents={"record": {"format": 2}})
    later.begin(directory / "step_00000002")()
    shapeless = {**snapshot._record(), "arrays": {"variables/k": {"shape": [None, 8], "dtype": "float32"}}}
    dataclasses.replace(snapshot, documents={"record": shapeless}).begin(directory / "step_00000003")()
    problems = [state.problems for state in examine(directory).states]
    assert problems[0] == ("record.json cannot be read: KeyError: 'plan'",)
    assert problems[1] == ("record.json has the format 2, which is not known",)
    assert problems[2][0].startswith("record.json cannot be read: ValueError")


def test_a_state_without_manifest_and_a_file_in_its_place(write, directory):
    (path,) = write(1)
    (path / "manifest.json").unlink()
    (directory / "step_00000002").write_text("")
    states = {state.name: state.problems for state in examine(directory).states}
    assert states == {"step_00000001": ("manifest.json is missing",), "step_00000002": ("step_00000002 is a file",)}


def test_drafts_and_what_was_put_aside_are_listed_and_do_not_count(write, directory, capsys):
    (path,) = write(1)
    (directory / ".step_00000002.draft-17").mkdir()
    path.with_name("step_00000003.damaged").mkdir()
    assert commands.run("doctor", directory) == 0
    text = capsys.readouterr().out
    assert "draft: .step_00000002.draft-17" in text
    assert "moved aside: step_00000003.damaged" in text
    (directory / ".step_00000001.draft-17").mkdir()
    assert examine(path).drafts == (".step_00000001.draft-17",)


def test_who_holds_the_lock(directory):
    with CheckpointManager(Held(), directory) as manager:
        manager.save()
        writer = examine(directory).writer
        assert writer is not None
        assert writer.is_alive
        assert "lock: process" in str(examine(directory))
        assert examine(directory / "step_00000000").writer == writer
    assert examine(directory).writer is None


@pytest.mark.multiprocess
def test_a_lock_of_a_process_that_has_ended_or_is_elsewhere(write, directory):
    write(1)
    pid = run_python("import os; print(os.getpid())")
    host = run_python("import socket; print(socket.gethostname())")
    owner = {"pid": int(pid), "host": host, "since": "2026-01-01T00:00:00+00:00", "program": ["train.py"]}
    (directory / ".lock").write_text(json.dumps(owner))
    assert "it has exited without releasing it" in str(examine(directory))
    (directory / ".lock").write_text(json.dumps(owner | {"host": f"not-{host}"}))
    assert "it may still run on its machine" in str(examine(directory))
    (directory / ".lock").write_bytes(b"\xff")
    assert examine(directory).writer is None


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_have_the_bytes_of_their_data(tmp_path, impl):
    keys = jax.random.split(jax.random.key(0, impl=impl), 3)
    snapshot_of({"variables/k": KERNEL, "training/0": keys}).begin(tmp_path / "digits")()
    (state,) = examine(tmp_path).states
    assert state.arrays[1].nbytes == jax.random.key_data(keys).nbytes


def test_the_same_as_json(trained, capsys):
    assert commands.run("doctor", trained, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_good"] and [state["step"] for state in found["states"]] == [3, 6]
    assert found["states"][0]["rules"] == {"d1/kernel": 3 * 8 * 16 * 4 * 3 // 4}


def test_nothing_to_examine_ends_with_2(tmp_path, capsys):
    assert commands.run("doctor", tmp_path) == 2
    assert commands.run("doctor", tmp_path / "missing") == 2
    (tmp_path / "file").write_text("")
    assert commands.run("doctor", tmp_path / "file") == 2
    assert "is a file" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="is not there"):
        examine(tmp_path / "missing")


def test_changes_nothing(write, directory):
    write(1, 2)
    (directory / ".step_00000003.draft-17").mkdir()
    before = listing(directory)
    str(examine(directory))
    assert listing(directory) == before


@pytest.mark.multiprocess
def test_starts_no_device_and_reads_no_array(trained):
    program = f"""
import sys
from keras_dist.cli.app import app
try:
    app(["doctor", {str(trained)!r}])
except SystemExit as ended:
    code = ended.code
from jax._src import xla_bridge
print(code, xla_bridge.backends_are_initialized(), "orbax" in sys.modules)
"""
    assert run_python(program, JAX_PLATFORMS="nowhere").splitlines()[-1] == "0 False False"


def test_doctor_does_not_follow_a_link_to_another_place(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret").write_text("x")
    (tmp_path / "states").mkdir()
    (tmp_path / "states" / "step_1").symlink_to(elsewhere)
    (state,) = kd.checkpoint.examine(tmp_path / "states").states
    assert state.problems == ("is a link to another place, which is not followed",) and state.files == 0


def test_doctor_follows_a_link_that_is_given_and_names_its_target(tmp_path):
    (tmp_path / "states").mkdir()
    (tmp_path / "link").symlink_to("states")
    found = kd.checkpoint.examine(tmp_path / "link")
    assert str(found).splitlines()[0] == f"{tmp_path / 'link'} is a link to {tmp_path / 'states'}"
    assert found.to_dict()["link"] == str(tmp_path / "link")
    direct = kd.checkpoint.examine(tmp_path / "states")
    assert direct.link is None and direct.to_dict()["link"] is None and "is a link" not in str(direct)
