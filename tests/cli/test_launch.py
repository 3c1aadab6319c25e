"""The launcher starts the processes of a job, and starts them again when one dies; it leaves none behind."""

import contextlib
import json
import os
import pty
import random
import re
import signal
import socket
import subprocess
import sys
import time
import types

import psutil
import pytest

from keras_dist._support.process_notes import ProcessNotes
from keras_dist.cli import supervision
from keras_dist.training.loop import MAX_IN_FLIGHT
from tests import commands
from tests.processes import environment, killed_environment
from tests.soak import LARGE, ROUNDS

pytestmark = pytest.mark.multiprocess

BEGIN = """
import json, os, pathlib, signal, socket, subprocess, sys, time

folder = pathlib.Path(sys.argv[1])
index = int(os.environ["KERAS_DISTRIBUTION_PROCESS_ID"])
address = os.environ["KERAS_DISTRIBUTION_JOB_ADDRESSES"]
hang = os.environ.get("KERAS_DISTRIBUTION_HANG_TIMEOUT_S")

def note(**facts):
    pathlib.Path(os.environ["KERAS_DIST_NOTES_FILE"]).write_text(json.dumps(facts))

def is_first(name):
    first = not (folder / name).exists()
    (folder / name).touch()
    return first

def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.02)

def start_child(*command):
    child = subprocess.Popen(command or ["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
    (folder / f"child {index} of {os.getpid()}").write_text(str(child.pid))
"""


class Launcher:
    """A launcher, of a program that finds its folder in `sys.argv[1]`."""

    def __init__(self, folder, program, *options, arguments=(), env=None, output=subprocess.PIPE):
        self.folder = folder
        (folder / "program.py").write_text(BEGIN + program)
        self.report = folder / "jobs.json"
        command = [sys.executable, "-m", "keras_dist", "launch", "--report", self.report, *map(str, options)]
        self.process = subprocess.Popen(
            [*command, "--", folder / "program.py", folder, *map(str, arguments)],
            env=env or environment(),
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
        )

    def outcome(self, timeout=60):
        """Its exit code, the lines that it and the processes printed, and the deaths in its report."""
        try:
            output, errors = self.process.communicate(timeout=timeout)
        finally:
            self.process.kill()
        deaths = json.loads(self.report.read_text())["failures"]
        return self.process.returncode, (output or "").splitlines(), errors.splitlines(), deaths

    def wait_for(self, *names):
        """Wait until the program has made these files."""
        end = time.monotonic() + 30
        while not all((self.folder / name).exists() for name in names):
            assert time.monotonic() < end and self.process.poll() is None, self.outcome()
            time.sleep(0.02)

    def family(self):
        """The supervising process, and all others below it."""
        return psutil.Process(self.process.pid).children(recursive=True)


def assert_gone(processes):
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive


def children_of(folder):
    return [int(text) for path in folder.glob("child *") if (text := path.read_text())]


def test_each_process_has_its_place_and_a_coloured_prefix(tmp_path):
    terminal, theirs = pty.openpty()
    program = """
note(joined=True)
print(index, address, os.environ["JAX_NUM_CPU_DEVICES"], hang, sys.argv[2:], os.environ["XLA_FLAGS"])
"""
    launcher = Launcher(tmp_path, program, "--processes", 2, "--devices-per-process", 3, output=theirs)
    code, _, errors, deaths = launcher.outcome()
    os.close(theirs)
    printed = os.read(terminal, 10_000).decode()
    os.close(terminal)
    assert (code, errors, deaths) == (0, [], [])
    found = re.findall(r"\x1b\[(\d+)m\[(\d)\]\x1b\[0m (\d) (127\.0\.0\.1:\d+) 3 600 \[\] (.*)\r\n", printed)
    assert sorted(line[:3] for line in found) == [("33", "1", "1"), ("36", "0", "0")]
    assert found[0][3] == found[1][3]
    assert "device_count" not in found[0][4]


def test_processes_that_ran_apart_are_told_so(tmp_path):
    code, output, errors, _ = Launcher(tmp_path, "print(hang)", "--processes", 2, "--hang-timeout", 0).outcome()
    assert (code, sorted(output)) == (0, ["[0] None", "[1] None"])
    assert errors == ["launch: no process has called keras_dist.initialize(): each ran alone, not as one job"]


