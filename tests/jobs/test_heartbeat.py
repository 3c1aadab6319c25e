"""A process that dies, hangs or raises ends the others, with the reason."""

import dataclasses
import itertools
import signal
import threading
import types

import pytest

from keras_dist.errors import ClusterError
from keras_dist.jobs import heartbeat
from keras_dist.jobs.collective_log import CollectiveLog, difference
from keras_dist.jobs.heartbeat import FAILED, LEFT, RUNNING, Heartbeat, JobMonitor


class Ended(Exception):
    pass


@pytest.fixture
def beats(monkeypatch):
    """The beats of process 0 of 3, without a coordinator."""
    monkeypatch.setattr(heartbeat.jax_runtime, "job_client", lambda: None)
    monkeypatch.setattr(heartbeat.jax_runtime, "place_in_job", lambda: (0, 3))
    monkeypatch.setattr(heartbeat.jax_runtime, "backend_started", lambda: True)
    job = JobMonitor(heartbeat_timeout_s=7, shutdown_timeout_s=1, hang_timeout_s=5)

    def end(blamed, reason):
        raise Ended(f"process {blamed} of 3 {reason}")

    monkeypatch.setattr(job, "_end", end)
    monkeypatch.setattr(job, "_beat", lambda *said: setattr(job, "_mine", Heartbeat(1, *(said or [job._mine.state]))))
    return job


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '["1", "running", ""]',
        '[1, "dead", ""]',
        '[1, "running", 2]',
        '[1, "running", "", 2]',
        '[1, "running", "", 2, "", 1, 2]',
        "[" * 5000,
        "9" * 5000,
        "\udc80",
    ],
)
def test_what_no_process_has_said_is_a_failure(text):
    beat = Heartbeat.decode(text.encode(errors="surrogateescape"))
    assert beat.state == FAILED
    assert "no process of a job" in beat.why


def test_beats_are_read_as_they_were_written():
    acts = CollectiveLog("a save").then("evaluate").then("\N{SNOWMAN}" * 200)
    for _ in range(10):
        assert Heartbeat.decode(Heartbeat(6, acts=acts).encode().encode()) == Heartbeat(6, acts=acts)
        acts = acts.then("\N{SNOWMAN}" * 200)
    for beat in (Heartbeat(), Heartbeat(7, LEFT), Heartbeat(8, FAILED, "ValueError: '" + "x" * 300 + "'")):
        assert Heartbeat.decode(beat.encode().encode()) == beat
    assert len(Heartbeat(1, FAILED, "\N{SNOWMAN}" * 10_000).encode()) < heartbeat._LIMIT_CHARACTERS * 2


def test_silence_is_death_but_not_of_one_that_has_left(beats):
    beats._look([(1, Heartbeat(1)), (2, Heartbeat(5, LEFT))], 0.0)
    beats._look([(1, Heartbeat(2)), (2, Heartbeat(5, LEFT))], 6.0)
    beats._look([(1, Heartbeat(2)), (2, Heartbeat(5, LEFT))], 12.9)
    with pytest.raises(
        Ended, match=r"process 1 of 3 has exited or hangs: silent for 7 s; .* raise heartbeat_timeout_s"
    ):
        beats._look([(1, Heartbeat(2)), (2, Heartbeat(5, LEFT))], 13.0)


def test_a_process_whose_connection_is_closed_has_exited(beats):
    said = [(1, Heartbeat(1)), (2, Heartbeat(5, LEFT))]
    beats._look(said, 0.0)
    beats._exited = {1, 2}
    beats._look(said, 2.9)  # who has noticed the same end exits, too
    with pytest.raises(Ended, match="process 1 of 3 has exited: its connection is closed"):
        beats._look(said, 3.0)


