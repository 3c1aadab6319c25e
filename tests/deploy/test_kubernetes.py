"""The manifests are valid for Kubernetes, fit the image, and their command trains the script that the image has."""

import os
import re
import subprocess
import sys

import kubernetes_validate
import pytest
import yaml

from tests.deploy.test_image import CONTAINER, instructions
from tests.deploy.test_train_digits import SCRIPT
from tests.forks import ROOT
from tests.processes import environment, free_address

FOLDER = ROOT / "deploy" / "kubernetes"
VERSIONS = ["1.31", "1.37"]  # the oldest that the manifests name; the newest that the validator has
PATHS = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def documents(name):
    """The documents of a manifest, and of a custom resource the jobs in it, which the validator knows."""
    for document in yaml.safe_load_all(PATHS[name].read_text()):
        if document["kind"] == "JobSet":
            for replicated in document["spec"]["replicatedJobs"]:
                job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": replicated["name"]}}
                yield job | replicated["template"]
        else:
            yield document


def pod(name):
    """The pod of a manifest, and its only container."""
    (job,) = [each for each in documents(name) if each["kind"] == "Job"]
    found = job["spec"]["template"]["spec"]
    (container,) = found["containers"]
    return found, container


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", PATHS)
def test_manifests_are_valid(name, version):
    for document in documents(name):
        assert kubernetes_validate.validate(document, version, strict=True) == version


def test_the_validator_refuses_a_field_that_kubernetes_does_not_have():
    job = next(each for each in documents("jobset"))
    job["spec"]["template"]["spec"]["terminationGraceSeconds"] = 120
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGraceSeconds"):
        kubernetes_validate.validate(job, VERSIONS[0], strict=True)


@pytest.mark.parametrize("name", ["indexed-job", "jobset"])
def test_pods_run_the_script_of_the_image_without_root(name):
    found, container = pod(name)
    program = container["command"]
    assert f"{CONTAINER['COPY'][-1].split()[-1]}train_digits.py" in program
    assert program[-2:] == CONTAINER["CMD"][-2:] and program[0] == CONTAINER["ENTRYPOINT"][0]
    assert found["securityContext"]["runAsNonRoot"] and CONTAINER["USER"][0].isdecimal()  # names cannot be checked
    assert str(found["securityContext"]["fsGroup"]) == CONTAINER["USER"][0]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    written = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert written == {"/state", "/tmp"} and "HOME=/tmp" in instructions()["ENV"]
    claims = [each["persistentVolumeClaim"]["claimName"] for each in found["volumes"] if "emptyDir" not in each]
    (claim,) = documents("state")
    assert claims == [claim["metadata"]["name"]] and claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_both_manifests_run_one_command():
    first, second = (pod(name)[1]["command"] for name in ("indexed-job", "jobset"))
    assert [part for part in first if part not in second] == ["--coordinator=train-0.train:8476"]
    assert [part for part in second if part not in first] == ["--coordinator=train-nodes-0-0.train:8476"]


@pytest.mark.multiprocess
def test_the_command_of_two_pods_trains_as_one_process_does(tmp_path):
    _, container = pod("indexed-job")
    address, (variable,) = free_address(), container["env"]
    local = {"$(NODES)": variable["value"], "train-0.train:8476": address}
    local |= {"/app/train_digits.py": str(SCRIPT), "/state": str(tmp_path / "state")}
    command = list(container["command"])
    for there, here in local.items():
        assert any(there in part for part in command)
        command = [part.replace(there, here) for part in command]
    assert command.pop(0) == "keras-dist"
    options = ["--epochs=1", "--batch-size=32"]
    pods = [
        subprocess.Popen(
            [sys.executable, "-m", "keras_dist", *command, *options],
            env=environment(1) | {"JOB_COMPLETION_INDEX": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(2)
    ]
    try:
        alone = subprocess.run(
            [sys.executable, SCRIPT, "--alone", f"--folder={tmp_path / 'alone'}", *options],
            env=environment(1),
            capture_output=True,
            text=True,
            timeout=200,
            check=True,
        ).stdout
        outputs = [each.communicate(timeout=200)[0] for each in pods]
    finally:
        for each in pods:
            each.terminate()
            each.wait(150)
    assert [each.returncode for each in pods] == [0, 0], outputs
    (expected,) = re.findall(r"^loss: (.*)", alone, re.MULTILINE)
    for index, output in enumerate(outputs):
        (place,) = re.findall(r"^\[\d\] process (\d) of 2, .*", output, re.MULTILINE)
        assert place == str(index)
        (loss,) = re.findall(r"^\[\d\] loss: (.*)", output, re.MULTILINE)
        assert abs(float(loss) - float(expected)) < 1e-5
    assert os.listdir(tmp_path / "state") == ["model"]
