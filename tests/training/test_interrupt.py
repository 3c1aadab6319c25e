"""Ctrl-C ends training between two steps, and the model stays usable."""

import signal
import textwrap
import threading

import numpy as np
import pytest
from jax.core import Tracer

import keras_dist as kd
from keras_dist.training import loop
from keras_dist.training.loop import interrupt_between_steps
from tests import forks, layouts
from tests.networks import LOSS, Plain, blobs
from tests.soak import LARGE, repeated

X, Y = blobs(40)


@pytest.fixture(autouse=True)
def handler():
    """That of Python, which a shell takes away from what it runs in the background."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture(scope="module")
def model():
    model = layouts.model_on("data=4,model=2", Plain)
    model.compile("adam", loss=LOSS)
    return model


class Press(kd.callbacks.Callback):
    """Presses Ctrl-C in one of the hooks."""

    def __init__(self, hook, batch=1):
        super().__init__()
        self.pressed = False
        self.batch = batch
        setattr(self, hook, self.press)

    def press(self, *args):
        of_a_batch = len(args) == 2
        if not self.pressed and (not of_a_batch or args[0] == self.batch):
            self.pressed = True
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("hook", "steps"),
    [("on_train_begin", 1), ("on_train_batch_begin", 2), ("on_train_batch_end", 2), ("on_train_end", 5)],
)
def test_fit_ends_after_the_step_in_which_it_was_pressed(model, hook, steps):
    before = int(model.state.step)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=[Press(hook)])
    assert int(model.state.step) == before + steps
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert np.isfinite(model.fit(X, Y, verbose=0).history["loss"][0])


@pytest.mark.parametrize("use", ["evaluate", "predict"])
def test_evaluation_and_prediction_end_too(model, use):
    hook = {"evaluate": "on_test_batch_end", "predict": "on_predict_batch_end"}[use]
    with pytest.raises(KeyboardInterrupt):
        getattr(model, use)(*((X,) if use == "predict" else (X, Y)), batch_size=8, verbose=0, callbacks=[Press(hook)])
    model.train_on_batch(X, Y)


def test_a_handler_of_the_users_own_is_left_alone(model):
    pressed = []
    previous = signal.signal(signal.SIGINT, lambda *args: pressed.append(args))
    try:
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=[Press("on_train_batch_end")])
    finally:
        own = signal.signal(signal.SIGINT, previous)
    assert len(pressed) == 1 and own is not signal.default_int_handler


def test_pressed_on_and_on_the_way_out_it_is_raised_at_the_end():
    left = []
    with pytest.raises(KeyboardInterrupt), interrupt_between_steps() as check:
        try:
            signal.raise_signal(signal.SIGINT)
            check()
        finally:
            for _ in range(3):
                signal.raise_signal(signal.SIGINT)
            left.append("undisturbed")
    assert left


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_where_python_swallows_it_it_is_raised_after_the_step(model):
    class Swallowing:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            pytest.fail("the second press was only noted")

    def drop(batch, logs):
        kept.clear()

    before = int(model.state.step)
    kept = [Swallowing()]
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=[kd.callbacks.LambdaCallback(on_train_batch_begin=drop)])
    assert not kept and int(model.state.step) == before + 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_training_that_goes_on_after_a_ctrl_c_hears_the_next_one(model):
    """Inside of an `except KeyboardInterrupt`, the exception that is handled is not one on its way out."""
    try:
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=[Press("on_train_batch_end")])
    except KeyboardInterrupt:
        before = int(model.state.step)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, Y, batch_size=8, verbose=0, callbacks=[Press("on_train_batch_end")])
        assert int(model.state.step) == before + 2


@pytest.mark.parametrize("hook", ["on_train_batch_begin", "on_test_batch_end"])
def test_pressed_twice_in_a_callback_it_ends_it_and_the_step_is_whole(model, hook):
    class Twice(kd.callbacks.Callback):
        def press(self, batch, logs=None):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            pytest.fail("the second press was only noted")

    callback = Twice()
    setattr(callback, hook, callback.press)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, batch_size=8, verbose=0, validation_data=(X, Y), callbacks=[callback])
    model.train_on_batch(X, Y)


def test_an_evaluation_in_a_callback_ends_with_the_fit(model):
    class Look(kd.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            signal.raise_signal(signal.SIGINT)
            self.model.evaluate(X, Y, batch_size=8, verbose=0)
            pytest.fail("the evaluation did not stop")

    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, verbose=0, callbacks=[Look()])


def test_pressed_between_dispatch_and_storing_the_step_counts(model, monkeypatch):
    before = int(model.state.step)
    compiled = model._built.step_runner._compiled
    train = compiled.train

    def pressing(*arguments):
        run = train(*arguments)

        def run_and_press():
            results = run()
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            return results

        return run_and_press

    monkeypatch.setattr(compiled, "train", pressing)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=[Press("on_train_batch_end", batch=-1)])
    assert int(model.state.step) == before + 1


def test_pressed_twice_while_a_step_is_compiled_nothing_is_lost(model):
    before = int(model.state.step)

    def loss(y_true, y_pred):
        if isinstance(y_pred, Tracer) and armed:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return LOSS(y_true, y_pred)

    armed = []
    model.compile("adam", loss=loss)
    model.evaluate(X, Y, verbose=0)
    armed.append(True)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, batch_size=8, verbose=0)
    armed.clear()
    assert int(model.state.step) == 0 != before
    assert np.isfinite(model.fit(X, Y, batch_size=8, verbose=0).history["loss"][0])


def test_outside_of_the_main_thread_no_handler_is_set():
    handlers = []

    def run():
        with interrupt_between_steps() as check:
            handlers.append(signal.getsignal(signal.SIGINT))
            check()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


@pytest.fixture
def sigterm():
    """As at the start of a program."""
    previous = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, previous)


def leave_with(left):
    def leave(signum):
        left.append(signum)
        raise SystemExit(75)

    return leave


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("checked", [True, False])
def test_before_a_signal_ends_it_somebody_is_called_once(sigterm, signum, checked):
    """Also if it came after the last step."""
    left = []
    with pytest.raises(SystemExit) as ended, interrupt_between_steps(leave_with(left)) as check:
        assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGINT)
        signal.raise_signal(signum)
        assert not left
        if checked:
            check()
            pytest.fail("it was swallowed")
    assert left == [signum] and ended.value.code == 75
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_on_the_way_out_is_not_taken_for_a_reason_to_leave(sigterm):
    left = []
    with pytest.raises(ValueError, match="own"), interrupt_between_steps(leave_with(left)):
        raise ValueError("of the user's own")
    assert not left and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_who_returns_from_it_is_ended_by_the_signal(sigterm):
    with pytest.raises(SystemExit) as ended, interrupt_between_steps(lambda signum: None) as check:
        signal.raise_signal(signal.SIGTERM)
        check()
    assert ended.value.code == 128 + signal.SIGTERM


def test_an_evaluation_inside_leaves_as_the_training_around_it(sigterm):
    left = []
    with pytest.raises(SystemExit), interrupt_between_steps(leave_with(left)), interrupt_between_steps() as check:
        signal.raise_signal(signal.SIGTERM)
        check()
    assert left == [signal.SIGTERM]


def test_pressed_again_while_somebody_is_called_it_is_raised_at_once(sigterm):
    def leave(signum):
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second press was only noted")

    with pytest.raises(KeyboardInterrupt), interrupt_between_steps(leave) as check:
        signal.raise_signal(signal.SIGTERM)
        check()


def test_without_anybody_to_be_called_sigterm_is_left_alone(sigterm):
    with interrupt_between_steps():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_is_heard_where_ctrl_c_is_ignored(sigterm):
    """As in what a shell runs in the background; and a handler of the user's own stays."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    left = []
    with pytest.raises(SystemExit), interrupt_between_steps(leave_with(left)) as check:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.raise_signal(signal.SIGTERM)
        check()
    assert left == [signal.SIGTERM]


