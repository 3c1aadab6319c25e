"""C++'s standard output without what Gloo says there of each group of processes that it connects."""

from __future__ import annotations

import atexit
import ctypes
import threading

_SAYS = b"[Gloo] Rank "
_BUFFER_BYTES = 256  # what a `stdio_sync_filebuf` takes, and more
_BEGIN = "_ZNSt8ios_base4InitC1Ev"  # makes the stream, where nobody has yet
_MAKE_BUFFER = "_ZN9__gnu_cxx18stdio_sync_filebufIcSt11char_traitsIcEEC1EP8_IO_FILE"
_EXCHANGE_BUFFER = "_ZNSt9basic_iosIcSt11char_traitsIcEE5rdbufEPSt15basic_streambufIcS1_E"
_UNBUFFERED = 2
_kept: list[object] = []  # what C++ points to


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
