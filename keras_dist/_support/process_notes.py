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
    failure: str | None = None  # exception that ends the process
    blamed: int | None = None  # index of the process that failed; its own index if it hangs
    reason: str | None = None  # action of that process

    def write(self, file: int) -> None:
        """Write the notes to the file; they stay even if the process is killed right after."""
        with contextlib.suppress(OSError):  # a full disk: training is worth more
            os.pwrite(file, json.dumps(vars(self)).encode() + b"\n", 0)

    @classmethod
    def read(cls, path: pathlib.Path) -> ProcessNotes:
        """Return the notes in the file, or empty ones if they are missing or incomplete."""
        try:
            with path.open("rb") as file:
                return cls(**json.loads(file.read(_LIMIT_BYTES).partition(b"\n")[0]))
        except (OSError, ValueError, TypeError):
            return cls()
