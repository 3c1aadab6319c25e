"""What Gloo does to the process that it works for, beside moving data: it prints, and it may abort."""

from __future__ import annotations

import atexit
import ctypes
import threading
from collections.abc import Callable

_SAYS = b"[Gloo] Rank "
_BUFFER_BYTES = 256  # what a `stdio_sync_filebuf` takes, and more
_BEGIN = "_ZNSt8ios_base4InitC1Ev"  # makes the stream, where nobody has yet
_MAKE_BUFFER = "_ZN9__gnu_cxx18stdio_sync_filebufIcSt11char_traitsIcEEC1EP8_IO_FILE"
_EXCHANGE_BUFFER = "_ZNSt9basic_iosIcSt11char_traitsIcEE5rdbufEPSt15basic_streambufIcS1_E"
_SET_TERMINATE = "_ZSt13set_terminatePFvvE"
_UNBUFFERED = 2
_kept: list[object] = []  # what C++ points to
_acts: list[object] = []  # as well


class _CookieFunctions(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("read", "write", "seek", "close")]


def hide_connections() -> None:
    """Leave out of `std::cout` the lines `[Gloo] Rank 0 is connected to 1 peer ranks...`, which no setting turns off.

    All else that C++ writes there goes where it went, and Python does not write there. Does nothing where the C and C++
    libraries are not those of GNU, or when called again.
    """
    if _kept:
        return
    try:
        c, cpp = ctypes.CDLL(None), ctypes.CDLL("libstdc++.so.6")
        output = ctypes.c_void_p.in_dll(c, "stdout")
        stream = ctypes.addressof(ctypes.c_char.in_dll(cpp, "_ZSt4cout"))
        begin, make_buffer, exchange = (getattr(cpp, name) for name in (_BEGIN, _MAKE_BUFFER, _EXCHANGE_BUFFER))
        open_file = c.fopencookie
    except (OSError, TypeError, ValueError, AttributeError):
        return
    hidden: set[int] = set()  # threads within such a line, whose words come one by one

    @ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    def write(_: object, text: int, size: int) -> int:
        words, thread = ctypes.string_at(text, size), threading.get_ident()
        if words.startswith(_SAYS):
            hidden.add(thread)
        if thread not in hidden:
            c.fwrite(words, ctypes.c_size_t(1), ctypes.c_size_t(size), output)
            c.fflush(output)
        elif words.endswith(b"\n"):
            hidden.remove(thread)
        return size

    open_file.argtypes, open_file.restype = [ctypes.c_void_p, ctypes.c_char_p, _CookieFunctions], ctypes.c_void_p
    file = ctypes.c_void_p(open_file(None, b"w", _CookieFunctions(write=ctypes.cast(write, ctypes.c_void_p))))
    c.setvbuf(file, None, _UNBUFFERED, ctypes.c_size_t(0))
    buffer = ctypes.create_string_buffer(_BUFFER_BYTES)
    make_buffer(buffer, file)
    begin(ctypes.create_string_buffer(1))
    # the part of the stream that holds the buffer lies where its table of virtual functions says
    table = ctypes.c_void_p.from_address(stream).value or 0
    holder = ctypes.c_void_p(stream + ctypes.c_ssize_t.from_address(table - 3 * ctypes.sizeof(ctypes.c_ssize_t)).value)
    exchange.restype = ctypes.c_void_p
    before = ctypes.c_void_p(exchange(holder, buffer))
    _kept.extend([write, file, buffer])
    atexit.register(exchange, holder, before)  # what C++ says when Python has ended must not call it


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
