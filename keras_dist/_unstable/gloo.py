"""The C++ handler that runs before Gloo aborts the process."""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable

_SET_TERMINATE = "_ZSt13set_terminatePFvvE"
_acts: list[object] = []  # what C++ points to


def before_abort(act: Callable[[], object]) -> None:
    """Call a function before an exception of C++ that nobody catches aborts this process.

    Gloo raises such ones in threads of its own when another process has died. Does nothing where the C++ library is not
    that of GNU.
    """
    try:
        set_terminate = getattr(ctypes.CDLL("libstdc++.so.6"), _SET_TERMINATE)
    except (OSError, AttributeError):
        return

    @ctypes.CFUNCTYPE(None)
    def act_and_abort() -> None:
        act()
        ctypes.CFUNCTYPE(None)(before)()

    set_terminate.restype, set_terminate.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    before = set_terminate(ctypes.cast(act_and_abort, ctypes.c_void_p))
    _acts.append(act_and_abort)
    atexit.register(set_terminate, before)
