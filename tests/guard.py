"""What tests must not do in `make test`: start processes, import Keras, sleep. `tests/conftest.py` says when."""

import os
import sys
import threading
import time
from collections.abc import Callable

STARTS = ("subprocess.Popen", "os.fork", "os.posix_spawn", "tests.forks.Python")
LONGEST_WAIT_S = 0.1


class Guard:
    """Refuses what makes tests slow, unless they are marked: processes, live Keras, sleeping."""

    def __init__(self) -> None:
        self.is_on = False
        self._process = os.getpid()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.is_on or os.getpid() != self._process:
            return
        if event in STARTS:
            raise AssertionError("this test starts a process: mark it with pytest.mark.multiprocess")
        if event == "import" and arguments[0] == "keras":
            raise AssertionError("this test imports Keras: let it use the fixture `keras`")

    def sleep(self, seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        """Take the place of `time.sleep`."""
        if self.is_on and seconds > LONGEST_WAIT_S and threading.current_thread() is threading.main_thread():
            raise AssertionError(f"this test sleeps for {seconds} s: give it a clock, or mark it with pytest.mark.slow")
        sleep(seconds)


GUARD = Guard()
time.sleep = GUARD.sleep