def test_one_that_always_dies_ends_the_launcher_with_its_log(tmp_path):
    program = "start_child(); print('no such', 'file', address); sys.exit(3 * index)"
    code, _, errors, deaths = Launcher(tmp_path, program, "--processes", 2, "--max-restarts", 2).outcome()
    assert code == 3
    given_up = "launch: given up after 2 restarts in a row without progress"
    assert errors[-1] == f"{given_up}: process 1 ended with exit code 3"
    assert errors[-3] == "launch: the last lines of process 1:" and errors[-2].startswith("  no such file 127.0.0.1:")
    assert [(death["process"], death["how"], death["restarted"]) for death in deaths] == [
        (1, "ended with exit code 3", True),
        (1, "ended with exit code 3", True),
        (1, "ended with exit code 3", False),
    ]
    assert "launch: restart 2 of 2 in 2 s" in errors
    children = children_of(tmp_path)
    assert len(children) >= 3 and not any(map(psutil.pid_exists, children))


@pytest.mark.parametrize("kind", ["saves", "steps"])
def test_restarts_with_progress_are_not_counted(tmp_path, kind):
    program = f"""
    starts = len(list(folder.glob("start *")))
    (folder / f"start {{starts}}").write_text(address)
    number = min(starts, 4)
    saved, steps = (f"step {{number}}", 10) if {kind == "saves"} else ("step 0", 7 + number)
    note(saved=saved, saved_steps=7, steps=steps, first_step_at=time.time())
    time.sleep(0.4)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    code, _, errors, deaths = Launcher(tmp_path, f"if True:{program}", "--max-restarts", 1).outcome()
    assert code == 1
    given_up = "launch: given up after 1 restarts in a row without progress"
    assert errors[-1] == f"{given_up}: process 0 was ended by SIGKILL"
    told = [(f"step {min(n, 4)}", 3) if kind == "saves" else ("step 0", min(n, 4)) for n in range(6)]
    assert [(death["saved"], death["steps_lost"]) for death in deaths] == told
    assert all(death["to_next_step_s"] > 0 for death in deaths[:5]) and deaths[5]["to_next_step_s"] is None
    assert len({path.read_text() for path in tmp_path.glob("start *")}) == 6  # ports


def test_a_process_that_is_stopped_for_a_moment_goes_on(tmp_path):
    program = """
    (folder / "stops").touch()
    os.kill(os.getpid(), signal.SIGSTOP)
    """
    launcher = Launcher(tmp_path, f"if True:{program}")
    launcher.wait_for("stops")
    process = launcher.family()[1]
    while process.status() != psutil.STATUS_STOPPED:
        time.sleep(0.02)
    time.sleep(2)  # in which the launcher looks many times
    process.resume()
    assert launcher.outcome()[::3] == (0, [])


def test_the_one_is_named_that_others_blame(tmp_path):
    program = """
    if index and is_first(str(index)):
        note(blamed=0, reason="has died or hangs: silent for 7 s")
        sys.exit(75)
    wait_for("1")
    time.sleep(0 if not is_first(f"second {index}") else 30 * (not index))
    """
    code, _, _, deaths = Launcher(tmp_path, f"if True:{program}", "--processes", 2).outcome()
    assert code == 0
    told = "has died or hangs: silent for 7 s, according to process 1"
    assert [(death["process"], death["how"]) for death in deaths] == [(0, told)]


DEAF = """
signal.signal(signal.SIGINT, lambda *_: (folder / f"heard {index}").touch())
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
start_child()
(folder / f"ready {index}").touch()
while True:
    time.sleep(0.05)
    if (folder / "look").exists():
        (folder / f"alive {index}").touch()
