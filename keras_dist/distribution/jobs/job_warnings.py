"""Warnings of a job: the first process shows a warning that several processes give.

The first process warns at once, others of what it does not warn of within five seconds: only some warnings appear in
all processes, and whoever warns cannot know.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import os
import time
import warnings
from typing import Any, TextIO

_PLACE = "keras_dist/warned/"
_WAIT_S = 5.0


def show_once(client: Any, process: int) -> None:
    """Show warnings of the first process at once, and others if it gives none of the same text in 5 seconds."""
    show, here = warnings.showwarning, os.getpid()
    waiting = concurrent.futures.ThreadPoolExecutor(1, "keras_dist warns")  # in order; Python waits for it at exit

    def show_in_job(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        digest = hashlib.sha256(f"{category.__module__}.{category.__qualname__}: {message}".encode()).hexdigest()
        key, end = f"{_PLACE}{digest}", time.monotonic() + _WAIT_S

        def show_unless_shown() -> None:
            try:
                client.blocking_key_value_get(key, max(round(1000 * (end - time.monotonic())), 1))
            except RuntimeError:
                show(message, category, filename, lineno, file, line)

        if process and os.getpid() == here:
            with contextlib.suppress(RuntimeError):  # Python exits
                waiting.submit(show_unless_shown)
                return
        show(message, category, filename, lineno, file, line)
        if os.getpid() == here:  # forked processes have no client
            with contextlib.suppress(RuntimeError):  # the job has ended
                client.key_value_set(key, "", allow_overwrite=True)

    warnings.showwarning = show_in_job
