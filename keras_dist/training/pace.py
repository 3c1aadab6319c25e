"""`Pace`: how many steps to run at once: enough to be cheap, and few enough to be interrupted."""

from __future__ import annotations

GOAL_SECONDS = 0.1
"""An execution should take about as long: hundreds of times its dispatch, and not long to wait for after Ctrl-C."""

GROWTH = 8
"""From one measurement to the next executions grow by no more than this factor: the first measurements are rough."""


class Pace:
    """Learns from finished executions how many steps the next ones should take.

    Example:
        >>> pace = Pace()
        >>> pace.steps()
        1
        >>> pace.measured(seconds=0.01, steps=1)
        >>> pace.steps()
        8
        >>> pace.measured(seconds=0.08, steps=8)
        >>> pace.steps()
        10
    """

    def __init__(self) -> None:
        self._steps = 1

    def steps(self) -> int:
        """For the next execution."""
        return self._steps

    def measured(self, seconds: float, steps: int) -> None:
        """An execution of so many steps took so long."""
        possible = GOAL_SECONDS * steps / seconds if seconds > 0 else float("inf")
        self._steps = max(1, round(min(possible, GROWTH * self._steps)))
