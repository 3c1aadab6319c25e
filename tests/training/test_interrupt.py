"""Ctrl-C ends training between two steps, and the model stays usable."""

import signal
import subprocess
import sys
import textwrap
import threading

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.training.interrupt import interrupt_between_steps
from tests import layouts
from tests.networks import Plain, blobs

LOSS = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
X, Y = blobs(40)


@pytest.fixture(scope="module")
def model():
    with layouts.on("data=4,model=2").scope():
        model = kd.Model.from_nnx(Plain, seed=0)
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
    ("hook", "steps"), [("on_train_begin", 1), ("on_train_batch_begin", 2), ("on_train_batch_end", 2)]
)
def test_fit_ends_after_the_step_in_which_it_was_pressed(model, hook, steps):
    before = int(model.state.step)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=[Press(hook)])
    assert int(model.state.step) == before + steps
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert np.isfinite(model.fit(X, Y, verbose=0).history["loss"][0])


def test_pressed_after_the_last_step_it_is_not_swallowed(model):
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=[Press("on_train_end")])


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


def test_pressed_twice_it_is_raised_at_once():
    with pytest.raises(KeyboardInterrupt), interrupt_between_steps():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second press was only noted")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


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


SCRIPT = """
    import random, signal, sys, threading, time, os
    import keras_dist as kd
    kd.use_cpu_devices(4)
    import jax, numpy as np
    from tests.networks import Plain, blobs

    class Press(threading.Thread):
        '''Sends a real SIGINT to this process after a random time.'''
        def run(self):
            time.sleep(random.uniform(0.0, 0.06))
            os.kill(os.getpid(), signal.SIGINT)

    class Start(kd.callbacks.Callback):
        def on_train_begin(self, logs=None):
            Press().start()

    random.seed(0)
    with kd.DataParallel().scope():
        model = kd.Model.from_nnx(Plain, seed=0)
    model.compile("adam", loss=kd.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = blobs(8 * 2000)
    model.train_on_batch(x[:8], y[:8])
    interrupted = 0
    for trial in range(20):
        before = int(model.state.step)
        try:
            model.fit(x, y, batch_size=8, epochs=10**6, verbose=0, callbacks=[Start()])
        except KeyboardInterrupt:
            interrupted += 1
        assert int(model.state.step) >= before + 1
        assert all(not leaf.is_deleted() for leaf in jax.tree.leaves(model._session.cell.state))
        assert np.isfinite(model.train_on_batch(x[:8], y[:8]))
    print("interrupted", interrupted)
"""


@pytest.mark.multiprocess
def test_twenty_real_interrupts_lose_no_state():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "interrupted 20"


def test_a_step_that_fails_to_compile_leaves_the_state(model):
    before = int(model.state.step)
    with pytest.raises(TypeError):
        model.train_on_batch(X[:, :3], Y)
    assert int(model.state.step) == before
    assert all(not leaf.is_deleted() for leaf in jax.tree.leaves(model._session.cell.state))
    model.train_on_batch(X, Y)
