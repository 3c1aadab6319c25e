"""`BackupAndRestore`: which states are there, and what becomes of them and of the directory."""

import datetime
import errno
import signal
import threading

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.callbacks import BackupAndRestore
from keras_dist.checkpoint import CheckpointManager, folder
from keras_dist.errors import CheckpointError, ModelError

X, Y = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)


def network(units=1):
    model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(units, name="d1"), kd.layers.Dense(1, name="d2")])
    model.compile("sgd", loss="mse")
    return model


@pytest.fixture(scope="module")
def model():
    """Trains in one test after the other: see `steps`."""
    return network()


def fit(model, directory, **arguments):
    backup = BackupAndRestore(directory, delete_checkpoint=False, **arguments)
    return model.fit(X, Y, batch_size=4, epochs=1, verbose=0, callbacks=[backup])


def test_the_states_of_another_model_end_the_training_and_hold_no_lock(model, tmp_path):
    fit(model, tmp_path)
    with pytest.raises(CheckpointError, match="does not fit") as kept:
        fit(network(units=2), tmp_path)
    assert kept.tb is not None
    CheckpointManager(model, tmp_path).close()


class Step(kd.callbacks.Callback):
    """Does something once, at a step counted through all epochs."""

    def __init__(self, step, then):
        super().__init__()
        self.left, self.then = step, then

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            self.then()


def fail_with(error):
    def fail(*arguments):
        raise error

    return fail


def step_of(model):
    return int(model.snapshot().step)


def steps(directory, begin=0):
    """Which states are there, counted from the step at which the training began."""
    return sorted(int(path.name.removeprefix("step_")) - begin for path in directory.glob("step_*"))


NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


def test_a_save_without_space_ends_the_training_and_holds_no_lock(model, tmp_path, monkeypatch):
    begin = step_of(model)
    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="No space left") as kept:
        patch.setattr(folder, "write_manifest", fail_with(NO_SPACE))
        fit(model, tmp_path)
    assert kept.tb is not None
    assert not any(tmp_path.iterdir())
    fit(model, tmp_path)
    assert steps(tmp_path, begin) == [4]


def train(model, *callbacks, epochs=3):
    """Two steps an epoch."""
    return model.fit(X, Y, batch_size=4, epochs=epochs, verbose=0, callbacks=list(callbacks))


@pytest.mark.parametrize(
    ("arguments", "there"),
    [
        ({"save_freq": 4, "keep": 9}, [4]),
        ({"save_freq": 3, "keep": 9}, [3, 6]),
        ({"save_freq": 1, "keep": 3}, [4, 5, 6]),
        ({"keep": 9}, [2, 4, 6]),
        ({}, [4, 6]),
        ({"keep": 1}, [6]),
        ({"keep": 1, "double_checkpoint": True}, [4, 6]),
        ({"save_freq": 3, "asynchronous": False}, [3, 6]),
        ({"keep": None, "double_checkpoint": True}, [2, 4, 6]),
    ],
)
def test_which_states_are_there_at_the_end(arguments, there, model, tmp_path):
    begin = step_of(model)
    train(model, BackupAndRestore(tmp_path, delete_checkpoint=False, **arguments))
    assert steps(tmp_path, begin) == there


def test_each_state_is_written_before_the_step_goes_on_if_that_is_asked_for(model, tmp_path):
    seen, begin = [], step_of(model)
    look = Step(3, lambda: seen.extend(steps(tmp_path, begin)))
    train(model, BackupAndRestore(tmp_path, 1, asynchronous=False, delete_checkpoint=False), look)
    assert seen == [1, 2]


def test_after_a_normal_end_the_directory_is_gone_unless_something_else_is_in_it(model, tmp_path):
    train(model, BackupAndRestore(tmp_path / "alone"))
    assert not (tmp_path / "alone").exists()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "notes.txt").write_text("mine")
    train(model, BackupAndRestore(tmp_path / "shared"))
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["notes.txt"]


def test_an_exception_keeps_the_states_and_lets_the_next_fit_go_on_counting(model, tmp_path, capsys):
    begin = step_of(model)
    with pytest.raises(ValueError, match="enough"):
        train(model, BackupAndRestore(tmp_path, 2), Step(5, fail_with(ValueError("enough"))))
    assert steps(tmp_path, begin) == [2, 4]
    again = network()
    history = train(again, BackupAndRestore(tmp_path, 4, delete_checkpoint=False), epochs=5)
    assert "resuming from" in capsys.readouterr().out
    assert step_of(again) - begin == 10 and history.epoch == [0, 1, 2, 3, 4]
    assert steps(tmp_path, begin) == [4, 8]


def test_a_second_training_is_refused_while_the_first_one_goes_on(model, tmp_path):
    def second():
        with pytest.raises(CheckpointError, match="busy"):
            train(network(), BackupAndRestore(tmp_path))
        refused.append(True)

    refused = []
    train(model, BackupAndRestore(tmp_path, 1), Step(3, second))
    assert refused


