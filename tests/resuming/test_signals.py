"""SIGTERM and Ctrl-C in real processes: a training is saved and goes on later, or ends as any other program."""

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from keras_dist.callbacks import BackupAndRestore
from tests.processes import killed_environment
from tests.resuming.interruptions import CASES

SAVED = {
    "SIGTERM in a step": 7,
    "SIGINT in a step": 7,
    "while compiling": 1,
    "in validation": 10,
    "in a slow callback": 15,
}
"""The steps after which these trainings were saved."""


@pytest.fixture(scope="module")
def lives(tmp_path_factory) -> dict[str, Any]:
    """What the lives of each case have told."""
    folder = tmp_path_factory.mktemp("lives")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.resuming.interruptions", str(folder)],
        env=killed_environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", SAVED)
def test_the_step_is_finished_and_saved_and_the_exit_code_asks_for_another_start(case, lives):
    life, newest = lives[case], f"step_{SAVED[case]:08d}"
    assert life["code"] == BackupAndRestore.EXIT_CODE == 75
    assert life["step"] == SAVED[case]
    assert life["there"][-1] == newest
    name = CASES[case]["send"][0]
    assert f"BackupAndRestore: {name}, saved" in life["said"] and f"{newest}; start the program again" in life["said"]


@pytest.mark.parametrize("case", [*SAVED, "SIGTERM twice", "SIGINT twice", "SIGTERM in the save", "SIGINT in the save"])
def test_started_again_the_result_is_that_of_a_training_without_signals(case, lives):
    after = lives[case]["after"]
    assert after["code"] == 0 and after["begun"]
    undisturbed = "nothing, watched in validation" if case == "in validation" else "nothing"
    assert after["result"] == lives[undisturbed]["result"]
    assert "going on with" in after["said"]


def test_a_slow_callback_is_not_disturbed(lives):
    assert lives["in a slow callback"]["has slept"]


@pytest.mark.parametrize("case", ["twice", "in the save"])
def test_the_second_signal_ends_it_at_once(case, lives):
    terminated, interrupted = lives[f"SIGTERM {case}"], lives[f"SIGINT {case}"]
    assert terminated["code"] == -signal.SIGTERM and "step" not in terminated
    assert interrupted["code"] == -signal.SIGINT and interrupted["error"].startswith("KeyboardInterrupt")
    assert "saved" not in interrupted["said"]
    assert interrupted["there"] and "step_00000007" not in interrupted["there"]


def test_without_the_callback_signals_do_what_they_always_do(lives):
    terminated, interrupted = lives["SIGTERM without the callback"], lives["SIGINT without the callback"]
    assert terminated["code"] == -signal.SIGTERM and "step" not in terminated
    assert interrupted["code"] == -signal.SIGINT and interrupted["error"].startswith("KeyboardInterrupt")
    assert interrupted["step"] == 7


def test_a_sigterm_handler_of_the_users_own_is_left_alone(lives):
    life = lives["a handler of the user's own"]
    assert life["code"] == 0 and life["heard"] == [signal.SIGTERM]
    assert life["result"] == lives["nothing"]["result"]


def test_in_another_thread_it_trains_and_sets_no_handlers(lives):
    life = lives["in another thread"]
    assert life["code"] == 0 and life["there"]
    assert life["result"] == lives["nothing"]["result"]


def test_handlers_are_back_after_training_however_it_ends(lives):
    assert lives["an error"]["error"] == "ValueError: of the user's own"
    ended = {name: life["handlers are back"] for name, life in lives.items() if "step" in life}
    assert len(ended) == len(CASES) - 3 and all(ended.values())
