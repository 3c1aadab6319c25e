"""A job goes on without processes and nodes that stay away, and with them once they are back."""

import json
import re
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from tests import soak
from tests.cli.test_launch import Launcher
from tests.cli.test_membership import pair_of_ports
from tests.processes import killed_environment

pytestmark = pytest.mark.multiprocess

BEGIN = """
local, processes = int(os.environ["KERAS_DIST_LOCAL_PROCESS"]), int(os.environ["KERAS_DISTRIBUTION_NUM_PROCESSES"])
request = pathlib.Path(os.environ["KERAS_DIST_NOTES_FILE"]).with_suffix(".request")

def train(start, until):  # saves until the job is asked to end, or to the end
    for step in range(until):
        note(saved=f"{start} {step}", steps=step + 1, saved_steps=step, first_step_at=time.time(), step_at=time.time())
        time.sleep(0.05)
        if request.exists():
            (folder / f"end {start}").touch()
        if (folder / f"end {start}").exists():
            sys.exit(75)
"""


def launcher(folder, program, *options, **more):
    return Launcher(folder, BEGIN + program, *options, **more)


def lines_of(errors):
    """What the launcher said, without the name of its node."""
    found = [re.match(r"launch: (?:node \d+ \([^)]*\): )?(.*)", line) for line in errors]
    return [match[1] for match in found if match]


def sizes(deaths):
    return [(death["process"], death["processes"]) for death in deaths]


def test_a_broken_process_is_left_out_and_seldom_tried_again(tmp_path):
    program = """
starts = len(list(folder.glob(f"start * of {local}")))
(folder / f"start {starts} of {local}").touch()
if local == 1:
    wait_for("step")
    sys.exit(5)
if processes == 4:
    train(starts, 3 * (not starts))
    (folder / "step").touch()
    time.sleep(600)
train(starts, 40 if (folder / "start 2 of 1").exists() else 4000)
"""
    run = launcher(tmp_path, program, "--processes", 4, "--min-processes", 2)
    code, output, errors, deaths = run.outcome(120)
    assert code == 0, (output, errors)
    growths = json.loads(run.report.read_text())["resizes"]
    assert sizes(deaths) == [(1, 4), (1, 3), (1, 3)]
    assert [(growth["how"], growth["processes"]) for growth in growths] == [("saved and ended", 4)]
    told = lines_of(errors)
    assert [line for line in told if "starts with" in line] == [
        "starts with 3 of 4 processes",
        "starts with 4 of 4 processes",
        "starts with 3 of 4 processes",
    ]
    assert told.count("asks the job to end at its next save, and restarts it with more processes then") == 1
    assert "first step" in told[-2]
    assert all(entry["to_next_step_s"] > 0 for entry in (deaths[0], deaths[1], *growths, deaths[2]))


def test_no_process_is_left_out_where_all_fail_alike_or_too_few_are_left(tmp_path):
    for name, options, program in (
        ("alike", ["--processes", 2, "--min-processes", 1], "sys.exit(3)"),
        ("few", ["--processes", 3, "--min-processes", 3], "sys.exit(3) if local == 1 else time.sleep(600)"),
    ):
        (tmp_path / name).mkdir()
        run = launcher(tmp_path / name, program, *options, "--max-restarts", 1)
        code, _, errors, deaths = run.outcome()
        assert (code, [death["restarted"] for death in deaths]) == (3, [True, False])
        assert "starts with" not in "".join(errors)


def test_a_job_that_asks_for_restarts_without_progress_is_given_up(tmp_path):
    run = launcher(tmp_path, "sys.exit(75)", "--processes", 2, "--min-processes", 1)
    code, _, errors, _ = run.outcome()
    assert code == 1
    assert errors[-1] == "launch: given up after 3 restarts in a row without progress: the job saved and ended"


UNFIT = """
import keras_dist as kd

if local == 1:
    wait_for("step")
    sys.exit(5)
if processes < 4:
    kd.use_cpu_devices(processes)
    print(kd.DeviceMesh(sys.argv[2]))
else:
    train(0, is_first(f"trained {local}"))
    (folder / "step").touch()
    time.sleep(600)
"""


