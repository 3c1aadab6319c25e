"""What tests must not do in `make test`: start processes, import Keras, sleep. `tests/conftest.py` says when.

Functions are replaced: a hook of `sys.addaudithook` would be called for each `id()`, too.
"""

import functools
import importlib.abc
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tests import forks

LONGEST_WAIT_S = 0.1
FONT_LISTS = ("fc-list", "system_profiler")
"""What matplotlib starts where it has not been used before; `tests/surroundings.py` keeps what it finds."""


class Guard(importlib.abc.MetaPathFinder):
    """Refuses what makes tests slow, while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        platform.processor()  # asks `uname` once in a process
        starters = (subprocess.Popen, "_execute_child"), (os, "fork"), (os, "posix_spawn"), (forks.Python, "__init__")
        for owner, name in starters:
            setattr(owner, name, self.starting(getattr(owner, name)))
        time.sleep = functools.partial(self.sleep, time.sleep)
        sys.meta_path.insert(0, self)

    def starting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that starts a process unless the guard is on."""

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if self.is_on and not any(isinstance(arg, list) and arg[0] in FONT_LISTS for arg in args):
                raise AssertionError("this test starts a process: mark it with pytest.mark.multiprocess")
            return function(*args, **kwargs)

        return guarded

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        """Refuse Keras, and leave all else to the finders that follow."""
        if self.is_on and fullname == "keras":
            raise AssertionError("this test imports Keras: let it use the fixture `keras`")

    def sleep(self, function: Callable[[float], None], seconds: float) -> None:
        """Sleep, but not long in the main thread."""
        if self.is_on and seconds > LONGEST_WAIT_S and threading.current_thread() is threading.main_thread():
            raise AssertionError(f"this test sleeps for {seconds} s: give it a clock, or mark it with pytest.mark.slow")
        function(seconds)


GUARD = Guard()
