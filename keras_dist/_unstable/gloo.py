"""The C++ handler that runs before Gloo aborts the process."""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable

_SET_TERMINATE = "_ZSt13set_terminatePFvvE"
_acts: list[object] = []  # C++ holds pointers to them


def before_abort(act: Callable[[], object]) -> None:
    """Call `act` before an uncaught exception of C++ aborts this process; does nothing without GNU's C++ library.

    Gloo sometimes raises such exceptions in its threads when another process exits, so that no test can require it.

    Seen with jaxlib 0.10.2. Upstream: not reported for JAX; https://github.com/pytorch/gloo/pull/388 is similar.
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
