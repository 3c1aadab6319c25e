"""DTensor's clients: its tutorial, and functions of variables, in jobs of two real processes with two devices each."""

import json
import pathlib
import re
import signal

import numpy as np
import pytest

from tests import forks
from tests.processes import environment, free_address
from tests.soak import LARGE, ROUNDS

EXAMPLE = pathlib.Path(__file__).parent.parent.parent / "examples" / "dtensor_keras.py"
VALUES = ["loss", "accuracy", "eval_loss", "eval_accuracy"]

RUN_EXAMPLE = f"""
import runpy, sys
sys.argv = ["dtensor_keras.py", "--devices", "2", "--epochs", "1"]
runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
"""

END = """
import os, signal, time
import jax.numpy as jnp
from keras_dist import dtensor

mesh = dtensor.create_distributed_mesh([("batch", 4)])
total = dtensor.DVariable(jnp.zeros(()), layout=dtensor.Layout.replicated(mesh, 0))
x = dtensor.copy_to_mesh(jnp.arange(4.0), dtensor.Layout(["batch"], mesh))

@dtensor.function
def add(x):
    total.assign_add(jnp.sum(x))

@dtensor.function
def add_squares(x):
    total.assign_add(jnp.sum(x**2))

def end():
    {}

for step in range(10):
    if step == 5 and dtensor.client_id() == 1:
        end()
    add(x)
print(float(total))
"""
"""The second process ends the job in its own way."""


def compiled_alike():
    """The environment of programs whose sums have one order: how XLA adds otherwise depends on the processor."""
    given = environment()
    return given | {"XLA_FLAGS": f"{given['XLA_FLAGS']} --xla_backend_optimization_level=0"}


def outcomes(program, **variables):
    """How two processes end that run a program; one finds its place in `TF_CONFIG`, one in the variables of DTensor.

    Returns:
        The exit code of each, what it printed and its errors.
    """
    addresses = [free_address(), free_address()]
    cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}
    places = {"TF_CONFIG": json.dumps(cluster)}, {"DTENSOR_JOBS": ",".join(addresses), "DTENSOR_CLIENT_ID": "1"}
    common = compiled_alike() | {"PJRT_NPROC": "32", **variables}
    processes = [forks.Python("-c", program, env=common | place) for place in places]
    return [process.outcome(120) for process in processes]


def values(output):
    """The losses and accuracies that the tutorial prints after its epoch."""
    lines = [line.split(": ") for line in output.splitlines()]
    return {line[0]: float(line[1]) for line in lines if line[0] in VALUES and len(line) == 2}


def fitted(output):
    """The losses and accuracies that `fit` prints, in the first process alone."""
    (line,) = [line for line in output.splitlines() if " - val_loss" in line]
    return [float(value) for value in re.findall(r"(?:loss|accuracy): ([\d.]+)", line)]


def layouts(output):
    """The layouts of weights that it prints, without their meshes."""
    return [line.partition(" mesh:")[0] for line in output.splitlines() if "Layout.from_string(" in line]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What the tutorial prints in one process with four devices, in a folder of the user's."""
    folder = tmp_path_factory.mktemp("alone")
    run = forks.python(EXAMPLE, "--devices", 4, "--epochs", 1, cwd=folder, env=compiled_alike())
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


@pytest.mark.multiprocess
def test_the_tutorial_runs(alone):
    assert layouts(alone) == [
        "Weight name: d1/kernel with layout: Layout.from_string(sharding_specs:unsharded,unsharded,",
        *["Layout.from_string(sharding_specs:batch,unsharded,"] * 3,
    ]
    assert values(alone)["eval_accuracy"] > 0.7


ENDS = [
    ("add_squares(x)", (1, 1), "after add step 5 process 0 comes to add step 6, and process 1 to add_squares step 1"),
    (
        'print(end="", flush=True) or os.kill(os.getpid(), signal.SIGKILL)',
        (1, -signal.SIGKILL),
        "process 0 ends, because process 1 of 2 has exited",
    ),
    ("time.sleep(100)", (1, 1), "no step for"),
]
"""What the second process does after the tutorial, the codes with which both end, and what the first one says."""


@pytest.mark.soak
@pytest.mark.multiprocess
@pytest.mark.parametrize(("end", "codes", "words"), ENDS if LARGE else ENDS[1:] if ROUNDS else ENDS[:1])
def test_two_clients_run_the_tutorial_as_one_does_and_one_that_goes_another_way_ends_both(alone, end, codes, words):
    ended = outcomes(RUN_EXAMPLE + END.format(end), KERAS_DISTRIBUTION_HANG_TIMEOUT_S="30")
    assert tuple(code for code, _, _ in ended) == codes, ended
    assert words in ended[0][2], ended
    for _, output, _ in ended:
        assert layouts(output) == layouts(alone)
        assert values(output).keys() == values(alone).keys() == {*VALUES}
        np.testing.assert_allclose([*values(output).values()], [*values(alone).values()], atol=1e-5, rtol=0)
    np.testing.assert_allclose(fitted(ended[0][1]), fitted(alone), atol=1.1e-4, rtol=0)  # of four digits
