"""What processes tell each other; threads stand for them here, and a dict for JAX's service."""

import itertools
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from keras_dist.errors import CheckpointError, ClusterError, KerasDistError, ProcessAbsentError
from keras_dist.jobs import job, rendezvous
from keras_dist.jobs.rendezvous import Rendezvous

PROCESSES = 3


class Service:
    """What the client of a job offers."""

    def __init__(self):
        self.values = {}
        self.changed = threading.Condition()

    def key_value_set_bytes(self, key, value):
        with self.changed:
            assert key not in self.values
            self.values[key] = value
            self.changed.notify_all()

    def blocking_key_value_get_bytes(self, key, timeout_in_ms):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, timeout_in_ms / 1000):
                raise RuntimeError("DEADLINE_EXCEEDED: it is not there")
            return self.values[key]

    def key_value_set(self, key, value, allow_overwrite=False):
        with self.changed:
            self.values[key] = value

    def key_value_dir_get_bytes(self, key):
        with self.changed:
            return [(name, value.encode()) for name, value in self.values.items() if name.startswith(key)]

    def key_value_delete(self, key):
        with self.changed:
            for name in [name for name in self.values if name.startswith(key)]:
                del self.values[name]


class Numbers:
    """Those of each process, which are one after another."""

    def __init__(self, here):
        self.here, self.numbers = here, [itertools.count(7) for _ in range(PROCESSES)]

    def __next__(self):
        return next(self.numbers[self.here.process])


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def run(monkeypatch, service):
    """Runs a function of a rendezvous and the number of the process in all processes; exceptions are returned."""
    here = threading.local()
    monkeypatch.setattr(job, "process_count", lambda: PROCESSES)
    monkeypatch.setattr(job, "process_index", lambda: here.process)

    def run(function, absent=()):
        monkeypatch.setattr(rendezvous, "_numbers", Numbers(here))

        def of_process(process):
            here.process = process
            try:
                return function(Rendezvous("a test", service), process)
            except Exception as error:
                return error

        there = [process for process in range(PROCESSES) if process not in absent]
        with ThreadPoolExecutor(len(there)) as threads:
            return [*threads.map(of_process, there)]

    return run


def test_each_is_told_what_all_have(run):
    assert (
        run(lambda job, process: job.each(lambda: {"process": process}))
        == [[{"process": 0}, {"process": 1}, {"process": 2}]] * 3
    )


def test_the_first_one_acts_alone(run):
    acted = []

    def act(job, process):
        return [job.first(lambda number=number: acted.append(process) or f"round {number}") for number in range(3)]

    assert run(act) == [["round 0", "round 1", "round 2"]] * 3
    assert acted == [0, 0, 0]


def test_what_was_said_is_forgotten_but_for_the_last_round(run, service):
    run(lambda job, process: [job.each(lambda: None) for _ in range(5)])
    assert sorted(service.values) == [f"keras_dist/7/4/{process}" for process in range(3)]


