"""Does it work here? The demo and tests; `fit` against a loop by hand; fresh processes, and two at once."""

from __future__ import annotations

import concurrent.futures
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import measure as m
from benchmarks.accelerator.sections import Result, Sizes, failed, result

BATCH_SIZE = 128


def demo(sizes: Sizes) -> Iterator[Result]:
    """Yield the accuracy of the demo, data parallel."""
    import keras_dist as kd  # noqa: PLC0415  # the tests begin without it
    from keras_dist.cli.demo import CONFIG  # noqa: PLC0415

    run = kd.assembly.build(kd.config.load(CONFIG, overrides=["mesh.shape.model=1", "mesh.shape.data=-1"]))
    run.train()
    yield result("accuracy", run.evaluate()["accuracy"], wanted=0.95)


def tests(sizes: Sizes) -> Iterator[Result]:
    """Write the tests that do not pass as they come, and yield the number of the others."""
    os.environ["ON_ACCELERATOR"] = os.environ.get("JAX_PLATFORMS", "")  # read by tests/conftest.py
    import pytest  # noqa: PLC0415

    passed, problems = set(), set()

    class Reports:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if not report.passed:
                problems.add(report.nodeid)
                sizes.write(failed(report.nodeid, f"{report.outcome}: {report.longreprtext[-300:]}"))
            elif report.when == "call":
                passed.add(report.nodeid)

    pytest.main(["-q", "-m", "accelerator", "tests/accelerator"], plugins=[Reports()])
    yield result("tests that pass", len(passed), of=len(passed | problems))


def measure(what: str) -> Any:
    """In a process of its own: seconds of a start, by name, or the losses of a training, alone or in a job."""
    began = time.perf_counter()
    import keras_dist as kd  # noqa: PLC0415  # its import is measured
    from benchmarks.workload import images, make_model  # noqa: PLC0415

    imported = time.perf_counter() - began
    if what == "job":
        kd.initialize()
    kd.set_distribution(kd.DataParallel())
    kd.utils.set_random_seed(0)
    losses = make_model(kd).fit(*images(BATCH_SIZE * 2), batch_size=BATCH_SIZE, epochs=3, verbose=0).history["loss"]
    return {"import": imported, "first steps": time.perf_counter() - began} if what == "start" else losses


def loop(sizes: Sizes) -> Iterator[Result]:
    """Yield steps of `fit`, one at once and as it comes."""
    case = {"batch_size": BATCH_SIZE, "epochs": 5, "rows": BATCH_SIZE * 20, "rounds": sizes.steps, "aim": 0.95}
    for line in m.in_process("benchmarks.bench_loop", devices=None, **case):
        yield result(line["name"], line["ours"], line["unit"], by_hand=line["theirs"])


def start(sizes: Sizes) -> Iterator[Result]:
    """Yield the seconds from the start of a process to the ends of its import and of its first steps."""
    yield from (result(name, seconds, "s") for name, seconds in m.in_process(__name__, what="start").items())


def two(sizes: Sizes) -> Iterator[Result]:
    """Yield how far losses are apart; NCCL has no job of two processes on one GPU, and says so."""
    os.environ.pop("XLA_PYTHON_CLIENT_MEM_FRACTION", None)  # the older name
    os.environ["XLA_CLIENT_MEM_FRACTION"] = "0.3"  # by default the first process takes 0.75 of a GPU
    runs: dict[str, Callable[[], Any]] = {
        "two trainings at once": lambda: pool.map(lambda _: m.in_process(__name__, what="alone"), range(2)),
        "a job of two processes": lambda: m.in_job(m.measuring(__name__, what="job"), 2),
    }
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for name, run in runs.items():
            try:
                first, second = run()
            except RuntimeError as error:
                yield failed(name, error)
            else:
                apart = max(abs(mine / other - 1) for mine, other in zip(first, second, strict=True))
                yield result(f"{name}: losses are apart by", apart, wanted=0.0)
