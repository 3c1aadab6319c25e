"""SIGKILL in the middle of steps and of saves: whoever starts the program again gets what was never interrupted."""

import itertools
import json
import random
import subprocess
import sys

import pytest

from tests.processes import killed_environment
from tests.resuming.program import CASES
from tests.soak import ROUNDS


def seeds_of(case):
    """When lives of this case are killed: in `make test` one, when at least one save is whole."""
    shortest, longest = CASES[case].get("life", (3, 9))
    late = (seed for seed in itertools.count() if random.Random(seed).randint(shortest, longest) == longest)
    first, kills = 5 * list(CASES).index(case), 5 * ROUNDS
    return range(first, first + kills) if kills else [next(late)]


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES)
def test_the_result_is_that_of_a_training_that_was_never_killed(case, tmp_path):
    seeds = seeds_of(case)
    program = [sys.executable, "-m", "tests.resuming.program", case, str(tmp_path)]
    ended = subprocess.run(
        [*program, *map(str, seeds)],
        env=killed_environment(),
        capture_output=True,
        text=True,
        timeout=600 * max(1, ROUNDS),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    expected, found = told["expected"], told["found"]
    assert told["killed"] == len(seeds)
    assert found.pop("begun") and not expected.pop("begun")
    assert found == expected
    assert not found["left over"]
    assert len(found["arrays"]) > 10 and len(found["epochs"]) >= 3