def test_a_failed_save_is_raised_at_the_next_step_and_the_model_stays_usable(model, tmp_path, monkeypatch):
    def break_disk():
        backup._manager.wait_until_finished()
        monkeypatch.setattr(folder, "write_manifest", fail_with(NO_SPACE))

    def until_it_failed():
        backup._manager._writer.wait()

    begin, backup = step_of(model), BackupAndRestore(tmp_path, 2)
    with pytest.raises(CheckpointError, match="No space left") as raised:
        train(model, Step(3, break_disk), Step(5, until_it_failed), backup)
    assert "untouched" in raised.value.fix
    assert step_of(model) - begin == 5 and steps(tmp_path, begin) == [2]
    monkeypatch.undo()
    train(model, BackupAndRestore(tmp_path, 2))
    assert step_of(model) - begin == 6


def test_another_ctrl_c_while_the_last_state_is_written_waits_neither_for_it_nor_lets_others_write(
    model, tmp_path, monkeypatch
):
    has_left, commit = threading.Event(), folder.Draft.commit

    def slowly(draft):
        assert has_left.wait(60)
        commit(draft)

    begin, backup = step_of(model), BackupAndRestore(tmp_path, 100)
    monkeypatch.setattr(folder.Draft, "commit", slowly)
    monkeypatch.setattr(backup, "on_train_batch_end", lambda batch, logs: backup._manager.save())
    with pytest.raises(KeyboardInterrupt):
        train(model, backup, Step(2, fail_with(KeyboardInterrupt())))
    with pytest.raises(CheckpointError, match="busy"):
        CheckpointManager(model, tmp_path)
    has_left.set()
    for thread in threading.enumerate():
        if thread.name.startswith(("save", "then")):
            thread.join()
    with CheckpointManager(model, tmp_path) as manager:
        assert manager.steps == [begin + 1]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_it_is_called_last_wherever_it_stands(place):
    others = [kd.callbacks.LambdaCallback(), kd.callbacks.TerminateOnNaN()]
    backup = BackupAndRestore("backup")
    listed = kd.callbacks.CallbackList([*others[:place], backup, *others[place:]], add_history=True)
    assert listed.callbacks[:2] == others and listed.callbacks[-1] is backup and listed.history is not None


def test_it_looks_at_each_batch_only_to_count_them():
    assert BackupAndRestore("backup", 5).sees_every_batch("train")
    assert not BackupAndRestore("backup", 5).sees_every_batch("test")
    assert not BackupAndRestore("backup").sees_every_batch("train")
    assert not BackupAndRestore("backup", datetime.timedelta(minutes=10)).sees_every_batch("train")


@pytest.mark.parametrize("arguments", [{"backup_dir": ""}, {"backup_dir": 3}, {"save_freq": "batch"}, {"save_freq": 0}])
def test_arguments_that_cannot_be_used(arguments):
    name, value = next(iter(arguments.items()))
    with pytest.raises(ModelError, match=f"`{name}`") as error:
        BackupAndRestore(**{"backup_dir": "backup", **arguments})
    assert repr(value) in error.value.given


@pytest.mark.parametrize("keep", [0, "all", True])
def test_numbers_of_states_that_cannot_be(keep, tmp_path):
    with pytest.raises(CheckpointError, match="`keep` must be an integer of at least 1"):
        BackupAndRestore(tmp_path, double_checkpoint=True, keep=keep)


@pytest.mark.parametrize("late", [0, 1])
def test_a_signal_writes_no_state_again_that_is_saved_already(model, tmp_path, monkeypatch, capsys, late):
    """In a bucket the first would be deleted before the second is complete."""
    begin, saves, save = step_of(model), [], CheckpointManager.save

    def saved(manager):
        saves.append(step_of(model) - begin)
        return save(manager)

    monkeypatch.setattr(CheckpointManager, "save", saved)
    arguments = {"batch_size": 1, "epochs": 1, "verbose": 0}
    backup = BackupAndRestore(tmp_path, save_freq=2)
    with pytest.raises(SystemExit) as ended:
        signalled = Step(2 + late, lambda: signal.raise_signal(signal.SIGTERM))
        model.fit(X, Y, callbacks=[signalled, backup], **arguments)
    assert ended.value.code == 75
    assert saves == [2, 3][: 1 + late]
    again, path = "" if late else "already: ", tmp_path / f"step_{begin + 2 + late:08d}"
    assert f"BackupAndRestore: SIGTERM, saved {again}{path}; start the program again" in capsys.readouterr().out

    class Begin(kd.callbacks.Callback):
        comes_last = True

        def on_epoch_begin(self, epoch, logs=None):
            backup.on_train_interrupt(signal.SIGTERM)  # right after resuming

    with pytest.raises(SystemExit):
        model.fit(X, Y, callbacks=[backup, Begin()], **arguments)
    assert len(saves) == 1 + late
    assert f"SIGTERM, saved already: {path}; start" in capsys.readouterr().out
