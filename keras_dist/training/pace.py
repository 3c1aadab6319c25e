"""How many steps to run at once: `Pace` finds enough to be cheap, and few enough to be interrupted."""

from __future__ import annotations

GOAL_SECONDS = 0.1
"""An execution should take about as long: hundreds of times its dispatch, and not long to wait for after Ctrl-C."""

GROWTH = 8
"""From one measurement to the next executions grow by no more than this factor: the first measurements are rough."""


class FixedPace:
    """So many steps as the user says, and one by one what is left over.

    Example:
        >>> pace = FixedPace(4)
        >>> pace.steps(left=9), pace.steps(left=3)
        (4, 1)
    """

    is_fixed = True

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def steps(self, left: int) -> int:
        """For the next execution, with so many steps left."""
        return self._steps if self._steps <= left else 1

    def measured(self, seconds: float, steps: int) -> None:
        """Nothing: an execution of so many steps took so long."""


class Pace:
    """Learns from finished executions how many steps the next ones should take.

    Example:
        >>> pace = Pace()
        >>> pace.steps(left=99)
        1
        >>> pace.measured(seconds=0.01, steps=1)
        >>> pace.steps(left=99)
        8
        >>> pace.measured(seconds=0.08, steps=8)
        >>> pace.steps(left=99), pace.steps(left=3)
        (10, 3)
    """

    is_fixed = False

    def __init__(self) -> None:
        self._steps = 1

    def steps(self, left: int) -> int:
        """For the next execution, with so many steps left."""
        return min(self._steps, left)

    def measured(self, seconds: float, steps: int) -> None:
        """An execution of so many steps took so long."""
        possible = GOAL_SECONDS * steps / seconds if seconds > 0 else float("inf")
        self._steps = max(1, round(min(possible, GROWTH * self._steps)))
