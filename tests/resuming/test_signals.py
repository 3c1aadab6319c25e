"""SIGTERM and Ctrl-C in real processes: a training is saved and goes on later, or ends as any other program."""

import json
import signal
from typing import Any

import pytest

from keras_dist.callbacks import BackupAndRestore
from tests import forks
from tests.processes import killed_environment
from tests.resuming.interruptions import CASES

pytestmark = pytest.mark.multiprocess

SAVED = {
    "SIGTERM in a step": 7,
    "SIGINT in a step": 7,
    "while compiling": 1,
    "in validation": 10,
    "in a slow callback": 15,
}
"""The steps after which these trainings were saved."""


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict[str, Any]:
    """What the program has told of all cases."""
    folder = tmp_path_factory.mktemp("lives")
    ended = forks.python("-m", "tests.resuming.interruptions", folder, env=killed_environment(), timeout=600)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def lives(told) -> dict[str, Any]:
    """What the lives of each case have told."""
    return told["lives"]


@pytest.mark.parametrize("case", SAVED)
def test_the_step_is_finished_and_saved_and_the_exit_code_asks_for_another_start(case, lives):
    life, newest = lives[case], f"step_{SAVED[case]:08d}"
    assert life["error"] == f"SystemExit: {BackupAndRestore.EXIT_CODE}" and BackupAndRestore.EXIT_CODE == 75
    assert life["step"] == SAVED[case]
    assert life["there"][-1] == newest
    name = CASES[case]["send"][0]
    assert f"BackupAndRestore: {name}, saved" in life["said"] and f"{newest}; start the program again" in life["said"]


def test_the_program_ends_with_that_code(lives):
    assert lives["SIGTERM in a step"]["code"] == 75


@pytest.mark.parametrize("case", [*SAVED, "SIGTERM twice", "SIGINT twice", "SIGTERM in the save", "SIGINT in the save"])
def test_started_again_the_result_is_that_of_a_training_without_signals(case, told):
    again = told["started again"][case]
    assert "resuming from" in again["said"]
    assert again["result"] == told["lives"]["nothing"]["result"]


def test_a_slow_callback_is_not_disturbed(lives):
    assert lives["in a slow callback"]["has slept"]


@pytest.mark.parametrize("case", ["SIGTERM twice", "SIGTERM in the save", "SIGTERM without the callback"])
def test_the_second_sigterm_ends_it_at_once_and_without_the_callback_the_first(case, lives):
    assert lives[case] == {"code": -signal.SIGTERM}


@pytest.mark.parametrize("case", ["SIGINT twice", "SIGINT in the save"])
def test_the_second_ctrl_c_ends_it_at_once(case, lives):
    life = lives[case]
    assert life["error"].startswith("KeyboardInterrupt")
    assert "saved" not in life["said"]
    assert life["there"] and "step_00000007" not in life["there"]


def test_without_the_callback_ctrl_c_does_what_it_always_does(lives):
    life = lives["SIGINT without the callback"]
    assert life["error"].startswith("KeyboardInterrupt")
    assert life["step"] == 7


@pytest.mark.parametrize("case", ["SIGINT in the save", "SIGINT without the callback"])
def test_a_program_that_ctrl_c_ends_says_so(case, lives):
    assert lives[case]["code"] == -signal.SIGINT


def test_a_sigterm_handler_of_the_users_own_is_left_alone(lives):
    life = lives["a handler of the user's own"]
    assert life["heard"] == [signal.SIGTERM]
    assert life["result"] == lives["nothing"]["result"]


def test_in_another_thread_it_trains_and_sets_no_handlers(lives):
    life = lives["in another thread"]
    assert life["there"]
    assert life["result"] == lives["nothing"]["result"]


def test_handlers_are_back_after_training_however_it_ends(lives):
    assert lives["an error"]["error"] == "ValueError: of the user's own"
    ended = {name: life["handlers are back"] for name, life in lives.items() if "step" in life}
    assert len(ended) == len(CASES) - 3 and all(ended.values())
