"""`save_freq` of callbacks that save: at the end of epochs, by number of batches, or by time.

Saves after some time follow the clock of the first process, which reads it at steps that it announces in advance:
clocks differ, and asking at each step would make all processes wait.
"""

from __future__ import annotations

import contextlib
import datetime
import time

from keras_dist._support.arguments import argument_error, check_int
from keras_dist.distribution.jobs.rendezvous import Rendezvous

SaveFrequency = int | str | datetime.timedelta


def check_save_freq(save_freq: SaveFrequency) -> SaveFrequency:
    """Return `save_freq` if it is "epoch", a number of batches, or a duration."""
    others = "'epoch', or a positive datetime.timedelta"
    if isinstance(save_freq, datetime.timedelta):
        if save_freq <= datetime.timedelta():
            raise argument_error("save_freq", save_freq, others, example=datetime.timedelta(minutes=10))
        return save_freq
    if isinstance(save_freq, str) and save_freq == "epoch":
        return save_freq
    return check_int("save_freq", save_freq, 1, alternative=others, example=100)


def timer_of(save_freq: SaveFrequency) -> SaveTimer | None:
    """Return a timer that starts now, if `save_freq` is a duration. All processes of a job must call it."""
    return SaveTimer(save_freq) if isinstance(save_freq, datetime.timedelta) else None


class SaveTimer:
    """Decides when to save, at the same step in all processes of a job, by the clock of the first process.

    The processes exchange messages only at some steps: whenever the first process looks at its clock, it announces the
    number of steps until it looks again. That is half of the steps that fit into the remaining time, at the current
    speed, and at most twice the last number, since the first steps of a program are only dispatched, or compiled. So it
    looks about `2 * log2(steps between saves)` times between two saves. If steps become slower by a factor f, the save
    is late by at most f / 2 of the remaining time.
    """

    def __init__(self, interval: datetime.timedelta) -> None:
        self._seconds = interval.total_seconds()
        self._job = Rendezvous("when to save")
        self._last_save = self._looked = time.monotonic()
        self._steps, self._wait = 0, 1

    def is_due(self, steps: int) -> bool:
        """Return whether to save now, after `steps` further steps. All processes must call it at the same steps."""
        self._steps += steps
        if self._steps < self._wait:
            return False
        wait = self._job.first(self._look, int)
        self._steps, self._wait = 0, max(wait, 1)
        return wait == 0

    def _look(self) -> int:
        """Return the number of steps until the next look; 0 if a save is due."""
        now = time.monotonic()
        seconds, self._looked = now - self._looked, now
        left = self._last_save + self._seconds - now
        if left <= 0:
            self._last_save = now
            return 0
        if self._job.processes == 1:
            return 1
        most = 2 * self._wait
        return max(1, int(min(most, left / 2 * self._steps / seconds))) if seconds > 0 else most

    def leave(self, error: BaseException | None) -> None:
        """Report an error to the processes that wait for this one."""
        if error is not None:
            with contextlib.suppress(RuntimeError):  # the coordinator may have exited, too
                self._job.give_up(error)