def test_a_mesh_that_does_not_shrink_is_an_error_that_names_its_axes(tmp_path):
    run = launcher(tmp_path, UNFIT, "--processes", 4, "--min-processes", 2, arguments=["data=2,model=2"])
    code, _, errors, deaths = run.outcome(120)
    assert code == 1
    assert deaths[0]["process"] == 1
    assert [death["processes"] for death in deaths] == [4, 3, 2, None]
    told = "\n".join(errors)
    assert "given:    shape=(2, 2) (data=2 x model=2 = 4) on 2 device(s)" in told
    fix = "write -1 for an axis of the mesh that may shrink, or leave out --min-processes and --min-nodes"
    assert f"given up as the mesh does not fit 2 of 4 processes ({fix}): process " in told


def test_a_job_shrinks_to_a_number_of_processes_that_fits_its_mesh(tmp_path):
    run = launcher(
        tmp_path, UNFIT, "--processes", 4, "--min-processes", 2, "--max-restarts", 2, arguments=["data=-1,model=2"]
    )
    code, output, errors, _ = run.outcome(120)
    assert code == 0, (output, errors)
    assert lines_of(errors)[-2] == "starts with 2 of 4 processes"
    assert sum("<DeviceMesh shape=(1, 2)" in line for line in output) == 2


def node(folder, rank, nodes, port, program, *options, **more):
    """The launcher of a node; all share a folder."""
    of_node = ["--nodes", nodes, "--node-rank", rank, "--coordinator", f"127.0.0.1:{port}"]
    run = launcher(folder, program, *of_node, "--report", folder / f"jobs{rank}.json", *options, **more)
    run.report = folder / f"jobs{rank}.json"
    return run


def ended(run):
    """The exit code of a launcher, and what it said."""
    try:
        errors = run.process.communicate(timeout=120)[1]
    finally:
        run.process.kill()
    return run.process.returncode, lines_of(errors.splitlines())


def test_a_node_that_stays_away_ends_the_job_with_75_and_the_state_after_one_time_to_join(tmp_path):
    program = """
if is_first(f"start {index}"):
    note(saved="backup/step_7", steps=3, saved_steps=2, first_step_at=time.time())
    os.kill(os.getpid(), signal.SIGKILL)
note(absent=[2, 3] if index == 0 else [])
sys.exit(1)
"""
    code, told = ended(node(tmp_path, 0, 2, pair_of_ports(), program, "--processes", 2, "--join-timeout", 9))
    assert code == 75
    saved = "saved: backup/step_7; start the same command again, on every node"
    assert told[-1] == f"node 1 (process 2, 3) did not join within 9 s; {saved}"
    assert len([line for line in told if line.startswith("restart")]) == 1


def test_processes_that_wait_in_vain_note_who_is_absent(tmp_path):
    program = "import keras_dist as kd\nkd.initialize()"
    options = "--join-timeout", 3
    code, told = ended(node(tmp_path, 0, 2, pair_of_ports(), program, *options))
    saved = "saved: nothing known, as training has not begun; start the same command again, on every node"
    assert (code, told) == (75, [f"node 1 (process 1) did not join within 3 s; {saved}"])
    code, told = ended(node(tmp_path, 1, 2, pair_of_ports(), program, *options))
    assert (code, told) == (75, [f"node 0 (process 0) did not join within 3 s; {saved}"])


def test_others_end_with_75_where_node_0_stays_away(tmp_path):
    options = "--min-nodes", 1, "--join-timeout", 1
    code, (line,) = ended(node(tmp_path, 1, 2, pair_of_ports(), "", *options))
    assert code == 75
    assert line.startswith("node 0, with the coordinator, stayed away for 1 s: ")
    assert line.endswith("saved: nothing known, as training has not begun; start the same command again, on every node")


def test_a_port_that_is_taken_is_told_in_one_line(tmp_path):
    port = pair_of_ports()
    with socket.create_server(("127.0.0.1", port + 1)):
        code, told = ended(node(tmp_path, 0, 2, port, "", "--min-nodes", 1))
    assert code == 2 and told[0] == "node 0 cannot listen for the other nodes"


