"""Saves after some time: when, and at the same step in all processes, whose clocks differ."""

import datetime

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.callbacks import model_checkpoint
from keras_dist.callbacks.model_checkpoint import SaveTimer
from keras_dist.errors import ModelError

X, Y = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)


class Clock:
    """Shows what it is set to."""

    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(model_checkpoint, "time", clock := Clock())
    return clock


class Messages:
    """What the first process said, at which look of its own; the others hear it one after the other."""

    def __init__(self, processes, said=()):
        self.processes, self.said, self.heard = processes, list(said), 0

    def first(self, action, of):
        if self.heard == len(self.said):
            self.said.append(action())
        self.heard += 1
        return self.said[self.heard - 1]


def saves(clock, steps, seconds_of, messages, interval=600):
    """At which steps it saves, and at which it exchanges messages."""
    timer = SaveTimer(datetime.timedelta(seconds=interval))
    timer._job = messages
    saved, asked = [], []
    for step in range(1, steps + 1):
        clock.now += seconds_of(step)
        before = messages.heard
        if timer.is_due(1):
            saved.append(step)
        if messages.heard > before:
            asked.append(step)
    return saved, asked


def test_alone_it_saves_at_the_first_step_after_the_time_has_passed(clock):
    assert saves(clock, 10, lambda step: 250.0, Messages(1))[0] == [3, 6, 9]


SPEEDS = {
    "even": lambda step: 0.1,
    "first ones only dispatched": lambda step: 1e-5 if step < 3 else 0.1,
    "compiled first": lambda step: 60.0 if step == 1 else 0.1,
    "a clock that stands": lambda step: 0.0 if step % 2 else 0.2,
    "slower and slower": lambda step: 0.05 if step < 9000 else 0.1,
}


@pytest.mark.parametrize("speed", SPEEDS)
def test_all_processes_save_at_the_same_step_and_seldom_ask(clock, speed):
    chief = Messages(2)
    saved, asked = saves(clock, 20_000, SPEEDS[speed], chief)
    assert len(asked) < 150  # for 20000 steps
    assert 2 <= len(saved) <= 3
    for others in (lambda step: 0.0, lambda step: 1000.0, lambda step: 2.0 * (step % 7)):
        other = Messages(2, chief.said)
        assert saves(clock, 20_000, others, other) == (saved, asked)
        assert other.said == chief.said  # its own clock has said nothing


def test_a_save_is_late_by_a_step_if_steps_take_the_same_time(clock):
    saved, _ = saves(clock, 20_000, SPEEDS["even"], Messages(2))
    np.testing.assert_allclose(np.diff([0, *saved]), 6000, atol=2)


def test_executions_of_several_steps_count_as_such(clock):
    chief, timer = Messages(2), SaveTimer(datetime.timedelta(seconds=100))
    timer._job = chief
    dues = []
    for execution in range(20):
        clock.now += 10
        dues.append(timer.is_due(8))
        assert chief.heard <= execution + 1
    assert [number for number, is_due in enumerate(dues) if is_due] == [9, 19]


class Ticks(kd.callbacks.Callback):
    """Ten seconds an execution."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def sees_every_batch(self, mode):
        return True

    def on_train_batch_begin(self, batch, logs=None):
        self.clock.now += 10


def test_callbacks_save_by_the_clock(clock, tmp_path):
    model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    every = datetime.timedelta(seconds=30)
    backup = kd.callbacks.BackupAndRestore(tmp_path / "backup", every, keep=None, delete_checkpoint=False)
    best = kd.callbacks.ModelCheckpoint(tmp_path / "{epoch}-{batch}.safetensors", save_freq=every)
    model.fit(X, Y, batch_size=2, epochs=2, verbose=0, callbacks=[Ticks(clock), best, backup])
    assert sorted(path.name for path in (tmp_path / "backup").glob("step*")) == ["step_00000003", "step_00000006"]
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == ["1-3.safetensors", "2-2.safetensors"]


def test_a_number_of_numpy_is_a_number_of_batches(tmp_path):
    backup = kd.callbacks.BackupAndRestore(tmp_path, np.int64(3))
    assert backup.sees_every_batch("train") and backup.save_freq == 3


@pytest.mark.parametrize("save_freq", ["600s", 2.5, True, datetime.timedelta(0), datetime.timedelta(-1), None])
def test_what_is_no_frequency_is_told_with_the_way_to_give_seconds(save_freq):
    with pytest.raises(ModelError, match="`save_freq`") as raised:
        kd.callbacks.ModelCheckpoint("model", save_freq=save_freq)
    assert "datetime.timedelta" in raised.value.summary
