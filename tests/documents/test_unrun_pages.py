"""The pages on engines that were never run say so, and have keys and options that public references name."""

import pathlib
import re
import shlex
import subprocess

import kubernetes_validate
import pytest
import yaml

from keras_dist.cli.nodes import NodePosition
from tests.cli.test_deploy import started
from tests.test_documentation import ROOT, blocks

HOW_TO = ROOT / "docs" / "how_to"
PAGES = ["cloud_tpu", "kuberay", "skypilot"]

# KubeRay, API v1: the fields of RayJobSpec, RayClusterSpec, HeadGroupSpec and WorkerGroupSpec
RAY_JOB = {
    *("activeDeadlineSeconds", "backoffLimit", "clusterSelector", "deletionStrategy", "entrypoint", "jobId"),
    *("entrypointNumCpus", "entrypointNumGpus", "entrypointResources", "managedBy", "metadata", "rayClusterSpec"),
    *("runtimeEnvYAML", "shutdownAfterJobFinishes", "submissionMode", "submitterConfig", "submitterPodTemplate"),
    *("suspend", "ttlSecondsAfterFinished"),
}
RAY_CLUSTER = {
    *("autoscalerOptions", "enableInTreeAutoscaling", "gcsFaultToleranceOptions", "headGroupSpec"),
    *("headServiceAnnotations", "managedBy", "rayVersion", "suspend", "workerGroupSpecs"),
}
HEAD = {"enableIngress", "headService", "rayStartParams", "serviceType", "template"}
WORKERS = {
    *("groupName", "idleTimeoutSeconds", "maxReplicas", "minReplicas", "numOfHosts", "rayStartParams"),
    *("replicas", "scaleStrategy", "suspend", "template"),
}

# SkyPilot, "SkyPilot YAML", and of `job_recovery` the page on managed jobs
TASK = {"name", "workdir", "num_nodes", "resources", "envs", "secrets", "file_mounts", "setup", "run", "config"}
RESOURCES = {
    *("infra", "accelerators", "accelerator_args", "cpus", "memory", "instance_type", "use_spot", "disk_size"),
    *("disk_tier", "network_tier", "image_id", "ports", "labels", "autostop", "any_of", "ordered", "job_recovery"),
}
RECOVERY = {"strategy", "max_restarts_on_errors", "recover_on_exit_codes"}

# gcloud compute tpus tpu-vm: the options of each command that a page may use
GCLOUD = {
    "create": {"--zone", "--accelerator-type", "--version", "--spot"},
    "scp": {"--recurse", "--worker", "--zone"},
    "ssh": {"--worker", "--zone", "--command"},
}


def page(name):
    return (HOW_TO / f"{name}.md").read_text()


def data(name):
    (block,) = blocks(page(name), "yaml")
    return yaml.safe_load(block)


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_short_and_says_that_it_was_not_run(name):
    text = page(name)
    assert len(text.splitlines()) <= 40
    assert "have not been run on such machines" in " ".join(text.split()[:60])


def test_fields_of_the_ray_job_are_those_of_kuberay():
    job = data("kuberay")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob") and {*job["spec"]} <= RAY_JOB
    cluster = job["spec"]["rayClusterSpec"]
    head, (workers,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert {*cluster} <= RAY_CLUSTER and {*head} <= HEAD and {*workers} <= WORKERS
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"]  # a job has a fixed size
    for group in (head, workers):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, **group["template"]}
        kubernetes_validate.validate(pod, "1.31", strict=True)
    assert f"rayproject/ray:{cluster['rayVersion']}-" in page("kuberay")
    (claim,) = [each["persistentVolumeClaim"]["claimName"] for each in head["template"]["spec"]["volumes"]]
    state = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "state.yaml").read_text())
    assert claim == state["metadata"]["name"]


def test_keys_of_the_task_are_those_of_skypilot():
    task = data("skypilot")
    assert {*task} <= TASK and {*task["resources"]} <= RESOURCES
    assert {*task["resources"]["job_recovery"]} <= RECOVERY
    assert task["resources"]["job_recovery"]["recover_on_exit_codes"] == [75]


@pytest.mark.multiprocess
def test_the_nodes_of_skypilot_start_one_job(tmp_path, monkeypatch):
    launcher = tmp_path / "keras-dist"
    launcher.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    launcher.chmod(0o755)
    task = data("skypilot")
    nodes = task["num_nodes"]
    for rank in range(nodes):
        env = {
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "SKYPILOT_NUM_NODES": str(nodes),
            "SKYPILOT_NODE_RANK": str(rank),
            "SKYPILOT_NODE_IPS": "\n".join(f"10.0.0.{index + 1}" for index in range(nodes)),
        }
        done = subprocess.run(["bash", "-eu"], input=task["run"], env=env, capture_output=True, text=True, check=True)
        command, *arguments = done.stdout.splitlines()
        assert command == "launch"
        assert started(monkeypatch, arguments)._job.place == NodePosition(nodes, rank, "10.0.0.1:8476")


def test_options_of_gcloud_are_known():
    (block,) = blocks(page("cloud_tpu"), "console")
    for line in block.splitlines():
        words = shlex.split(line.removeprefix("$ "))
        assert words[:4] == ["gcloud", "compute", "tpus", "tpu-vm"]
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= GCLOUD[words[4]]


def test_pages_name_files_that_are_there():
    for name in PAGES:
        for path in re.findall(r"deploy/[\w./-]+\w", page(name)):
            assert pathlib.Path(ROOT / path).exists(), path
