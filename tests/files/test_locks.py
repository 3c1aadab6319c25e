"""One writer of a directory; a killed one is none."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest

from keras_dist.errors import CheckpointError
from keras_dist.files.locks import NAME, Lock, holder_of

HOLD = """
import pathlib, sys, time
from keras_dist.files.locks import Lock
lock = Lock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_one_in_this_process_is_refused(tmp_path):
    lock = Lock(tmp_path)
    with pytest.raises(CheckpointError, match=r"is busy") as raised:
        Lock(tmp_path)
    assert f"process {os.getpid()} on " in raised.value.given
    lock.release()
    lock.release()
    assert not any(tmp_path.iterdir())
    Lock(tmp_path).release()


@pytest.mark.multiprocess
def test_another_process_is_refused_with_owner_and_age_until_it_is_killed(tmp_path, holder):
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"is busy") as raised:
            Lock(tmp_path)
    assert f"process {holder.pid} on " in raised.value.given
    assert " UTC, " in raised.value.given
    assert raised.value.given.endswith(" s")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / NAME).exists()
    Lock(tmp_path).release()


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"pid": 1}', '{"since": 3}'])
def test_a_stale_file_of_whatever_content_is_taken_over(tmp_path, content):
    (tmp_path / NAME).write_text(content)
    lock = Lock(tmp_path)
    assert str(os.getpid()) in (tmp_path / NAME).read_text()
    lock.release()
    assert not (tmp_path / NAME).exists()


def test_a_file_in_the_place_of_the_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file"):
        Lock(tmp_path / "file")


def test_a_holder_that_lets_go_between_opening_and_locking_is_no_holder(tmp_path, monkeypatch):
    first, flock = Lock(tmp_path), fcntl.flock

    def let_go(*arguments):
        monkeypatch.undo()
        first.release()
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", let_go)
    second = Lock(tmp_path)
    with pytest.raises(CheckpointError, match="is busy"):
        Lock(tmp_path)
    second.release()


def test_releasing_does_not_remove_the_lock_of_another_one(tmp_path):
    first = Lock(tmp_path)
    (tmp_path / NAME).unlink()
    second = Lock(tmp_path)
    first.release()
    assert (tmp_path / NAME).exists()
    second.release()


def test_where_the_file_system_has_no_locks_nobody_is_refused(tmp_path, monkeypatch):
    before = len(os.listdir("/proc/self/fd"))
    for error in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
        monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(error, os.strerror(error))))
        locks = [Lock(tmp_path), Lock(tmp_path)]
        assert str(os.getpid()) in holder_of(tmp_path).text
        for lock in locks:
            lock.release()
        assert not any(tmp_path.iterdir())
    assert len(os.listdir("/proc/self/fd")) == before
