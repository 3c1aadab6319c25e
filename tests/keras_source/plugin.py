"""A plugin of pytest that serves `as_keras`, ends tests that take too long, and writes results line by line."""

import json
import os
import pathlib
import signal
import types
from collections.abc import Iterator
from typing import Any

import jax
import pytest

import keras_dist as kd
from tests.keras_source import distributions, modules
from tests.keras_source.stand_ins import stand_ins

REWRITTEN = pathlib.Path(os.environ["TRIAL_REWRITTEN"])
RESULTS = pathlib.Path(os.environ["TRIAL_RESULTS"])
SECONDS = int(os.environ.get("TRIAL_SECONDS", "60"))

RAISES, WARNS = pytest.raises, pytest.warns
# the words of errors and warnings are ours; their classes are Keras's
pytest.raises = lambda *args, match=None, **kwargs: RAISES(*args, **kwargs)  # type: ignore[assignment]
pytest.warns = lambda *args, match=None, **kwargs: WARNS(*args, **kwargs)  # type: ignore[assignment]
TREE = {
    "keras.src.tree.optree_impl": kd.tree,  # the tests of trees take modules
    "keras.src.utils.module_utils.optree": types.SimpleNamespace(available=True),
    "keras.src.utils.module_utils.dmtree": types.SimpleNamespace(available=False),
}
modules.install(
    pathlib.Path(os.environ["TRIAL_SOURCE"]), REWRITTEN, {**stand_ins(), **TREE, **distributions.stand_ins()}
)
distributions.connect()


def pytest_configure(config: pytest.Config) -> None:
    """Register Keras's marks, and start JAX as the import of Keras does: a test clears the environment."""
    jax.devices()
    for mark in ("requires_trainable_backend", "multi_device", "skipif"):
        config.addinivalue_line("markers", f"{mark}: a mark of Keras")


def _write(**line: Any) -> None:
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note which test runs, for one that ends the process."""
    _write(id=nodeid, outcome="began")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """End a test that takes too long; forget what the one before has set."""

    def stop(*args: Any) -> None:
        raise TimeoutError(f"the test takes more than {SECONDS} seconds")

    kd.distribution.set_distribution(None)
    kd.mixed_precision.set_global_policy("float32")
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the outcome of a test."""
    if report.when == "call" or report.outcome != "passed":
        _write(id=report.nodeid, outcome=report.outcome, error=_text(report), seconds=round(report.duration, 1))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write what keeps a module from being imported."""
    if report.outcome != "passed":
        _write(id=report.nodeid, outcome="not collected", error=_text(report), seconds=0)


def _text(report: Any) -> str:
    return "" if report.longrepr is None else str(report.longrepr)[-6000:]