def test_a_sigterm_handler_of_the_users_own_stays(sigterm):
    heard = []
    own = lambda *arguments: heard.append(arguments)  # noqa: E731
    signal.signal(signal.SIGTERM, own)
    with interrupt_between_steps(leave_with([])) as check:
        signal.raise_signal(signal.SIGTERM)
        check()
    assert len(heard) == 1 and signal.getsignal(signal.SIGTERM) is own


@pytest.mark.parametrize("is_ignored", [False, True])
def test_in_a_job_all_end_at_the_points_of_shared_steps_alone(sigterm, monkeypatch, is_ignored):
    """Also where a shell has Ctrl-C ignored; what one process runs on its own inside has no points."""
    points, left = iter([False, True]), []
    monkeypatch.setattr(loop.job, "process_count", lambda: 2)
    monkeypatch.setattr(loop.job, "has_preemption_points", lambda: True)
    monkeypatch.setattr(loop.job, "reached_preemption_point", lambda: next(points))
    if is_ignored:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.raises(SystemExit), interrupt_between_steps(leave_with(left)) as check:
        check()
        with interrupt_between_steps() as check_alone:
            check_alone()
        with interrupt_between_steps(is_shared=True) as check_inside:
            check_inside()
            pytest.fail("all others have ended")
    assert left == [signal.SIGTERM]
    points = iter([False, True])
    with pytest.raises(SystemExit) as ended, interrupt_between_steps(is_shared=True) as check:
        check()
        check()
    assert ended.value.code == 128 + signal.SIGTERM


SCRIPT = """
    import os, random, signal, sys, threading, time
    import keras_dist as kd
    kd.use_cpu_devices(2)
    import numpy as np

    class Press(threading.Thread):
        '''Sends one or two real SIGINTs to this process after random times.'''
        def run(self):
            for longest in random.choice([(0.02,), (0.02, 0.0), (0.02, 0.003)]):
                time.sleep(random.uniform(0.0, longest))
                os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed(0)
    with kd.DataParallel().scope():
        model = kd.Sequential([kd.Input((1,)), kd.layers.Dense(1, use_bias=False)])
    x = np.ones((64, 1), np.float32)

    def fresh():
        # each step adds one to the only weight
        model.compile(kd.optimizers.SGD(1.0), loss=lambda y_true, y_pred: -y_pred.mean(-1))
        model.set_weights([np.zeros((1, 1))])

    def check():
        step = int(model.state.step)
        assert model.get_weights()[0].item() == step, (model.get_weights(), step)
        return step

    interrupted = steps = 0
    trials = int(sys.argv[1])
    for trial in range(trials):
        if trial % 50 == 0:
            fresh()
            before = 0
        press = Press()
        try:
            try:
                press.start()
                model.fit(x, batch_size=8, epochs=10**6, verbose=0)
            finally:
                press.join()
        except KeyboardInterrupt:
            interrupted += 1
        press.join()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        model.train_on_batch(x)
        after = check()
        assert after > before
        steps, before = steps + after - before, after
    assert steps > 5 * trials, steps
    print("interrupted", interrupted)
"""


@repeated
@pytest.mark.multiprocess
def test_real_interrupts_lose_no_step():
    trials = 200 if LARGE else 50
    done = forks.python("-c", textwrap.dedent(SCRIPT), trials, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"interrupted {trials}"
