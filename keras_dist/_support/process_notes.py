"""Notes of a process of a job for the launcher, in a file. Imports no JAX."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib

NOTES_VARIABLE = "KERAS_DIST_NOTES_FILE"
"""Variable with the path of the file; set by the launcher."""

_LIMIT_BYTES = 2**16


@dataclasses.dataclass
class ProcessNotes:
    """Progress of a process, and the reason of its end."""

    joined: bool = False  # the process has joined its job
    steps: int = 0  # training steps that have begun
    step_at: float | None = None  # start of the last step [s since the Unix epoch]
    first_step_at: float | None = None  # end of the first step
    saved: str | None = None  # checkpoint from which the job resumes
    saved_steps: int = 0  # number of `steps` in it
    saves: int = 0  # number of checkpoints of this process
    failure: str | None = None  # exception that ends the process
    blamed: int | None = None  # index of the process that failed; its own index if it hangs
    reason: str | None = None  # action of that process
    absent: list[int] | None = None  # processes that did not join in time, as far as known

    def write(self, file: int) -> None:
        """Write the notes to the file; they stay even if the process is killed right after."""
        with contextlib.suppress(OSError):  # a full disk: training is worth more
            os.pwrite(file, json.dumps(vars(self)).encode() + b"\n", 0)

    @staticmethod
    def open_file() -> int | None:
        """Open the file of this process for writing; return None without a launcher."""
        path = os.environ.get(NOTES_VARIABLE)
        return None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)

    @classmethod
    def read(cls, path: pathlib.Path) -> ProcessNotes:
        """Return the notes in the file, or empty ones if they are missing or incomplete."""
        try:
            with path.open("rb") as file:
                return cls(**json.loads(file.read(_LIMIT_BYTES).partition(b"\n")[0]))
        except (OSError, ValueError, TypeError):
            return cls()


def request_file(notes: pathlib.Path) -> pathlib.Path:
    """Return the path of the file with which the launcher asks the process to end at its next save."""
    return notes.with_suffix(".request")


def is_asked_to_end() -> bool:
    """Whether the launcher asks this process to save and end, to restart the job with more processes."""
    path = os.environ.get(NOTES_VARIABLE)
    return path is not None and request_file(pathlib.Path(path)).exists()