NODES = """
kind = len(list(folder.glob(f"start {index} of {processes} *")))
(folder / f"start {index} of {processes} {kind}").touch()
if processes == 3 and kind == 0:
    note(saved="step 1", steps=1, saved_steps=0, first_step_at=time.time())
    if index == 1:
        (folder / "trains").touch()
        time.sleep(600)
    wait_for("killed")
    note(saved="step 1", steps=1, saved_steps=0, blamed=1, reason="has exited")
    sys.exit(75)
if processes == 2:
    (folder / "goes on").touch()
    train(f"of {processes}", 2000)
note(first_step_at=time.time(), steps=1)
"""


def test_a_job_goes_on_without_a_node_and_with_it_once_it_calls_again(tmp_path):
    port, options = pair_of_ports(), ("--min-nodes", 2, "--join-timeout", 3)
    runs = [node(tmp_path, rank, 3, port, NODES, *options) for rank in range(3)]
    runs[0].wait_for("trains")
    runs[1].process.send_signal(signal.SIGKILL)
    runs[1].process.wait()
    (tmp_path / "killed").touch()
    runs[0].wait_for("goes on")
    runs += [node(tmp_path, 1, 3, port, NODES, *options)]
    (first, told), killed, (other, _), (back, _) = [ended(run) for run in runs]
    assert (first, killed[0], other, back) == (0, -signal.SIGKILL, 0, 0), told
    assert "starts with 2 of 3 processes, without node 1" in told and "starts with 3 of 3 processes" in told
    assert len([*tmp_path.glob("start * of 3 1")]) == 3
    report = json.loads((tmp_path / "jobs0.json").read_text())
    assert [death["processes"] for death in report["failures"]] == [2]
    assert [growth["processes"] for growth in report["resizes"]] == [3]


def test_a_node_that_waits_for_a_place_ends_with_the_code_of_the_job(tmp_path):
    program = """
(folder / "trains").touch()
while not request.exists():  # with which the launcher of node 0 notes the other one
    time.sleep(0.05)
sys.exit(3)
"""
    port, options = pair_of_ports(), ("--min-nodes", 1, "--join-timeout", 1, "--max-restarts", 0)
    first = node(tmp_path, 0, 2, port, program, *options)
    first.wait_for("trains")
    late = node(tmp_path, 1, 2, port, program, *options)
    assert ended(first)[0] == 3
    told = "the job has ended with exit code 3, while this node waited for a place in it"
    assert ended(late) == (3, [told])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--processes", "2", "--min-processes", "3"], "3 is more than --processes 2"),
        (["--min-nodes", "2"], "2 is more than --nodes 1"),
        (
            ["--processes=2", "--min-processes=1", "--nodes=2", "--node-rank=0", "--coordinator=a:1"],
            "only with --min-nodes; 2 for all of them",
        ),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(options, message):
    command = [sys.executable, "-m", "keras_dist", "launch", *options, "--", __file__]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and message in done.stderr


