"""Listening sockets of processes, as `ss -ltnp` finds them, which is not on every machine."""

import contextlib
import ipaddress
import os
import pathlib
from collections.abc import Iterator

_LISTENS = "0A"


def listening(process: int) -> list[tuple[str, int]]:
    """The address and port of each TCP socket on which a process or one of its descendants listens."""
    files = {file for one in _tree(process) for file in _open_files(one)}
    found = []
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
            if state == _LISTENS and f"socket:[{inode}]" in files:
                address, port = local.split(":")
                found.append((_readable(address), int(port, 16)))
    return found


def _tree(process: int) -> Iterator[int]:
    yield process
    for file in pathlib.Path(f"/proc/{process}/task").glob("*/children"):
        for child in file.read_text().split():
            yield from _tree(int(child))


def _open_files(process: int) -> Iterator[str]:
    try:
        files = [*pathlib.Path(f"/proc/{process}/fd").iterdir()]
    except PermissionError:  # munged hides its files, and listens on a Unix socket
        return
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            yield os.readlink(file)


def _readable(address: str) -> str:
    """The usual form of an address, which the kernel writes in words of 32 bits in the order of this machine."""
    words = [bytes.fromhex(address[start : start + 8])[::-1] for start in range(0, len(address), 8)]
    found = ipaddress.ip_address(b"".join(words))
    return str(getattr(found, "ipv4_mapped", None) or found)
