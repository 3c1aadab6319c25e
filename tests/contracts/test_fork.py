"""A child that was forked after JAX had started is told so, and does not hang."""

import os

import pytest

from tests.contracts.processes import run_fork
from tests.processes import environment

PROGRAM = """
import os, signal, warnings
import numpy as np
import keras_dist as kd
from keras_dist.errors import DeviceError

warnings.simplefilter("ignore")  # JAX and Python warn of forks
X, Y = np.ones((8, 3), "f4"), np.ones((8, 1), "f4")


def network():
    return kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])


def train():
    model = network()
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    return model


def in_child(*actions):
    pid = os.fork()
    if pid == 0:
        signal.alarm(100)
        for action in actions:
            try:
                action()
                print("ran", flush=True)
            except DeviceError as error:
                print(str(error).splitlines()[0], flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


in_child(lambda: network()(X))
model = train()
kernel = model.weights[0]
in_child(
    lambda: model.fit(X, Y, verbose=0), lambda: model.evaluate(X, Y, verbose=0), lambda: model.predict(X, verbose=0),
    lambda: model(X), lambda: model.train_on_batch(X, Y), lambda: model.compile("adam"), train,
    lambda: kernel.assign(np.zeros((3, 1))),
)
model.fit(X, Y, verbose=0)
"""


@pytest.mark.multiprocess
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_child_of_a_process_in_which_jax_has_started_is_refused():
    first, *others = run_fork(PROGRAM, XLA_FLAGS=environment()["XLA_FLAGS"]).splitlines()
    assert first == "ran"
    assert others == ["JAX cannot run in a process that was forked after JAX had started"] * 8
