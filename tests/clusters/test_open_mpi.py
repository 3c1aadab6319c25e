"""Jobs of Open MPI end with the losses of an uninterrupted run, after a signal too."""

import signal

import pytest

from tests.clusters.engine import TRAIN, Trial
from tests.clusters.open_mpi import OpenMpi

pytestmark = [pytest.mark.cluster, pytest.mark.multiprocess]


@pytest.fixture(scope="session")
def mpi(tmp_path_factory):
    engine = OpenMpi(tmp_path_factory.mktemp("mpi"))
    try:
        yield engine
    finally:
        engine.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_to_the_script_saves_and_the_same_command_resumes(mpi, tmp_path, losses, number):
    job = mpi.train(tmp_path, "--hold")
    job.wait_for_hold()
    for times in (1, 2):  # the second signal ends no save
        job.process("train.sh").send_signal(number)
        job.wait_for("train.sh: the job saves its state within 110 s; the exit code is then 75", times)
    job.process("mpirun").send_signal(number)  # as a shutdown does
    job.let_go()
    assert job.code() == 75, job.printed()
    assert "BackupAndRestore: SIGTERM, saved" in job.printed()
    mpi.train(tmp_path)
    assert job.code() == 0, job.printed()
    assert job.losses() == losses


def test_a_job_survives_the_kill_of_a_process(mpi, tmp_path, losses):
    job = mpi.train(tmp_path, "--hold")
    job.wait_for_hold()[1].kill()
    job.let_go()
    assert job.code() == 0, job.printed()
    assert job.losses() == losses
    assert "process 1 was ended by SIGKILL" in job.printed()


def test_mpirun_runs_without_the_launcher(mpi, tmp_path, losses):
    job = Trial(tmp_path)
    command = ["mpirun", "-n", "2", "--oversubscribe", "--bind-to", "none", "python", str(TRAIN), str(tmp_path)]
    mpi.start(*command, output=job.output)
    assert job.code() == 0, job.printed()
    assert job.losses() == losses
