"""SIGKILL in the middle of steps and of saves: whoever starts the program again gets what was never interrupted."""

import json
import os
import subprocess
import sys

import pytest

from tests.resuming.program import CASES

KILLS = 5
"""In each of six cases: 30 trials."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Where the lives leave their programs to the next."""
    return tmp_path_factory.mktemp("programs")


@pytest.mark.parametrize("case", CASES)
def test_the_result_is_that_of_a_training_that_was_never_killed(case, tmp_path, compiled):
    first = KILLS * list(CASES).index(case)
    program = [sys.executable, "-m", "tests.resuming.program", case, str(tmp_path)]
    ended = subprocess.run(
        [*program, *map(str, range(first, first + KILLS))],
        env=os.environ
        | {"JAX_COMPILATION_CACHE_DIR": str(compiled), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    expected, found = told["expected"], told["found"]
    assert told["killed"] == KILLS
    assert found.pop("begun") and not expected.pop("begun")
    assert found == expected
    assert not found["left over"]
    assert len(found["arrays"]) > 10 and len(found["epochs"]) >= 3