"""


def ready(folder, *options):
    launcher = Launcher(folder, DEAF, "--processes", 2, *options)
    launcher.wait_for("ready 0", "ready 1")
    family = launcher.family()
    assert len(family) == 5 and {*children_of(folder)} < {process.pid for process in family}
    return launcher, family


def test_ctrl_c_reaches_all_and_the_third_one_ends_all(tmp_path):
    launcher, family = ready(tmp_path)
    launcher.process.send_signal(signal.SIGINT)
    launcher.wait_for("heard 0", "heard 1")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        launcher.process.send_signal(number)
    (tmp_path / "look").touch()
    launcher.wait_for("alive 0", "alive 1")
    assert all(process.is_running() for process in family)
    launcher.process.send_signal(signal.SIGINT)
    try:
        launcher.process.wait(10)
    except subprocess.TimeoutExpired:  # two signals that come at once are one
        launcher.process.send_signal(signal.SIGINT)
    code, _, errors, _ = launcher.outcome(timeout=10)
    assert code == 128 + signal.SIGINT
    (line,) = [line for line in errors if "third Ctrl-C" in line]
    assert line == "launch: SIGINT: the processes have 30 s to save and exit; the third Ctrl-C ends them at once"
    assert_gone(family)


def test_ctrl_c_ends_those_that_do_not_listen(tmp_path):
    launcher, family = ready(tmp_path, "--grace", 1)
    launcher.process.send_signal(signal.SIGINT)
    code, _, errors, _ = launcher.outcome(timeout=30)
    assert code == 128 + signal.SIGINT
    assert errors[-1].startswith("launch: nothing was saved after the signal; saved before: nothing known")
    assert_gone(family)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_no_signal_after_the_first_ends_a_save_except_the_third_ctrl_c_to_one_process(first):
    supervisor = supervision.Supervisor(supervision.Job([]))
    sent = []
    supervisor._processes = [types.SimpleNamespace(send=sent.append, notes=ProcessNotes())]
    supervisor.on_signal(first, True)
    for number in (15, 15, 15, 2, 2) if first == signal.SIGTERM else (15, 15, 2):
        for is_forwarded in (True, False):  # whoever signals both has signalled once
            supervisor.on_signal(number, is_forwarded)
    assert sent == [first]
    supervisor.on_signal(signal.SIGINT, True)
    assert sent == [first, signal.SIGKILL]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_job_that_has_saved_after_a_signal_asks_for_a_restart(tmp_path, number):
    launcher, family = ready(tmp_path)
    launcher.process.send_signal(number)
    code, _, _, deaths = launcher.outcome(timeout=10)
    assert (code, deaths) == (75, [])
    assert_gone(family)


def test_sigusr1_to_all_processes_is_for_the_launcher_alone(tmp_path):
    """Slurm sends signals so: `#SBATCH --signal=USR1@180`."""
    launcher, family = ready(tmp_path)
    for process in [launcher.process, *family]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGUSR1)
    code, _, _, deaths = launcher.outcome(timeout=30)
    assert (code, deaths) == (75, [])
    assert_gone(family)


@pytest.mark.parametrize("facts", ["saved='it', saves=1", "saved=None, saves=2"])
def test_a_state_from_before_a_signal_or_none_is_no_save(tmp_path, facts):
    program = f"""
note(saves=1, saved="it")
signal.signal(signal.SIGTERM, lambda *_: note({facts}))
(folder / "ready").touch()
while True:
    time.sleep(0.1)
"""
    launcher = Launcher(tmp_path, program, "--grace", 1)
    launcher.wait_for("ready")
    launcher.process.terminate()
    assert launcher.outcome(timeout=30)[0] == 128 + signal.SIGTERM


def test_a_process_that_is_aborted_after_its_save_has_saved(tmp_path):
    program = """
