"""Reading ahead in threads, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class _Reads:
    """A data source as grain wants it."""

    def __init__(self, read: Callable[[int], Any], count: int) -> None:
        self._read, self._count = read, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        try:
            return (self._read(int(index)),)  # not the element itself, for grain leaves out those that are None
        except StopIteration as error:  # to grain the end
            raise RuntimeError(f"reading element {index} raised StopIteration") from error


def read_in_threads(read: Callable[[int], Any], count: int, threads: int, ahead: int) -> Iterator[Any]:
    """`read(0)`, `read(1)`, ... `read(count - 1)`, in this order, while the next ones are being read.

    Args:
        read: is called in several threads at once. What it raises is raised in its turn.
        count: how many there are.
        threads: how many read.
        ahead: how many are read before they are asked for.
    """
    import grain  # takes a quarter of a second, which only those wait for who read in threads  # noqa: PLC0415

    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(threads, ahead))
    return (element for (element,) in grain.MapDataset.source(_Reads(read, count)).to_iter_dataset(options))
