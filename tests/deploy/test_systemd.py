"""The unit of systemd starts the launcher, gives it time to save, and starts it again when it asks for it."""

import configparser
import pathlib
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.cli.test_deploy import started
from tests.forks import ROOT

UNIT = ROOT / "deploy" / "systemd" / "keras-dist-train.service"


def section(name):
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # keys have capitals
    parser.read(UNIT)
    return parser[name]


def test_the_unit_starts_the_launcher_and_waits_for_its_save(monkeypatch):
    service = section("Service")
    program, launch, *arguments = shlex.split(service["ExecStart"])
    assert pathlib.PurePosixPath(program).is_absolute() and (pathlib.PurePosixPath(program).name, launch) == (
        "keras-dist",
        "launch",
    )
    supervisor = started(monkeypatch, arguments)
    assert supervisor._grace_s < int(service["TimeoutStopSec"])
    folder, home = arguments[-1].removeprefix("--folder="), service["WorkingDirectory"]
    assert service["ReadWritePaths"] == home and (ROOT / "deploy" / supervisor._job.command[0]).is_file()
    assert section("Unit")["ConditionPathExists"] == f"!{home}/{folder}/model"


def test_a_saved_state_is_started_again_and_a_job_that_has_given_up_is_not():
    service = section("Service")
    assert service["SuccessExitStatus"] == service["RestartForceExitStatus"] == "75"
    assert service["Restart"] == "on-abnormal"  # a signal to the launcher; not an exit code
    assert service["KillMode"] == "mixed" and service["User"] != "root"


@pytest.mark.multiprocess
def test_systemd_knows_each_line_of_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze of the package systemd")
    assert verified(tmp_path, UNIT.read_text()) == (0, "")
    assert "KilMode" in verified(tmp_path, UNIT.read_text().replace("KillMode", "KilMode"))[1]


def verified(folder, unit):
    """What `systemd-analyze verify` says of a unit, whose program is one that is here: its exit code and output."""
    program = shlex.split(section("Service")["ExecStart"])[0]
    path = folder / UNIT.name
    path.write_text(unit.replace(program, sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, check=False, timeout=60
    )
    ours = [line for line in (done.stdout + done.stderr).splitlines() if path.name in line]  # units of the machine, too
    return done.returncode, "\n".join(ours)