signal.signal(signal.SIGTERM, lambda *_: (note(saved="it", saves=1), os.abort()))
(folder / "ready").touch()
time.sleep(600)
"""
    launcher = Launcher(tmp_path, program)
    launcher.wait_for("ready")
    launcher.process.terminate()
    assert launcher.outcome(timeout=20)[0] == 75


@pytest.mark.parametrize("which", ["the launcher", "its child"])
def test_no_orphan_and_no_file_is_left_when_the_launcher_is_killed(tmp_path, monkeypatch, which):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    launcher, family = ready(tmp_path)
    assert len([*tmp_path.glob("temporary/keras_dist_launch_*")]) == 1
    (launcher.process if which == "the launcher" else family[0]).kill()
    assert_gone(family)
    assert launcher.process.wait(10) == (-signal.SIGKILL if which == "the launcher" else 128 + signal.SIGKILL)
    assert not [*tmp_path.glob("temporary/*")]
    launcher.process.stderr.close(), launcher.process.stdout.close()


def test_no_orphan_is_left_when_nobody_reads_what_the_launcher_prints(tmp_path):
    program = """
    if is_first("died"):
        sys.exit(1)
    print("x" * 2**20, flush=True)
    start_child()
    time.sleep(0.5)
    note(first_step_at=time.time())
    (folder / "ready").touch()
    time.sleep(600)
    """
    launcher = Launcher(tmp_path, f"if True:{program}")
    launcher.wait_for("ready")
    time.sleep(0.5)  # in which the launcher tries to say that steps go on
    family = launcher.family()
    assert len(family) == 3
    launcher.process.kill()
    assert_gone(family)
    launcher.process.wait(10)
    launcher.process.stderr.close(), launcher.process.stdout.close()


def test_a_signal_between_two_starts_asks_for_a_restart(tmp_path):
    program = "note(saved='it'); os.kill(os.getpid(), 40) if not is_first('died') else sys.exit(1)"
    launcher = Launcher(tmp_path, program)
    while (line := launcher.process.stderr.readline()) != "launch: restart 2 of 3 in 2 s\n":
        assert line
    launcher.process.terminate()
    code, _, _, deaths = launcher.outcome(10)
    assert code == 75
    assert [death["how"] for death in deaths] == ["ended with exit code 1", "was ended by signal 40"]


def test_nobody_reads_the_log(tmp_path):
    program = "print('x' * 200_000, flush=True); (folder / f'printed {index}').touch()"
    launcher = Launcher(tmp_path, program, "--processes", 2)
    launcher.process.stdout.close()
    launcher.wait_for("printed 0", "printed 1")
    assert launcher.process.wait(30) == 0
    launcher.process.stderr.close()


NODES = """
first = is_first(f"start {index}")
(folder / f"starts {index}").open("a").write(f"{address} {time.time()}\\n")
host, _, port = address.rpartition(":")
if index == 0 and first:
    start_child(sys.executable, "-c", f'''
import pathlib, signal, socket, time
with socket.create_server(("{host}", {port})):
    pathlib.Path("{folder}/listens").touch()
    time.sleep(600)
''')
wait_for("listens")
if first:
    if index == 3:
        (folder / "dead").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for("dead")
    note(blamed=3, reason="has failed: no disk")
    sys.exit(75)
for other in range(4):
    wait_for(f"start {other}")
