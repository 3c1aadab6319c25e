"""The files in `deploy/` are well-formed, and start the launcher with what it needs."""

import pathlib
import subprocess
import sys

import pytest
import yaml

from keras_dist.cli.nodes import NodePosition
from tests import commands

DEPLOY = pathlib.Path(__file__).parents[2] / "deploy"
SCRIPTS = [DEPLOY / "slurm" / "train.sbatch", DEPLOY / "mpi" / "train.sh"]
MANIFESTS = [DEPLOY / "kubernetes" / "indexed-job.yaml", DEPLOY / "kubernetes" / "jobset.yaml"]


def started(monkeypatch, arguments):
    """The supervisor that `keras-dist launch` would run with these arguments."""
    supervisors = []
    monkeypatch.setattr("keras_dist.cli.launch.run_guarded", lambda run, _: supervisors.append(run.__self__) or 0)
    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "is_file", lambda path: True)  # scripts of containers are not here
        assert commands.run("launch", *arguments) == 0
    return supervisors[0]


@pytest.mark.multiprocess
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name)
def test_scripts_are_clean(script):
    shellcheck = pathlib.Path(sys.executable).with_name("shellcheck")
    for command in (["bash", "-n"], [shellcheck, "--shell=bash"]):
        done = subprocess.run([*command, script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def run_script(tmp_path, script, programs, *arguments):
    """Run a script whose programs are replaced; its exit code, and what they were called with, a line each."""
    for name, code in programs.items():
        program = tmp_path / name
        program.write_text(f'#!/bin/bash\nprintf "%s\\n" "{name} $*"\nexit {code}\n')
        program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "17"}
    done = subprocess.run(["bash", script, *arguments], env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.multiprocess
@pytest.mark.parametrize("code", [0, 1, 75])
def test_slurm_runs_a_job_again_that_asks_for_it(tmp_path, monkeypatch, code):
    found, lines = run_script(tmp_path, SCRIPTS[0], {"srun": code, "scontrol": 0}, "train.py", "--epochs=3")
    assert found == code
    assert lines[1:] == ["scontrol requeue 17"] * (code == 75)
    options, arguments = lines[0].split(" keras-dist launch ")
    assert options.startswith("srun --ntasks-per-node=1 ")
    slurm = {"STEP_NODELIST": "n[1-2]", "STEP_NUM_NODES": "2", "STEP_NUM_TASKS": "2", "NODEID": "1", "JOB_ID": "17"}
    for name, value in slurm.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.chdir(tmp_path)
    job = started(monkeypatch, arguments.split())._job
    assert job.place == NodePosition(2, 1, "n1:61474")
    assert job.command == ["train.py", "--epochs=3"]


@pytest.mark.multiprocess
def test_mpi_starts_a_launcher_on_each_host(tmp_path, monkeypatch):
    code, lines = run_script(tmp_path, SCRIPTS[1], {"mpirun": 75}, "train.py")
    assert code == 75
    options, arguments = " ".join(lines).split(" keras-dist launch ")
    assert "--map-by ppr:1:node" in options and f"--hostfile {DEPLOY / 'mpi' / 'hosts'}" in options
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    assert started(monkeypatch, arguments.split())._job.place == NodePosition(2, 1, "node1:8476")


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_pods_find_each_other_and_are_started_again(path, monkeypatch):
    documents = {document["kind"]: document for document in yaml.safe_load_all(path.read_text())}
    if "JobSet" in documents:
        (jobset,) = documents.values()
        assert jobset["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
        (replicated,) = jobset["spec"]["replicatedJobs"]
        network = jobset["spec"]["network"]
        assert network["enableDNSHostnames"] and network["publishNotReadyAddresses"]
        assert replicated["replicas"] == 1 and jobset["spec"]["failurePolicy"]["maxRestarts"] > 0
        job, subdomain = replicated["template"]["spec"], network["subdomain"]
        first = f"{jobset['metadata']['name']}-{replicated['name']}-0-0.{subdomain}"
    else:
        service, job = documents["Service"], documents["Job"]["spec"]
        assert (service["apiVersion"], documents["Job"]["apiVersion"]) == ("v1", "batch/v1")
        name, subdomain = documents["Job"]["metadata"]["name"], job["template"]["spec"]["subdomain"]
        assert service["metadata"]["name"] == subdomain
        assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
        assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
        first = f"{name}-0.{subdomain}"
    assert job["completionMode"] == "Indexed" and job["completions"] == job["parallelism"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["restartPolicy"] == "Never"  # or the policy for failures is refused
    ignored, disrupted, failed = job["podFailurePolicy"]["rules"]
    codes = {"containerName": container["name"], "operator": "In", "values": [75]}
    assert (ignored["action"], ignored["onExitCodes"]) == ("Ignore", codes)
    assert (disrupted["action"], disrupted["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert (failed["action"], failed["onExitCodes"]["operator"]) == ("FailJob", "NotIn")
    assert 75 in failed["onExitCodes"]["values"]

    command = [part.replace("$(NODES)", env["value"]) for part in container["command"] for env in container["env"]]
    assert command[:2] == ["keras-dist", "launch"]
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    supervisor = started(monkeypatch, command[2:])
    (port,) = container["ports"]
    assert supervisor._job.place == NodePosition(job["completions"], 1, f"{first}:{port['containerPort']}")
    assert supervisor._grace_s < pod["terminationGracePeriodSeconds"]
