"""What a process of a job notes for the launcher, in a file that outlives it. Imports no JAX."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib

NOTES_VARIABLE = "KERAS_DIST_NOTES_FILE"
"""Names the file; set by the launcher."""

_LIMIT_BYTES = 2**16


@dataclasses.dataclass
class ProcessNotes:
    """How far a process has come, and why it ends.

    Attributes:
        joined: whether it has joined its job.
        steps: training steps that it has begun.
        step_at: when the last of them began, in seconds since the epoch of Unix.
        first_step_at: when its first step was done.
        saved: what the job goes on from when it is started again.
        saved_steps: how many of `steps` are saved.
        failure: the exception that it ends with.
        blamed: the process because of which it ends; its own index where it hangs itself.
        reason: what that process did.
    """

    joined: bool = False
    steps: int = 0
    step_at: float | None = None
    first_step_at: float | None = None
    saved: str | None = None
    saved_steps: int = 0
    failure: str | None = None
    blamed: int | None = None
    reason: str | None = None

    def write(self, file: int) -> None:
        """Write the notes over those in the file. They are there even if the process is killed right after."""
        with contextlib.suppress(OSError):  # a full disk: training is worth more
            os.pwrite(file, json.dumps(vars(self)).encode() + b"\n", 0)

    @classmethod
    def read(cls, path: pathlib.Path) -> ProcessNotes:
        """The notes in the file; empty ones if there are none, or are being written."""
        try:
            with path.open("rb") as file:
                return cls(**json.loads(file.read(_LIMIT_BYTES).partition(b"\n")[0]))
        except (OSError, ValueError, TypeError):
            return cls()
