"""`Restarts`: the failures and changes of size of a job, its report, and the restarts in a row without progress."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from keras_dist._support.process_notes import ProcessNotes

_LONGEST_PAUSE_S = 30.0


@dataclasses.dataclass
class Failure:
    """The failure of a process, or the end after a save to change the size of the job, as an entry of the report."""

    process: int | None  # None for a change of size
    how: str  # exit code and error, or signal
    at: float  # Unix time when it was noticed, or of the last step of a process that hangs
    absent: list[int] | None = None  # processes that did not join in time, as far as known; None if all have joined
    saved: str | None = None  # the checkpoint to resume from
    steps_lost: int = 0  # training steps of the first process of this node since the checkpoint
    restarted: bool = False
    processes: int | None = None  # of the restarted job
    to_next_step_s: float | None = None  # time from the failure to the next step

    @property
    def who(self) -> str:
        """The process, or the job."""
        return "the job" if self.process is None else f"process {self.process}"


class Restarts:
    """The record of a job; it is written to the JSON file `report`.

    Progress is a new save, or more steps since the last save than ever before.
    """

    def __init__(self, largest: int, report: pathlib.Path | None, described: Mapping[str, Any]) -> None:
        self.failures: list[Failure] = []
        self.in_row = 0  # restarts since the last progress, with the next one
        self.saved: str | None = None  # the newest checkpoint, as noted by the first process of this node
        self.has_trained = False
        self.largest, self._report, self._described = largest, report, described

    def add(self, failure: Failure, notes: ProcessNotes) -> None:
        """Record a failure, and decide on a restart, by the `notes` of the first local process."""
        if notes.saved is not None or notes.steps:
            self.saved, self.has_trained = notes.saved, True
        failure.saved, failure.steps_lost = self.saved, notes.steps - notes.saved_steps
        steps_before = [one.steps_lost for one in self.failures if one.saved == failure.saved]
        has_progressed = failure.steps_lost > max(steps_before, default=0) or not (steps_before or self.saved is None)
        self.in_row = (0 if has_progressed else self.in_row) + (failure.process is not None or not has_progressed)
        failure.restarted = self.in_row <= self.largest
        self.failures.append(failure)

    @property
    def pause_s(self) -> float:
        """Time before the next restart [s]."""
        return 0.0 if self.in_row <= 1 else min(2.0 ** (self.in_row - 1), _LONGEST_PAUSE_S)

    @property
    def known_save(self) -> str:
        """The newest checkpoint, described."""
        return self.saved or ("nothing" if self.has_trained else "nothing known, as training has not begun")

    @property
    def grows(self) -> bool:
        """Whether the next start may have more processes than the last one."""
        return bool(self.failures) and self.failures[-1].process is None

    @property
    def awaits_step(self) -> bool:
        """Whether no step has followed the last failure."""
        return bool(self.failures) and self.failures[-1].to_next_step_s is None

    def note_start(self, processes: int) -> None:
        """Record a start with so many processes."""
        if self.failures:
            self.failures[-1].processes = processes

    def note_step(self, at: float) -> Failure:
        """Record the first step after the last failures, and return the first of them."""
        first = self.failures[-1]
        for failure in reversed(self.failures):
            if failure.to_next_step_s is not None:
                break
            failure.to_next_step_s, first = round(at - failure.at, 2), failure
        return first

    def write(self) -> str | None:
        """Write the report, and return the reason if it cannot be written."""
        if self._report is None:
            return None
        entries = [dataclasses.asdict(failure) for failure in self.failures]
        failures = [entry for entry in entries if entry["process"] is not None]
        resizes = [entry for entry in entries if entry["process"] is None]
        text = json.dumps({**self._described, "failures": failures, "resizes": resizes}, indent=2) + "\n"
        is_replaced = self._report.is_file() or not self._report.exists()  # and no device or pipe
        draft = self._report.with_name(f"{self._report.name}.draft") if is_replaced else self._report
        try:
            draft.write_text(text, "utf-8")
            if is_replaced:
                draft.replace(self._report)
        except OSError as error:  # must not end the job
            return str(error)
        return None