def test_the_time_in_which_a_process_was_stopped_is_not_silence_of_the_others(beats, monkeypatch):
    clock = iter([0.0, 1.0, 2.0, 100.0, 101.0])  # all processes of the job were stopped for 98 s
    monkeypatch.setattr(heartbeat, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    looks, stops = [], iter([False] * 4 + [True])
    replaced = {
        "_connect": lambda: None,
        "_watch": lambda: None,
        "_read": lambda: [(1, Heartbeat(1)), (2, Heartbeat(1))],
        "_stopped": types.SimpleNamespace(wait=lambda seconds: next(stops)),
        "_look": lambda said, now: looks.append(now),
    }
    for name, value in replaced.items():
        monkeypatch.setattr(beats, name, value)
    beats._watched, beats._last_step = 0.0, 0.5
    beats._run()
    assert looks == [1.0, 2.0, 4.0, 5.0]
    assert (beats._answered, beats._last_step) == (101.0, 96.5)  # the step had 4.5 s


def test_a_suspension_is_not_silence_of_the_service(beats, monkeypatch):
    clock = iter([1.0, 99.0, 100.0, 107.0, 109.0])
    monkeypatch.setattr(heartbeat, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    beats._answered = beats._watched = 0.0
    stops = iter([False] * 3 + [True, False])
    monkeypatch.setattr(beats, "_stopped", types.SimpleNamespace(wait=lambda seconds: next(stops)))
    beats._watch()
    assert beats._answered == 96.0  # 98 s, of which 2 count
    beats._watched = 105.0  # the threads ran
    with pytest.raises(Ended, match="has lost its coordination service"):
        beats._watch()


@pytest.mark.parametrize(("saved", "steps", "code"), [(None, None, 1), ("nothing yet", None, 1), ("step_7", 7, 75)])
def test_only_a_job_that_has_saved_since_its_start_asks_for_a_restart(beats, monkeypatch, saved, steps, code):
    monkeypatch.undo()
    monkeypatch.setattr(beats, "_exit", lambda blamed, reason, told, code: (_ for _ in ()).throw(Ended(told, code)))
    beats.note_save(saved, steps)
    with pytest.raises(Ended) as ended:
        beats._end(1, "hangs")
    told = {None: "nothing is saved", "nothing yet": "nothing since this start; remove the cause, or save more often"}
    assert ended.value.args[1] == code and told.get(saved, "saved: step_7; start the job again") in ended.value.args[0]


def test_a_failure_ends_the_others_but_not_those_that_fail_themselves(beats):
    failed = [(1, Heartbeat(1)), (2, Heartbeat(3, FAILED, "ValueError: 'no disk'"))]
    beats._look(failed, 0.0)
    with pytest.raises(Ended, match="process 2 of 3 has failed: ValueError: 'no disk'"):
        beats._look(failed, 4.0)
    beats.fail(ValueError("the same"))
    beats._look(failed, 4.5)
    with beats.steps(
        "fit", is_shared=False
    ):  # the program has caught the error and trains again, which process 2 does not
        assert beats._mine.state == RUNNING
        beats._look([(1, Heartbeat(2)), failed[1]], 6.9)  # it may be about to
        with pytest.raises(Ended, match="process 2 of 3 has exited or hangs"):
            beats._look([(1, Heartbeat(3)), failed[1]], 7.0)


def test_one_that_has_left_ends_those_that_wait_for_it(beats):
    left = [(1, Heartbeat(1)), (2, Heartbeat(3, LEFT))]
    beats._look(left, 0.0)
    beats._look([(1, Heartbeat(2)), left[1]], 5.0)
    beats._lost = True  # a collective has failed
    with pytest.raises(Ended, match="process 2 of 3 has ended its program before the others"):
        beats._look([(1, Heartbeat(3)), left[1]], 6.0)


def test_one_that_leaves_before_all_have_started_jax_ends_the_others(beats, monkeypatch):
    monkeypatch.setattr(heartbeat.jax_runtime, "backend_started", lambda: False)
    left = [(1, Heartbeat(1, LEFT)), (2, Heartbeat(3))]
    beats._look(left, 0.0)
    with pytest.raises(Ended, match="process 1 of 3 has ended its program before the others"):
        beats._look(left, 4.0)


def test_the_one_hangs_that_has_done_fewer_steps(beats, monkeypatch):
    monkeypatch.setattr(heartbeat.faulthandler, "dump_traceback", lambda: None)
    with beats.steps("fit", is_shared=False):
        beats.note_step()
        beats._look([(1, Heartbeat(1, steps=1)), (2, Heartbeat(1, steps=0))], 0.0)
        with pytest.raises(Ended, match="process 2 of 3 hangs: no step"):
            beats._look_at_steps(beats._last_step + 6)


def test_processes_differ_where_the_same_act_is_another_one_not_where_one_is_further():
    common = CollectiveLog("the last exchange").then("training step 1 of fit")
    further = common.then("training step 2 of fit").then("training step 3 of fit")
    assert difference(common, further) is None
    ended = common.then("the end of fit")
    told = ("training step 1 of fit", "the end of fit", "training step 2 of fit")
    assert difference(ended.then("evaluate"), further) == told
    assert difference(CollectiveLog("another exchange").then("fit"), further) is None
    assert difference(CollectiveLog(common.since), common) is None
    for _ in range(20):  # so far ahead is only who waits for nobody
        further = further.then("training step")
    assert difference(common, further) is None


def test_acts_are_counted_from_the_last_exchange_that_came_about(beats):
    with pytest.raises(ClusterError), beats.meeting("fit", "1"):
        raise ClusterError("one has another batch size")
    assert beats._acts == CollectiveLog()
    with beats.meeting("fit", "2"):
        assert beats._acts.last == ("fit",)
    with beats.steps("fit", is_shared=True):
        beats.note_shared_steps("training", 1)
        with beats.steps("evaluate", is_shared=True):  # in a callback
            beats.note_shared_steps("evaluation", 1)
        beats.note_shared_steps("training", 4)
    fit = "training step 1 of fit", "evaluation step 1 of evaluate", "the end of evaluate"
    assert beats._acts == CollectiveLog("2", 5, (*fit, "training steps 2 to 5 of fit", "the end of fit"))
    thread = threading.Thread(target=beats.note_act, args=["a save in a thread"])
    thread.start()
    thread.join()
    assert beats._acts.count == 5
    with beats.steps("fit", is_shared=False):  # of a model on devices of this process
        pass
    assert beats._acts.count == 5


def test_those_that_do_different_things_end_but_not_at_once(beats, monkeypatch):
    monkeypatch.setattr(beats, "_exit", lambda _, differ, told, code: (_ for _ in ()).throw(Ended(told, code)))
    beats._mine = Heartbeat(1, acts=CollectiveLog("1").then("fit"))
    other = Heartbeat(1, acts=CollectiveLog("1").then("evaluate"))
    beats._look_at_acts([(1, other)], 0.0)
    beats._look_at_acts([(1, Heartbeat(2, acts=CollectiveLog("2")))], 2.0)  # they have told each other in the meantime
    beats._look_at_acts([(1, other)], 3.0)
    beats._look_at_acts([(1, other)], 6.9)
    beats._look_at_acts([(1, dataclasses.replace(other, state=FAILED))], 6.9)  # whose reason is told
    beats._look_at_acts([(1, other)], 7.0)
    with pytest.raises(Ended, match="process 0 comes to fit, and process 1 to evaluate; make the same") as ended:
        beats._look_at_acts([(1, other)], 11.0)
    assert ended.value.args[1] == 1


def test_the_first_process_waits_for_the_others_at_its_end_and_says_so(beats, monkeypatch, capfd):
    monkeypatch.setattr(heartbeat, "_REPORT_EVERY_S", 0.05)
    monkeypatch.setattr(heartbeat.jax_runtime, "leave_job", lambda: None)
    said = itertools.chain(
        [[(1, Heartbeat(1)), (2, Heartbeat(1, LEFT))]] * 3, itertools.repeat([(1, Heartbeat(2, LEFT))])
    )
    monkeypatch.setattr(beats, "_read", lambda: next(said))
    beats._thread = threading.Thread(target=int)
    beats._thread.start()
    beats.leave()
    assert "process 0 has finished, and waits for process 1\n" in capfd.readouterr().err
    assert next(said) == [(1, Heartbeat(2, LEFT))]  # until they had left


def test_an_agreed_end_is_no_failure(beats):
    beats.fail(SystemExit(128 + signal.SIGTERM))
    assert beats._mine.state == RUNNING
    beats.fail(SystemExit(1))
    assert beats._mine.state == FAILED


def test_waits_outside_of_steps_are_limited_too(beats, monkeypatch):
    monkeypatch.setattr(heartbeat.faulthandler, "dump_traceback", lambda: None)
    for hang_timeout_s, limit_s in ((5, 5), (None, heartbeat.LONGEST_WAIT_S)):
        beats.hang_timeout_s = hang_timeout_s
        with beats.waiting():
            beats._look_at_steps(beats._last_step + limit_s - 1)
            with pytest.raises(Ended, match="process 0 of 3 hangs: no step for"):
                beats._look_at_steps(beats._last_step + limit_s + 1)
            with beats.meeting("an exchange", "1"):
                beats._last_step = 0.0
            assert beats._last_step  # which is progress
    beats._look_at_steps(1e9)
    with beats.steps("fit", is_shared=False):  # which may take any time, as the time-out says
        with beats.waiting():
            pass
        beats._look_at_steps(1e9)


def test_the_first_collective_over_some_devices_has_the_time_to_join_in(beats, monkeypatch):
    monkeypatch.setattr(heartbeat.faulthandler, "dump_traceback", lambda: None)
    monkeypatch.setattr(beats, "_exit", lambda _, reason, told, code: (_ for _ in ()).throw(Ended(told, code)))
    monkeypatch.setattr(beats, "_join_timeout_s", 3)
    with beats.connecting(frozenset([1, 2])) as is_first:
        beats._look_at_steps(beats._last_step + 2)
        with pytest.raises(Ended, match="not connected for their first collective within 3 s") as ended:
            beats._look_at_steps(beats._last_step + 4)
        assert is_first and ended.value.args[1] == 1
    with beats.connecting(frozenset([1, 2])) as is_first:
        assert not is_first
    with pytest.raises(ValueError, match="Gloo"), beats.connecting(frozenset([1, 3])):
        raise ValueError("Gloo")
    with beats.connecting(frozenset([1, 3])) as is_first:
        assert is_first


def test_no_step_for_long_is_a_hang(beats, monkeypatch):
    monkeypatch.setattr(heartbeat.faulthandler, "dump_traceback", lambda: None)
    beats._look_at_steps(1e9)  # no steps run
    with beats.steps("fit", is_shared=False):
        now = beats._last_step
        beats._look_at_steps(now + 5)
        with pytest.raises(Ended, match="process 0 of 3 hangs: no step for 6 s"):
            beats._look_at_steps(now + 6)
    assert beats._mine.state == FAILED
    beats._look_at_steps(1e9)
