"""The page about Ray, in a Ray of its own on this machine."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

import numpy as np
import psutil
import pytest

from tests.forks import ROOT, Python
from tests.processes import environment, free_address

PYTHON = ROOT / ".venv-ray" / "bin" / "python"
PAGE = (ROOT / "docs" / "how_to" / "ray.md").read_text()
(PROGRAM,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
BY_ADDRESS = re.compile(r"^    worker = .*?^    kd\.initialize\(.*?\n", re.DOTALL | re.MULTILINE)

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.multiprocess,
    pytest.mark.skipif(not PYTHON.exists(), reason="Ray is not installed: `make ray`"),
]


class Ray:
    """A driver of Ray with its whole cluster, whose files are in `folder`."""

    def __init__(self, program: str, folder: pathlib.Path) -> None:
        self.folder = folder
        (folder / "train_ray.py").write_text(program)
        ray = {
            "RAY_TMPDIR": str(folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            "RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": 2}),
        }
        self._log = (folder / "log").open("wb")
        self.driver = subprocess.Popen(
            [PYTHON, "train_ray.py", folder / "run"], cwd=folder, env=environment(1) | ray,
            stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self._seen: dict[int, psutil.Process] = {}

    def has_started(self) -> bool:
        """Whether its nodes are there: Ray gives them 30 s, which a busy machine may exceed."""
        while "Started a local Ray instance" not in self.log():
            if self.driver.poll() is not None:
                assert "The current node timed out during startup" in self.log(), self.log()
                return False
            time.sleep(0.1)
        return True

    def workers(self) -> list[psutil.Process]:
        """The workers, that of rank 0 first: it has started the coordination service."""
        found = []
        for process in psutil.Process(self.driver.pid).children(recursive=True):
            self._seen[process.pid] = process
            try:
                if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::RayTrainWorker"):
                    found.append(
                        (not any("coordination" in " ".join(p.cmdline()) for p in process.children()), process)
                    )
            except psutil.Error:  # it has ended meanwhile
                continue
        return [process for _, process in sorted(found, key=lambda one: one[0])]

    def log(self) -> str:
        """What it has printed."""
        return (self.folder / "log").read_text(errors="replace")

    def saved(self) -> int:
        """The step of the last state."""
        found = [int(path.name.removeprefix("step_")) for path in (self.folder / "run" / "backup").glob("step_*")]
        return max(found, default=0)

    def wait_until(self, condition, limit_s=240) -> None:
        """Wait while the driver runs."""
        end = time.monotonic() + limit_s
        while not condition():
            assert self.driver.poll() is None and time.monotonic() < end, self.log()[-6000:]
            time.sleep(0.1)

    def close(self) -> list[psutil.Process]:
        """End every process by its id, and return those that the end of the driver has left."""
        if self.driver.poll() is None:
            self.workers()
            self.driver.kill()
        self.driver.wait()
        self._log.close()
        for process in psutil.process_iter():
            try:
                if process.environ().get("RAY_TMPDIR") == str(self.folder):
                    self._seen[process.pid] = process
            except psutil.Error:
                continue
        _, left = psutil.wait_procs(self._seen.values(), timeout=20)
        for process in left:
            process.kill()
        return left


@pytest.fixture
def ray():
    """Start a program in a Ray of its own; afterwards none of its processes is left."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ray_", dir="/tmp"))  # Unix sockets have short paths
    before, started = {*pathlib.Path("/tmp").glob("ray")}, []

    def start(program):
        for _ in range(5):
            started.append(Ray(program, folder))
            if started[-1].has_started():
                break
            started[-1].close()
        return started[-1]

    try:
        yield start
        assert not started[-1].close()
        assert {*pathlib.Path("/tmp").glob("ray")} == before
    finally:
        for one in started:
            one.close()
        shutil.rmtree(folder)


def losses_of(output):
    """The losses of the first line that has them."""
    return json.loads(re.search(r"losses (\[.*?\])", output)[1])


def assert_trained_as(expected, run):
    """Each worker has these losses; Ray may show a line twice."""
    found = [losses_of(line) for line in run.log().splitlines() if "losses [" in line]
    assert len(found) >= 2
    for losses in found:
        np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The losses of the page's function in two processes without Ray."""
    train = re.search(r"^def train.*?(?=^if )", PROGRAM, re.DOTALL | re.MULTILINE)[0]
    joins = "    kd.initialize(config['address'], 2, config['process'])\n"
    program = "import sys\nimport keras_dist as kd, numpy as np\n" + BY_ADDRESS.sub(joins, train)
    program += "train({'address': sys.argv[1], 'process': int(sys.argv[2]), 'folder': sys.argv[3]})"
    address, folder = free_address(), tmp_path_factory.mktemp("uninterrupted")
    started = [Python("-c", program, address, process, folder, env=environment(1)) for process in range(2)]
    (code, output, errors), (other, _, _) = (process.outcome(240) for process in started)
    assert (code, other) == (0, 0), errors
    return losses_of(output)


def test_killed_workers_start_again_and_train_as_if_nothing_had_happened(ray, uninterrupted):
    run = ray(PROGRAM)
    for rank, step in ((1, 100), (0, 400)):
        run.wait_until(lambda step=step: run.saved() >= step and len(run.workers()) == 2)
        os.kill(run.workers()[rank].pid, signal.SIGKILL)
    assert run.driver.wait(500) == 0, run.log()[-6000:]
    assert_trained_as(uninterrupted, run)


def test_the_job_that_ray_has_joined_is_taken_over(ray, uninterrupted):
    program = BY_ADDRESS.sub("    kd.initialize(required=False)\n    print(kd.distribution.cluster())\n", PROGRAM)
    program = program.replace("import JaxTrainer", "import JaxConfig, JaxTrainer")
    program = program.replace("JaxTrainer(train, ", "JaxTrainer(train, jax_config=JaxConfig(use_gpu=True), ")
    run = ray(program)
    assert run.driver.wait(500) == 0, run.log()[-6000:]
    assert "process 0 of 2, coordinator" in run.log() and "process 1 of 2, coordinator" in run.log()
    assert_trained_as(uninterrupted, run)
