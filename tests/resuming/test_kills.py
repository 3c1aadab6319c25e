"""SIGKILL in the middle of steps and of saves: whoever starts the program again gets what was never interrupted."""

import itertools
import json
import random

import pytest

from tests import forks
from tests.processes import killed_environment
from tests.resuming.program import CASES
from tests.soak import LARGE, ROUNDS


def seeds_of(case, trial):
    """When the lives of a training are killed: the first when a save is whole; if `LARGE` another one by chance."""
    shortest, longest = CASES[case].get("life", (3, 6))
    late = (seed for seed in itertools.count() if random.Random(seed).randint(shortest, longest) == longest)
    return [next(itertools.islice(late, trial, None)), *([trial] * LARGE)]


FIRST = "generator in a save", "foreign module", "fine-tuning"
"""What `make test-all` kills; a single round kills the others."""


@pytest.mark.multiprocess
@pytest.mark.soak
@pytest.mark.parametrize("trial", range(max(1, ROUNDS)))
@pytest.mark.parametrize("case", [case for case in CASES if LARGE or (case in FIRST) != bool(ROUNDS)])
def test_the_result_is_that_of_a_training_that_was_never_killed(case, trial, tmp_path):
    seeds = seeds_of(case, trial)
    program = ("-m", "tests.resuming.program", case, tmp_path, *seeds)
    ended = forks.python(*program, env=killed_environment(), timeout=600)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    expected, found = told["expected"], told["found"]
    assert told["killed"] == len(seeds)
    assert found.pop("begun") and not expected.pop("begun")
    assert found == expected
    assert not found["left over"]
    assert len(found["arrays"]) > 10 and len(found["epochs"]) >= 3