TRAINING = """
import numpy as np, jax.numpy as jnp
import keras_dist as kd

how = sys.argv[2]
if how == "dies" and local == 1 and (folder / "died").exists() and not (folder / "mended").exists():
    sys.exit("no device")
kd.initialize()
kd.set_random_seed(0)
kd.set_distribution(kd.DataParallel(kd.DeviceMesh("data=-1")))
ROWS = 45  # batches of 10, and one of 5
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("f4")
NUMBERED = np.concatenate([X[:, :1], np.arange(ROWS, dtype="f4")[:, None]], 1)


def error(y_true, y_pred):
    return jnp.mean((y_true[:, :1] - y_pred) ** 2, -1)


class Miscounted(kd.metrics.Metric):
    # of the rows of an epoch, how many the steps have not seen once
    def __init__(self):
        super().__init__(name="miscounted")
        self.seen = self.add_variable((ROWS,), name="seen")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.seen.assign(self.seen.value.at[y_true[:, 1].astype("int32")].add(1.0))

    def result(self):
        return jnp.sum(self.seen.value != 1)


class Trial(kd.callbacks.Callback):
    steps = 0

    def get_state(self):
        return self.steps

    def set_state(self, state):
        self.steps = state

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if how == "dies" and self.steps == 7 and local == 1 and is_first("died"):
            os.kill(os.getpid(), signal.SIGKILL)
        if processes < int(sys.argv[3]):
            (folder / "mended").touch()
            while index == 0 and self.steps == 20 and not request.exists():
                time.sleep(0.01)
        with (folder / f"sizes {index}").open("a") as file:
            file.write(f"{processes} ")


model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(8, "tanh"), kd.layers.Dropout(0.25), kd.layers.Dense(1)])
model.compile(kd.optimizers.SGD(0.05, momentum=0.9), error, metrics=[Miscounted()])
backup = kd.callbacks.BackupAndRestore(folder / "backup", save_freq=3)
history = model.fit(X, NUMBERED, 10, 10, verbose=0, callbacks=[backup, Trial()]).history
if kd.distribution.is_chief():
    (folder / "history.json").write_text(json.dumps(history))
"""

OWN_ROWS = """
import numpy as np
import keras_dist as kd

if local == 1 and (folder / "died").exists():
    sys.exit("no device")
kd.initialize()
kd.set_distribution(kd.DataParallel(auto_shard_dataset=False))


class Die(kd.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 5 and local == 1 and is_first("died"):
            os.kill(os.getpid(), signal.SIGKILL)


model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
model.compile("sgd", "mse")
backup = kd.callbacks.BackupAndRestore(folder / "backup", save_freq=2, asynchronous=False)
model.fit(np.ones((40, 3)), np.ones((40, 1)), 4, 2, verbose=0, callbacks=[backup, Die()])
"""


def test_a_job_whose_processes_pass_their_own_rows_ends_with_an_error_instead_of_shrinking(tmp_path):
    options = "--processes", 2, "--min-processes", 1, "--devices-per-process", 1
    run = launcher(tmp_path, OWN_ROWS, *options, env=killed_environment())
    code, output, errors, deaths = run.outcome(300)
    assert code == 1, (output, errors)
    assert [(death["process"], death["restarted"], death["processes"]) for death in deaths] == [
        (1, True, 2),
        (1, True, 1),
        (0, False, None),
    ]
    told = "\n".join(errors)
    assert "given:    auto_shard_dataset=False, and 1 processes that pass different rows" in told
    assert "expected: 2 processes, as in the interrupted training" in told
    assert "given up as the state does not fit this number of processes: process 0 has failed: ModelError: " in told


@soak.soak_if_large
@pytest.mark.slow
@pytest.mark.parametrize("count", soak.sampled([4, 2], 2))
def test_a_job_that_shrinks_and_grows_ends_with_the_losses_of_an_undisturbed_one(tmp_path, count):
    histories = {}
    for how in ("never", "dies"):
        folder = tmp_path / how
        folder.mkdir()
        options = "--processes", count, "--min-processes", 1, "--devices-per-process", 1
        run = launcher(folder, TRAINING, *options, arguments=[how, count], env=killed_environment())
        code, output, errors, deaths = run.outcome(600)
        assert code == 0, (output, errors)
        histories[how] = json.loads((folder / "history.json").read_text())
    assert sizes(deaths) == [(1, count), (1, count - 1)]
    seen = (tmp_path / "dies" / "sizes 0").read_text().split()
    assert [size for at, size in enumerate(seen) if seen[at - 1 : at] != [size]] == [
        str(count),
        str(count - 1),
        str(count),
    ]
    assert histories["dies"]["miscounted"] == [0] * 10  # every row once an epoch
    np.testing.assert_allclose(histories["dies"]["loss"], histories["never"]["loss"], rtol=0, atol=1e-6)
    (growth,) = json.loads(run.report.read_text())["resizes"]
    assert growth["steps_lost"] == 0 and growth["to_next_step_s"] > 0
    assert all(death["to_next_step_s"] > 0 for death in deaths)
