"""`CollectiveLog`: the last operations of a process that need all processes.

Processes that do different things wait forever, one in a collective and the other for a message; a time-out would have
to be longer than the longest step. So the logs are compared.
"""

from __future__ import annotations

import dataclasses

_ACTS_KEPT = 8  # at most two executions are in flight, so no process is further ahead of a waiting one
_LONGEST_ACT = 100


@dataclasses.dataclass(frozen=True)
class CollectiveLog:
    """The last operations of one process in which all take part: steps, exchanges of messages, comparisons."""

    since: str = ""  # last exchange, where counting begins: processes agree again after an error that all have caught
    count: int = 0
    last: tuple[str, ...] = ()  # descriptions for users

    def then(self, act: str) -> CollectiveLog:
        """Append an operation."""
        return CollectiveLog(self.since, self.count + 1, (*self.last[1 - _ACTS_KEPT :], act[:_LONGEST_ACT]))

    def numbered(self) -> dict[int, str]:
        """Return the last operations by their numbers."""
        return dict(zip(range(self.count - len(self.last), self.count), self.last, strict=True))


def difference(mine: CollectiveLog, others: CollectiveLog) -> tuple[str, str, str] | None:
    """Return the first operation that differs: the one before it, and the one of each process; else None."""
    if mine.since != others.since:
        return None
    here, there = mine.numbered(), others.numbered()
    for number in sorted(here.keys() & there.keys()):
        if here[number] != there[number]:
            return here.get(number - 1, ""), here[number], there[number]
    return None