"""


def slurm(node):
    """What srun would set on this node, of two on this machine; the job's number gives a port that is free."""
    for job in random.sample(range(2048), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", 61440 + 2 * job))
            except OSError:
                continue
        break
    told = {"STEP_NODELIST": "127.0.0.1,127.0.0.2", "STEP_NUM_NODES": 2, "STEP_NUM_TASKS": 2, "JOB_ID": job}
    return {f"SLURM_{name}": str(value) for name, value in (told | {"NODEID": node}).items()}


def test_launchers_of_two_nodes_start_their_processes_again(tmp_path):
    env, folders = killed_environment() | slurm(0), [tmp_path, tmp_path / "other"]
    folders[1].mkdir()
    launchers = [
        Launcher(
            *(tmp_path, NODES, "--processes", 2, "--report", folders[node] / "jobs.json"),
            env=env | {"SLURM_NODEID": str(node)},
        )
        for node in range(2)
    ]
    (code, _, errors, deaths), (other, _, others, _) = [launcher.outcome() for launcher in launchers]
    assert (code, other) == (0, 0)
    for node, lines in enumerate((errors, others)):
        assert lines and all(line.startswith(f"launch: node {node} ({socket.gethostname()}): ") for line in lines)
    (killed,) = json.loads((folders[1] / "jobs.node1.json").read_text())["failures"]
    assert (killed["process"], killed["how"]) == (3, "was ended by SIGKILL")
    (death,) = deaths
    assert death["process"] == 3 and re.fullmatch("has failed: no disk, according to process [01]", death["how"])
    starts = [(tmp_path / f"starts {index}").read_text().splitlines() for index in range(4)]
    assert [len(lines) for lines in starts] == [2] * 4
    assert len({line.split()[0] for lines in starts for line in lines}) == 1  # the address
    (child,) = children_of(tmp_path)
    assert not psutil.pid_exists(child)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--processes", "0", "x.py"], "'--processes': Input should be greater than or equal to 1"),
        (["--report", "/", "x.py"], "'--report': file '/' is a directory"),
        (["/nowhere/x.py"], "SCRIPT: '/nowhere/x.py' is not a file in "),
        (["python", "x.py"], "launch starts Python itself"),
        (["--report", "/nowhere/jobs.json", "x.py"], "'--report': folder '/nowhere' does not exist"),
        ([], "Missing argument 'SCRIPT'"),
        ([__file__, "--processes", "2"], "options of launch stand before the script: keras-dist launch --processes"),
        (["-m", "keras_dist", "--processes", "2"], "Invalid value for --processes"),
        (["--processes", "2", __file__, "x", "--grace=3", "--", "x"], "Invalid value for --grace"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, arguments, message):
    assert commands.run("launch", *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("between", "command"),
    [
        ([], [__file__, "--epochs", "3", "--debug", "--", "--processes", "3"]),
        (["--"], [__file__, "--processes", "3", "--", "x"]),
        (["--"], ["-m", "keras_dist", "train", "run.toml"]),
        (["--grace=3"], ["-m", "keras_dist", "train", "run.toml"]),
    ],
)
def test_what_follows_the_script_is_its_own(monkeypatch, between, command):
    jobs = []
    monkeypatch.setattr("keras_dist.cli.launch.run_guarded", lambda run, _: jobs.append(run.__self__._job) or 0)
    assert commands.run("launch", "--processes", "2", *between, *command) == 0
    assert (jobs[0].processes, jobs[0].command) == (2, command)


def test_a_node_that_is_not_known_is_refused(capsys):
    assert commands.run("launch", "--nodes", "2", "x.py") == 2
    assert "no --node-rank" in capsys.readouterr().err


TRAINING = """
import numpy as np
import keras_dist as kd

how, who, step = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
kd.initialize()
kd.set_random_seed(0)
kd.set_distribution(kd.DataParallel())

class Dies(kd.callbacks.Callback):
    steps = 0

    def get_state(self):
        return self.steps

    def set_state(self, state):
        self.steps = state

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps == step and index == who and is_first("died"):
            if how == "raises":
                raise ValueError("no disk")
            os.kill(os.getpid(), signal.Signals[how])

x = np.random.default_rng(0).normal(size=(96, 3)).astype("float32")
model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(4), kd.layers.Dense(1)])
model.compile("adam", "mse")
backup = kd.callbacks.BackupAndRestore(folder / "backup", save_freq=3)
model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=[backup, Dies()])
if kd.distribution.is_chief():
    (folder / "weights.json").write_text(json.dumps([weight.tolist() for weight in model.get_weights()]))
"""
STEPS = 24
HOW = {
    "SIGKILL": "was ended by SIGKILL",
    "SIGSTOP": "has exited or hangs: silent for 60 s; if its machine is only slow, raise heartbeat_timeout_s, "
    "according to process 1",
    "raises": "has failed: ValueError: 'no disk'",
}
OPTIONS = "--processes", 2, "--devices-per-process", 2
TRIALS = 7 if LARGE else 1  # of each kind: 21 in `make soak`


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The weights of a job that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    launcher = Launcher(folder, TRAINING, *OPTIONS, arguments=["never", -1, 0], env=killed_environment())
    code, output, errors, deaths = launcher.outcome(300)
    assert (code, deaths) == (0, []), (output, errors)
    return (folder / "weights.json").read_text()


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("trial", range(TRIALS))
@pytest.mark.parametrize("how", HOW if LARGE else ["SIGSTOP", "raises"] if ROUNDS else ["SIGKILL"])
def test_the_job_ends_with_the_weights_of_an_undisturbed_one(tmp_path, undisturbed, how, trial, record_property):
    who, step = trial % 2, random.Random(f"{how} {trial}").randint(1, STEPS)
    launcher = Launcher(tmp_path, TRAINING, *OPTIONS, arguments=[how, who, step], env=killed_environment())
    code, output, errors, deaths = launcher.outcome(300)
    assert code == 0, (step, output, errors)
    assert "ran alone" not in errors[-1]
    assert (tmp_path / "weights.json").read_text() == undisturbed, step
    assert [(death["process"], death["how"]) for death in deaths] == [(who, HOW[how])], (step, output)
    assert 0 <= deaths[0]["steps_lost"] <= step + MAX_IN_FLIGHT  # of the first process, if the other one died
    assert deaths[0]["to_next_step_s"] > 0
    record_property(f"seconds from {how} to the next step", deaths[0]["to_next_step_s"])
