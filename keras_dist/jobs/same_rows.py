"""Comparison of data that several processes must pass alike; different data would train a mixture.

One exchange compares the CRC-32C of 32 rows where processes are meant to have the same data: a digest of all rows would
read data that a process does not read otherwise (`check_data="full"` does).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import google_crc32c
import numpy as np

from keras_dist._support import ambient
from keras_dist._support.arguments import check_option
from keras_dist.errors import ClusterError
from keras_dist.jobs.rendezvous import Rendezvous

# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false

CheckData = Literal["sample", "full", False]

_SAMPLED = 32  # rows
_AT_ONCE = 4096  # rows that are read for one exchange of a full comparison

Take = Callable[[np.ndarray], Sequence[np.ndarray]]  # returns the arrays of the rows at these positions


def choose_check(check_data: CheckData) -> None:
    """Choose how data are compared in this job; see `initialize`."""
    ambient.process.check_data = check_data


def checked_option(check_data: Any) -> CheckData:
    """Return `check_data`, if it is a valid option."""
    return check_option("check_data", check_data, ("sample", "full", False), error=ClusterError)


class SameRows:
    """Compares rows of groups of processes by CRC-32C. All processes of a job must make the same calls."""

    def __init__(self, about: str, groups: Sequence[Sequence[int]]) -> None:
        self._about, self._groups = about, groups
        self._job = Rendezvous(f"a comparison of the {about}")
        self._compared = 0
        self._is_due, self._batch = True, 0

    @classmethod
    def where_meant(cls, about: str, groups: Sequence[Sequence[int]]) -> SameRows | None:
        """Return a comparison; None if comparison is disabled, or all processes may hold different rows."""
        return cls(about, groups) if ambient.process.check_data and any(len(group) > 1 for group in groups) else None

    def compare(self, rows: int, take: Take) -> None:
        """Compare all rows of indexable data, or a sample that changes with each call; raise in all processes."""
        if ambient.process.check_data == "full":
            for start in range(0, rows, _AT_ONCE):
                self._compare(np.arange(start, min(start + _AT_ONCE, rows)), take, f" of {rows}")
        else:
            self._compare(self._sample(rows), take, f" of {rows}")

    def compare_batch(self, rows: int, take: Take, form: str) -> None:
        """Compare a batch, if it is due: the first of each epoch, or all. `form` describes its arrays."""
        batch, self._batch = self._batch, self._batch + 1
        if ambient.process.check_data == "full" or self._is_due:
            self._is_due = False
            numbers = np.arange(rows) if ambient.process.check_data == "full" else self._sample(rows)
            self._compare(numbers, take, f" of batch {batch}", form)

    def compare_call(self, rows: int, take: Take, form: str) -> None:
        """Compare the batch of a call, if it is due: the first, second, fourth, eighth ... call, or all."""
        self._is_due = not self._batch & (self._batch + 1)
        self.compare_batch(rows, take, form)

    def end_epoch(self) -> None:
        """Restart counting batches, so that the next one is compared."""
        self._is_due, self._batch = True, 0

    def _sample(self, rows: int) -> np.ndarray:
        """Return the positions of the first, the last and random rows, the same in all processes."""
        self._compared += 1
        if rows <= _SAMPLED:
            return np.arange(rows)
        drawn = np.random.default_rng([rows, self._compared]).integers(rows, size=_SAMPLED - 2)
        return np.unique([0, *drawn, rows - 1])

    def _compare(self, numbers: np.ndarray, take: Take, place: str, form: str = "") -> None:
        own: list[str] = []

        def digest() -> dict[str, Any]:
            own.extend(_digests(take(numbers)))
            return {"batch": form, "rows": google_crc32c.value("".join(own).encode())}

        told = self._job.each(digest, dict)
        given = self._difference([str(one.get("batch")) for one in told])
        if given is not None:
            raise self._error(f"batch: {given}")
        if self._difference([str(one.get("rows")) for one in told]) is None:
            return
        rows = self._job.each(lambda: own, list)
        each = ([f"CRC-32C {''.join(map(str, one[at : at + 1]))}" for one in rows] for at in range(len(numbers)))
        differences = enumerate(map(self._difference, each))
        first, given = next((found for found in differences if found[1] is not None), (0, "another digest"))
        among = "" if ambient.process.check_data == "full" else f", the first of {len(numbers)} that were compared"
        raise self._error(f"row {numbers[first]}{place}{among}: {given}")

    def _difference(self, values: Sequence[str]) -> str | None:
        """Describe which processes have which of these values, in the first group where they differ."""
        for group in self._groups:
            processes: dict[str, list[str]] = {}
            for process in group:
                processes.setdefault(values[process], []).append(str(process))
            if len(processes) > 1:
                return " but ".join(f"{value} in process {', '.join(alike)}" for value, alike in processes.items())
        return None

    def _error(self, given: str) -> ClusterError:
        return ClusterError(
            f"the processes of the job do not have the same data: {self._about}",
            given=given,
            fix="read, shuffle and augment alike in every process; where each must give different rows, make the "
            "distribution with auto_shard_dataset=False; initialize(check_data=False) does not compare",
        )


def _digests(arrays: Sequence[np.ndarray]) -> list[str]:
    """Return a CRC-32C of each row over all arrays."""
    flat = [np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8) for array in arrays]
    return [
        f"{functools.reduce(lambda crc, rows: google_crc32c.extend(crc, rows[row].tobytes()), flat, 0):08x}"
        for row in range(len(flat[0]))
    ]
