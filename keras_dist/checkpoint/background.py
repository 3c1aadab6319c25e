"""`BackgroundSave`: a save that finishes in a thread, which Python joins at exit."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # so that its exit hook is registered before ours, which runs first
import pathlib
import threading
from collections.abc import Callable

from keras_dist._support.located_warnings import warn
from keras_dist.checkpoint.snapshot import Snapshot
from keras_dist.errors import CheckpointError, CheckpointWarning
from keras_dist.jobs import heartbeat

_not_awaited: set[BackgroundSave] = set()


def _wait_at_the_end() -> None:
    """Wait for saves of managers that were not closed, and warn of failed ones."""
    for writer in tuple(_not_awaited):
        writer.wait()
        try:
            writer.check()
        except CheckpointError as error:
            warn(f"the last save failed: {error}", CheckpointWarning)


# `atexit` is too late: the thread pools of orbax are closed then
threading._register_atexit(_wait_at_the_end)  # type: ignore[attr-defined]


class BackgroundSave:
    """A save of a snapshot that finishes in a separate thread, which then calls `then`."""

    def __init__(self, snapshot: Snapshot, path: pathlib.Path, fsync: bool, then: Callable[[], None]) -> None:
        self._path = path
        self._error: BaseException | None = None
        steps = heartbeat.current().notes.steps
        try:
            finish = snapshot.begin(path, fsync)
        except OSError as error:
            raise not_written(path, error) from error

        def run() -> None:
            try:
                finish()
                heartbeat.current().note_save(str(path), steps)
                then()
            except BaseException as error:  # `check` raises it in the training thread
                self._error = error

        self._thread = threading.Thread(target=run, name=f"save {path.name}")
        self._thread.start()
        _not_awaited.add(self)

    @property
    def is_over(self) -> bool:
        """Whether the save has finished or failed."""
        return not self._thread.is_alive()

    def call_when_over(self, then: Callable[[], None]) -> None:
        """Call `function`, in another thread, once the save has finished or failed."""
        thread = self._thread
        threading.Thread(target=lambda: (thread.join(), then()), name=f"then {thread.name}", daemon=True).start()

    def wait(self) -> None:
        """Wait until the save has finished or failed."""
        self._thread.join()

    def check(self) -> None:
        """Raise the error of the save, if it failed."""
        _not_awaited.discard(self)
        if self._error is not None:
            raise not_written(self._path, self._error) from self._error


def not_written(path: pathlib.Path, error: BaseException) -> CheckpointError:
    """Return the error for a state, or a base, that could not be written."""
    given = f"{type(error).__name__}: {getattr(error, 'summary', error)}"
    fix = getattr(error, "fix", "") or "choose another directory; the states before this one are untouched"
    return CheckpointError(f"{str(path)!r} was not written", given=given, fix=fix)
