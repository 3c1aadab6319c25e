"""Jobs of several processes, as benchmarks run them. Nothing is timed here."""

import json
import os
import sys

import pytest

from benchmarks import bench_jobs, measure
from tests import forks, processes

pytestmark = pytest.mark.multiprocess
SIZES = {"rows": 16, "batch_size": 4, "steps": 2, "epochs": 1}


def test_processes_of_a_job_know_their_places_and_divide_the_cores():
    program = "import json, os; print(json.dumps([os.environ['TF_CONFIG'], sorted(os.sched_getaffinity(0))]))"
    before = os.sched_getaffinity(0)
    told = measure.in_job([sys.executable, "-c", program], 2)
    configs, cores = zip(*told, strict=True)
    (cluster, other), tasks = ([json.loads(config)[part] for config in configs] for part in ("cluster", "task"))
    assert cluster == other
    assert len(set(cluster["worker"])) == 2
    assert tasks == [{"type": "worker", "index": 0}, {"type": "worker", "index": 1}]
    assert os.sched_getaffinity(0) == before == {core for own in cores for core in own}
    assert len(before) == 1 or not set(cores[0]) & set(cores[1])


@pytest.mark.parametrize("index", [0, 1])
def test_a_process_that_fails_ends_the_job_with_its_errors(index):
    fails = f"""'"index": {index}' in os.environ["TF_CONFIG"]"""
    program = f"import os, sys, time; sys.exit('no luck') if {fails} else time.sleep(1000)"
    with pytest.raises(RuntimeError, match="no luck"):
        measure.in_job([sys.executable, "-c", program], 2)


def test_a_job_tells_how_long_a_step_takes():
    command = measure.measuring("benchmarks.bench_jobs", **SIZES)
    env = processes.environment(1)
    configs = measure.places_in_job(bench_jobs.PROCESSES)
    job = [forks.Python(*command[1:], env=env | {"TF_CONFIG": config}, cwd=measure.ROOT) for config in configs]
    outcomes = [process.outcome(60) for process in job]
    assert [code for code, _, _ in outcomes] == [0, 0], outcomes
    assert all(json.loads(output.splitlines()[-1]) > 0 for _, output, _ in outcomes)