@pytest.mark.parametrize("failing", range(PROCESSES))
@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device", "a/b"),
        CheckpointError("it is damaged", given="a file", problems=("record.json",)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_one_raises_all_raise(run, failing, error):
    def fail(job, process):
        if process == failing:
            raise error

    for process, found in enumerate(run(lambda job, process: job.each(lambda: fail(job, process)))):
        assert type(found) is type(error)
        assert str(found) == str(error)
        assert vars(found).get("problems") == vars(error).get("problems")
        notes = getattr(found, "__notes__", [])
        assert notes == ([] if process == failing else [f"in process {failing} of 3"])


def test_they_go_on_after_a_failure(run):
    def fail_and_go_on(job, process):
        with pytest.raises(KerasDistError):
            job.first(lambda: _raise(CheckpointError("no")))
        return job.each(lambda: process)

    assert run(fail_and_go_on) == [[0, 1, 2]] * 3


class Odd(Exception):
    def __init__(self, *, needed):
        super().__init__(needed)


def test_errors_that_cannot_be_made_again_are_described(run):
    own, *others = run(lambda job, process: job.first(lambda: _raise(Odd(needed="this"))))
    assert isinstance(own, Odd)
    for found in others:
        assert isinstance(found, ClusterError)
        assert "Odd('this')" in str(found)


ERROR = {"name": "ValueError", "args": ["a"], "fields": {}, "text": "a", "notes": []}
FORGED = {
    "no JSON": b"\x80\xff",
    "endless": b"[" * 2**20,
    "too large": json.dumps(["a test", "a" * 2**24, None]).encode(),
    "another form": b'{"about": "a test"}',
    "about nothing": b"[[], 1, null]",
    "another type": b'["a test", {"a": 1}, null]',
    "an error of numbers": json.dumps(["a test", 1, ERROR | {"notes": [1]}]).encode(),
    "arguments it does not take": json.dumps(["a test", 1, ERROR | {"fields": {"a": "b"}}]).encode(),
    "a summary that is no text": json.dumps(["a test", 1, ERROR | {"name": "MeshError", "args": [1]}]).encode(),
    "half an error": b'["a test", 1, {"name": "ValueError"}]',
}


@pytest.mark.parametrize("content", FORGED.values(), ids=FORGED)
def test_forged_values_are_an_error(run, service, content):
    service.values["keras_dist/7/0/1"] = content
    for found in run(lambda job, process: job.each(lambda: "text", str), absent=(1,)):
        assert isinstance(found, ClusterError)
        assert "of process 1 in JAX's key-value store was not written by a process of this job" in str(found)


def test_classes_that_are_not_registered_are_not_made(run, service, tmp_path):
    told = ERROR | {"name": "subprocess.CalledProcessError", "text": "no luck"}
    service.values["keras_dist/7/0/1"] = json.dumps(["a test", 1, told]).encode()
    for error in run(lambda job, process: job.each(lambda: 1), absent=(1,)):
        assert isinstance(error, ClusterError)
        assert str(error) == "a process of the job has raised subprocess.CalledProcessError: no luck"


def test_whose_place_is_taken_says_so_and_is_not_waited_for(run, service, monkeypatch):
    monkeypatch.setattr(service, "key_value_set_bytes", lambda key, value: _raise(RuntimeError("ALREADY_EXISTS")))
    assert all("a value that was there" in error.given for error in run(lambda job, process: job.each(lambda: 1)))
    assert sorted(service.values) == [f"keras_dist/7/given_up/{process}" for process in range(PROCESSES)]


def test_a_process_that_does_not_come_is_named(run, monkeypatch):
    monkeypatch.setattr(rendezvous.heartbeat, "LONGEST_WAIT_S", 0)
    monkeypatch.setattr(rendezvous, "_POLL_MS", 200)
    found = run(lambda job, process: job.each(lambda: process), absent=(1,))
    assert [type(error) for error in found] == [ProcessAbsentError] * 2
    assert all("process 1 did not reach the barrier: a test" in str(error) for error in found)


def test_who_has_left_the_job_is_not_waited_for(run, monkeypatch):
    monkeypatch.setattr(rendezvous, "_POLL_MS", 200)
    monkeypatch.setattr(
        rendezvous.heartbeat.Monitor, "state_of", lambda self, process: "left" if process == 1 else None
    )
    for error in run(lambda job, process: job.each(lambda: process), absent=(1,)):
        assert isinstance(error, ClusterError)
        assert "its program has finished" in error.given


def test_what_waits_says_so(run, monkeypatch, capfd):
    monkeypatch.setattr(rendezvous.heartbeat, "LONGEST_WAIT_S", 0.5)
    monkeypatch.setattr(rendezvous, "_POLL_MS", 100)
    monkeypatch.setattr(rendezvous, "_REPORT_EVERY_S", 0.1)
    run(lambda job, process: job.each(lambda: process), absent=(1, 2))
    assert re.match(r"keras_dist: process 0 of 3 waits for process 1 since \d+ s: a test\n", capfd.readouterr().err)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("how", ["it says so", "it is interrupted"])
def test_who_gives_up_is_not_waited_for(run, how):
    def leave(job, process):
        if process != 1:
            return job.each(lambda: process)
        if how == "it says so":
            return job.give_up(ValueError("no more"))
        with pytest.raises(KeyboardInterrupt):
            job.each(lambda: _raise(KeyboardInterrupt("no more")))

    first, gone, last = run(leave)
    assert gone is None
    for error in (first, last):
        assert isinstance(error, ClusterError)
        assert "process 1 did not reach the barrier: a test" in str(error)
        assert "it has given up" in error.given and "no more" in error.given


def test_processes_that_speak_of_different_things_are_told(run, service):
    def meet(job, process):
        return Rendezvous("a save" if process else "a load", service).each(lambda: process)

    for error in run(meet):
        assert isinstance(error, ClusterError)
        assert "process 0: 'a load', process 1: 'a save', process 2: 'a save'" in error.given


def test_other_failures_of_the_service_are_not_hidden(run, service, monkeypatch):
    monkeypatch.setattr(service, "blocking_key_value_get_bytes", lambda key, ms: _raise(RuntimeError("UNAVAILABLE")))
    assert all("UNAVAILABLE" in str(error) for error in run(lambda job, process: job.each(lambda: process)))


def test_alone_it_only_calls():
    value = object()  # which cannot be pickled as itself
    job = Rendezvous()
    assert job.first(lambda: value) is value
    assert job.each(lambda: value) == [value]
    with pytest.raises(Odd):
        job.each(lambda: _raise(Odd(needed="this")))


def _raise(error):
    raise error
