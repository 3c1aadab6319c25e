"""Warnings of a job: of what several processes warn alike, the first one does alone."""

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
    """Show the warnings of the first process at once, and those of others if it gives none like them for 5 seconds.

    Like ones are of one category and text. Filters decide before, in each process, what is an error and what ignored.

    Args:
        client: of JAX's distributed runtime.
        process: the index of this process.
    """
    show, here = warnings.showwarning, os.getpid()
    waiting = concurrent.futures.ThreadPoolExecutor(1, "keras_dist warns")  # in order; the end of Python waits for it

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

        def show_unless_told() -> None:
            try:
                client.blocking_key_value_get(key, max(round(1000 * (end - time.monotonic())), 1))
            except RuntimeError:
                show(message, category, filename, lineno, file, line)

        if process and os.getpid() == here:
            with contextlib.suppress(RuntimeError):  # Python ends: nothing can wait
                waiting.submit(show_unless_told)
                return
        show(message, category, filename, lineno, file, line)
        if os.getpid() == here:  # forks have no client
            with contextlib.suppress(RuntimeError):  # the job has ended
                client.key_value_set(key, "", allow_overwrite=True)

    warnings.showwarning = show_in_job
