"""What the processes of a job do together, in order: two that differ in it wait for each other for ever."""

from __future__ import annotations

import dataclasses

_KEPT = 8  # no process is further ahead of one that waits: two executions are in flight
_LONGEST = 100


@dataclasses.dataclass(frozen=True)
class CollectiveLog:
    """The last acts of one process for which it needs all others: steps, exchanges of messages, values compared.

    They are counted from the last exchange on, so that processes that have caught an error agree from the next one on.

    Attributes:
        since: that exchange.
        count: how many there were since.
        last: the last of them, as users know them.
    """

    since: str = ""
    count: int = 0
    last: tuple[str, ...] = ()

    def then(self, act: str) -> CollectiveLog:
        """These and another one."""
        return CollectiveLog(self.since, self.count + 1, (*self.last[1 - _KEPT :], act[:_LONGEST]))

    def numbered(self) -> dict[int, str]:
        """The last ones by their numbers."""
        return dict(zip(range(self.count - len(self.last), self.count), self.last, strict=True))


def difference(mine: CollectiveLog, others: CollectiveLog) -> tuple[str, str, str] | None:
    """The first act that two processes do not have in common: what they did before it, and what each of them does.

    None where one of them may only be further than the other.
    """
    if mine.since != others.since:
        return None
    here, there = mine.numbered(), others.numbered()
    for number in sorted(here.keys() & there.keys()):
        if here[number] != there[number]:
            return here.get(number - 1, ""), here[number], there[number]
    return None
