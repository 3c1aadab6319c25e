"""Jobs of Slurm end with the losses of an uninterrupted run, whatever Slurm and the nodes do to them."""

import json
import os

import pytest

from keras_dist import checkpoint
from tests.clusters.engine import TRAIN, Trial
from tests.clusters.slurm import NODES, Slurm
from tests.clusters.train import HOLD

pytestmark = [pytest.mark.cluster, pytest.mark.multiprocess]


def fixture_of(proctrack):
    @pytest.fixture(scope="session")
    def slurm(tmp_path_factory):
        cluster = Slurm(tmp_path_factory.mktemp(proctrack), proctrack)
        try:
            yield cluster
        finally:
            cluster.close()

    return slurm


linuxproc, pgid = fixture_of("linuxproc"), fixture_of("pgid")
BOTH = pytest.mark.parametrize("proctrack", ["linuxproc", "pgid"])
SAVES = "SIGTERM: the processes have 170 s to save and exit"


def report(job, node=0):
    name = f"jobs-{job.number}.json" if node == 0 else f"jobs-{job.number}.node{node}.json"
    return json.loads((job.folder / name).read_text())["failures"]


def test_a_job_runs_as_documented(linuxproc, tmp_path, losses):
    job = linuxproc.submit(tmp_path)
    assert job.end()["JobState"] == "COMPLETED", job.printed()
    assert job.losses() == losses
    assert report(job) == []


@pytest.mark.parametrize("index", [0, 1])
def test_a_job_survives_the_kill_of_a_process(linuxproc, tmp_path, losses, index):
    job = linuxproc.submit(tmp_path, "--hold")
    job.wait_for_hold()[index].kill()
    job.let_go()
    assert job.end()["JobState"] == "COMPLETED", job.printed()
    assert job.losses() == losses
    assert job.shown()["Restarts"] == "0"
    (failure,) = report(job, node=index)
    assert (failure["process"], failure["how"], failure["restarted"]) == (index, "was ended by SIGKILL", True)
    assert f"launch: node {index} (" in job.printed()


@BOTH
def test_sigterm_saves_and_the_requeued_job_resumes(request, proctrack, tmp_path, losses):
    slurm = request.getfixturevalue(proctrack)
    job = slurm.submit(tmp_path, "--hold")
    job.wait_for_hold()
    for _ in range(2):  # the second signal ends no save
        assert slurm.run("scancel", "--signal=TERM", job.number) == ""
    ends_after_a_save(job, losses)


@BOTH
def test_the_time_limit_saves_and_the_requeued_job_resumes(request, proctrack, tmp_path, losses):
    job = request.getfixturevalue(proctrack).submit(tmp_path, "--hold")
    job.wait_for_hold()
    hours, minutes, _ = map(int, job.shown()["RunTime"].split(":"))
    assert hours == 0
    job.update(TimeLimit=str(minutes + 2))  # within the 180 s of --signal=TERM@180
    job.wait_for(SAVES)
    job.update(TimeLimit="60")
    ends_after_a_save(job, losses)


def ends_after_a_save(job, losses):
    job.wait_for(SAVES)
    job.let_go()
    job.wait_for_state("COMPLETED", "FAILED", restarts=1)
    assert job.shown()["JobState"] == "COMPLETED", job.printed()
    assert "BackupAndRestore: SIGTERM, saved" in job.printed()
    assert job.losses() == losses


@BOTH
def test_a_cancelled_job_has_saved_and_is_not_requeued(request, proctrack, tmp_path, losses):
    slurm = request.getfixturevalue(proctrack)
    job = slurm.submit(tmp_path, "--hold")
    job.wait_for_hold()
    assert slurm.run("scancel", job.number) == ""
    job.let_go()
    shown = job.end()
    slurm.wait_for_end_of_processes()  # what the launchers print may be lost, as srun gets the signal, too
    assert (shown["JobState"], shown["Restarts"]) == ("CANCELLED", "0")
    assert max(state.step for state in checkpoint.examine(tmp_path / "backup").states) >= HOLD
    again = slurm.submit(tmp_path)
    assert again.end()["JobState"] == "COMPLETED", again.printed()
    assert again.losses() == losses


def test_a_job_survives_the_loss_of_a_node(linuxproc, tmp_path, losses):
    job = linuxproc.submit(tmp_path, "--hold")
    linuxproc.kill_node(NODES[1], job.wait_for_hold()[1])
    job.let_go()
    job.wait_for_state("PENDING", "RUNNING", restarts=1)
    linuxproc.start_node(NODES[1])
    assert job.end()["JobState"] == "COMPLETED", job.printed()
    assert job.losses() == losses


def test_a_requeued_job_resumes(pgid, tmp_path, losses):
    job = pgid.submit(tmp_path, "--hold")
    job.wait_for_hold()
    assert pgid.run("scontrol", "requeue", job.number) == ""
    job.let_go()
    job.wait_for_state("COMPLETED", "FAILED", restarts=1)
    assert job.shown()["JobState"] == "COMPLETED", job.printed()
    assert job.losses() == losses


def test_srun_without_the_launcher_saves_at_sigterm_and_resumes(linuxproc, tmp_path, losses):
    job, name = Trial(tmp_path), f"alone{os.getpid()}"
    srun = ["srun", "--nodes=2", "--ntasks-per-node=1", f"--job-name={name}", "python", str(TRAIN), str(tmp_path)]
    linuxproc.start(*srun, "--hold", output=job.output)
    job.wait_for_hold()
    assert linuxproc.run("scancel", "--signal=TERM", f"--name={name}") == ""
    job.let_go()
    assert job.code() == 75, job.printed()
    assert "BackupAndRestore: SIGTERM, saved" in job.printed()
    linuxproc.start(*srun, output=job.output)
    assert job.code() == 0, job.printed()
    assert job.losses() == losses
