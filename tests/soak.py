"""What chance or size decides: `make test-all` tries it once and small, `make soak` often and large."""

import itertools
import os
from collections.abc import Iterable
from typing import Any

import pytest

ROUNDS = int(os.environ.get("SOAK", "0"))
"""How often `make soak` tries: 0 in `make test-all`, 1 in `.ci/run`."""

LARGE = ROUNDS > 1
"""Whether it takes each model on each mesh, and as many steps and bytes as show what is rare: not in a single round."""


often = pytest.mark.soak if ROUNDS != 1 else pytest.mark.slow
"""Of what a single round would only repeat, right after `make test-all`."""


def crossed(*choices: Iterable[Any]) -> list[tuple[Any, ...]]:
    """The product of `choices` if `LARGE`; else as many of it as the longest has, so that each value is in one."""
    lists = [[*one] for one in choices]
    if LARGE:
        return [*itertools.product(*lists)]
    return [tuple(one[index % len(one)] for one in lists) for index in range(max(map(len, lists)))]


def repeated(test: Any) -> Any:
    """Mark a test that `make soak` runs, too, but not in a single round, which follows `make test-all`."""
    return test if ROUNDS == 1 else pytest.mark.soak(test)


def sampled(cases: Iterable[Any], every: int) -> list[Any]:
    """Those of `cases` that `make test-all` tries; all if `LARGE`, where the test is marked `soak`."""
    return [*cases][:: 1 if LARGE else every]


def some(cases: Iterable[Any]) -> list[Any]:
    """Those of `cases`, all of which `make test-all` tries, too: in a single round every fourth."""
    return [*cases][:: 4 if ROUNDS == 1 else 1]


def few(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """The parameters of a test, of which `make test` takes those in `kept` alone."""
    return [case if case in kept else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def soak_if_large(test: Any) -> Any:
    """Mark a test that `make soak` runs, too, but no single round: `make test-all`, before it, has done the same."""
    return test if ROUNDS == 1 else pytest.mark.soak(test)
