"""Checkpoints of a job of two real processes: each writes its part, and all have the same outcome."""

import os
import signal
import time

import pytest

from keras_dist import checkpoint
from keras_dist.callbacks import BackupAndRestore
from tests import processes
from tests.soak import LARGE

pytestmark = pytest.mark.multiprocess

SETUP = """
import datetime
import os
import pathlib
import warnings
import keras_dist as kd
from keras_dist import checkpoint, layers
from keras_dist.distribution import sharded_init
from keras_dist.errors import CheckpointError, CheckpointWarning, ClusterError

if "SOAK" not in os.environ:
    sharded_init._CPU_OPTIONS["xla_backend_optimization_level"] = 0
folder = pathlib.Path(sys.argv[4])
draws = np.random.default_rng(0)
X, Y = draws.normal(size=(22, 3)).astype("f4"), draws.normal(size=(22, 2)).astype("f4")  # batches of 8, 8 and 6


def network(data=2):
    names = kd.list_devices()
    mesh = kd.DeviceMesh((data, len(names) // data), ("data", "model"), names)
    rules = kd.LayoutMap(mesh)
    rules["d1/kernel"] = (None, "model")
    with kd.ModelParallel(rules, "data").scope():
        kd.random.set_random_seed(1)
        model = kd.Sequential([
            layers.Input((3,)), layers.Dense(4, "relu", name="d1"), layers.Dropout(0.3, name="drop"),
            layers.Dense(2, name="d2"),
        ])
        model.compile(kd.optimizers.SGD(0.01, momentum=0.9), "mse", metrics=["mae"])
    return model


def values_of(model):
    # of this process's shards, by name and place
    return {
        (name, str(shard.index)): np.array(
            jax.random.key_data(shard.data) if jax.dtypes.issubdtype(shard.data.dtype, jax.dtypes.prng_key)
            else shard.data
        ) for name, one in model.snapshot().arrays.items() for shard in one.addressable_shards
    }


def check_same(found, expected):
    assert found.keys() == expected.keys()
    for key, value in found.items():
        np.testing.assert_array_equal(value, expected[key], str(key))


def check_raises(kind, text, run):
    try:
        run()
    except kind as error:
        assert text in str(error), error
        return error
    raise AssertionError(f"{text!r} was not told")
"""

SAVES = """
x, y = X[:8], Y[:8]
model = network()
with checkpoint.CheckpointManager(model, folder / "states False") as manager:
    assert manager.restore_or_initialize() is None
    manager.save()
with checkpoint.CheckpointManager(model, folder / "states True", keep=2, asynchronous=True) as manager:
    for _ in range(3):
        model.train_on_batch(x, y)
        manager.save()
        saved = values_of(model)
        model.train_on_batch(x, y)  # consumes the arrays while they are written
    manager.wait_until_finished()
    assert manager.steps == [3, 5], manager.steps
    assert manager.restore_or_initialize().endswith("step_00000005")
check_same(values_of(model), saved)
other = network(4)
with checkpoint.CheckpointManager(other, folder / "states True") as manager:
    assert manager.restore_or_initialize().endswith("step_00000005")
for _ in range(2):
    np.testing.assert_allclose(other.train_on_batch(x, y), model.train_on_batch(x, y), rtol=1e-5, atol=1e-6)
model.save(folder / "model")
check_raises(CheckpointError, "exists", lambda: model.save(folder / "model", overwrite=False))
model.save(folder / "model")
model.save_weights(folder / "weights.orbax")
check_same(values_of(kd.models.load_model(folder / "model", distribution=model.distribution)), values_of(model))
other.set_weights([np.zeros(weight.shape) for weight in other.weights])
other.load_weights(folder / "weights.orbax")
np.testing.assert_equal(other.get_weights(), model.get_weights())

# by the clock of the first process: that of the other runs a hundred times as fast
from keras_dist.callbacks import model_checkpoint

class Clock(kd.callbacks.Callback):
    now = 0.0

    def monotonic(self):
        return self.now

    def on_train_batch_begin(self, batch, logs=None):
        self.now += (10, 1000)[process]

model_checkpoint.time, every = Clock(), datetime.timedelta(seconds=40)
backup = kd.callbacks.BackupAndRestore(folder / "timed", every, keep=None, delete_checkpoint=False)
files = kd.callbacks.ModelCheckpoint(folder / "timed" / "{epoch}-{batch}.safetensors", save_freq=every)
begin = int(model.snapshot().step)
model.fit(X, Y, 8, 3, verbose=0, callbacks=[model_checkpoint.time, files, backup])
found = {path.name for path in (folder / "timed").iterdir()} - {".lock"}
assert found == {f"step_{begin + step:08d}" for step in (4, 8)} | {"2-1.safetensors", "3-2.safetensors"}, found

# a bucket, which each process sees with a memory of its own of what is there
import pytest
from tests.checkpoint.buckets import BUCKET, bucket_in

with pytest.MonkeyPatch.context() as patch, bucket_in(folder / "objects", patch):
    model.save(f"{BUCKET}/model")
    with checkpoint.CheckpointManager(model, f"{BUCKET}/states", keep=1, fsync=True) as manager:
        for _ in range(2):
            manager.save()
            saved = values_of(model)
            model.train_on_batch(x, y)
        assert len(manager.steps) == 1
        assert manager.restore_or_initialize().startswith("gs://")
    check_same(values_of(model), saved)
    loaded = kd.models.load_model(f"{BUCKET}/model", distribution=model.distribution)
    assert loaded.count_params() == model.count_params()
"""

FROZEN = """
def with_frozen():
    names = kd.list_devices()
    rules = kd.LayoutMap(kd.DeviceMesh((1, len(names)), ("data", "model"), names))
    rules["d1/kernel"] = (None, "model")
    with kd.ModelParallel(rules, "data").scope():
        kd.random.set_random_seed(1)
        body = layers.Dense(8000, "relu", trainable=False, name="d1")
        model = kd.Sequential([layers.Input((3,)), body, layers.Dense(2, name="d2")])
        model.compile("sgd", "mse")
    return model


def backed_up(epochs):
    model = with_frozen()
    backup = kd.callbacks.BackupAndRestore(folder / "frozen", 2, delete_checkpoint=False)
    model.fit(X, Y, 8, epochs, verbose=0, callbacks=[backup])
    return model
"""

FROZEN_SAVES = """
for epochs in (2, 4):
    model = backed_up(epochs)
found = {path.name for path in (folder / "frozen").iterdir()} - {".lock"}
assert found == {"base_00000002", "step_00000010", "step_00000012"}, found
"""

FROZEN_ALONE = """
backed_up(6)
found = {path.name for path in (folder / "frozen").iterdir()} - {".lock"}
assert found == {"base_00000002", "step_00000016", "step_00000018"}, found
(newest,) = checkpoint.examine(folder / "frozen" / "step_00000018").states
assert newest.is_good and newest.bases == ("base_00000002",), newest
assert checkpoint.examine(folder / "frozen").bases[0].processes == 2
"""

ALONE = """
model = network(1)
with checkpoint.CheckpointManager(model, folder / "states True") as manager:
    assert manager.restore_or_initialize().endswith("step_00000005")
    assert manager.save().endswith("step_00000005")
loaded = kd.models.load_model(folder / "model", distribution=model.distribution)
assert loaded.count_params() == model.count_params()
for name, step, writers in (("states False", 0, 2), ("states True", 5, 1)):
    newest = checkpoint.examine(folder / name).states[-1]
    assert newest.step == step and not newest.problems and newest.processes == writers, newest
"""

FAILURES = """
from keras_dist.checkpoint import Stored, arrays, snapshot
from orbax import checkpoint as orbax

model = network()
manager = checkpoint.CheckpointManager(model, folder / "states", asynchronous=True)
model.fit(X, Y, 8, verbose=0)
manager.save()
manager.wait_until_finished()
before = values_of(model)
check_raises(CheckpointError, "is busy", lambda: checkpoint.CheckpointManager(model, folder / "states"))

# the disk of one machine is full: both are told, nothing is lost, and the next save is good
model.train_on_batch(X[:8], Y[:8])
writes = orbax.PyTreeCheckpointHandler.async_save
async def fails(*args, **kwargs):
    raise OSError(28, "No space left on device")
for failing in (0, 1):
    if process == failing:
        orbax.PyTreeCheckpointHandler.async_save = fails
    manager.save()
    check_raises(CheckpointError, "No space left", manager.wait_until_finished)
    orbax.PyTreeCheckpointHandler.async_save = writes
    assert manager.steps == [3]
    assert process or not [path for path in (folder / "states").iterdir() if "draft" in path.name]
manager.check()
manager.save()
model.train_on_batch(X[:8], Y[:8])
manager.close()

# the newest is damaged: both go on with the one before
latest = folder / "states" / "step_00000004"
if process == 0:
    with (latest / "record.json").open("ab") as file:
        file.write(b" ")
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    with checkpoint.CheckpointManager(model, folder / "states") as manager:
        assert manager.restore_or_initialize().endswith("step_00000003")
assert sum("is skipped" in str(one.message) for one in told) == (process == 0)
check_same(values_of(model), before)

# what one cannot read none takes over
read = arrays.read_arrays
if process == 1:
    snapshot.read_arrays = lambda *args: (_ for _ in ()).throw(CheckpointError("the disk is gone"))
now = values_of(model)
with checkpoint.CheckpointManager(model, folder / "states") as manager, warnings.catch_warnings():
    warnings.simplefilter("ignore")
    check_raises(CheckpointError, "the disk is gone", manager.restore_or_initialize)
snapshot.read_arrays = read
check_same(values_of(model), now)

# who goes on alone is told of, and is not waited for
if process == 0:
    (folder / "a file").write_text("")
check_raises(OSError, "a file", lambda: model.fit(
    X, Y, 8, verbose=0, callbacks=[kd.callbacks.ModelCheckpoint(folder / "a file" / "model")]
))
class Raises(kd.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if process == 1:
            raise ValueError("of process 1")


timed = kd.callbacks.ModelCheckpoint(folder / "timed", save_freq=datetime.timedelta(hours=1))
check_raises(
    (ClusterError, ValueError)[process], "of process 1",
    lambda: model.fit(X, Y, 8, verbose=0, callbacks=[Raises(), timed]),
)
manager = checkpoint.CheckpointManager(model, folder / "given up")
if process == 0:
    check_raises(ClusterError, "it has given up: ValueError('of process 1')", lambda: manager.save())
    manager.close()
else:
    def leaves():
        with manager:
            raise ValueError("of process 1")
    check_raises(ValueError, "of process 1", leaves)
if process == 0:
    check_raises(ClusterError, "not at the same point", lambda: model.save(folder / "one"))
else:
    check_raises(ClusterError, "not at the same point", lambda: kd.models.load_model(folder / "one"))

# places
check_raises(CheckpointError, "different places", lambda: model.save(folder / str(process)))
check_raises(CheckpointError, "is not a checkpoint", lambda: kd.models.load_model(folder / "nowhere"))
(folder / f"file {process}").write_text("")
check_raises(CheckpointError, "is a file", lambda: model.save(folder / "file 0"))
seen, pathlib.Path.is_dir = pathlib.Path.is_dir, lambda path: process == 0 and seen(path)
check_raises(CheckpointError, "is not there", lambda: model.save(folder / "unseen"))
pathlib.Path.is_dir = seen
model.save(folder / "model")
assert not Stored(folder / "model").document("training")
other = kd.Sequential([layers.Input((3,)), layers.Dense(5, name="d1"), layers.Dense(2, name="d2")])
error = check_raises(CheckpointError, "does not fit", lambda: other.restore(Stored(folder / "model")))
assert len(error.problems) > 5
"""

RESUMES = """
from keras_dist.callbacks import BackupAndRestore, Callback

kill_at, epochs = map(int, sys.argv[5:])


def train(name, *callbacks, save_freq=2):
    model = network()
    backup = BackupAndRestore(folder / name, save_freq, delete_checkpoint=False)
    history = model.fit(X, Y, 8, epochs, verbose=0, callbacks=[backup, *callbacks]).history
    return {**values_of(model), **{name: np.array(values) for name, values in history.items()}}
"""

SIGNALLED = """
import signal

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let programs in the background ignore it


class Tell(Callback):
    def on_epoch_begin(self, epoch, logs=None):
        print("epoch", epoch, flush=True)


try:
    train("signalled", Tell())
except SystemExit as end:
    print("leaves", end.code)
    raise
"""

KILLED = """
class Stop(Callback):
    batches = 0

    def on_train_batch_end(self, batch, logs=None):
        Stop.batches += 1
        if Stop.batches == kill_at:
            import signal
            os.kill(os.getpid(), signal.SIGKILL)


train("signalled", Stop())
"""

COMPARED = """
check_same(train("signalled"), train("whole", save_freq=10**6))
"""


def test_what_goes_wrong_in_one_process_all_are_told(tmp_path):
    processes.run(f"{SETUP}\n{FAILURES}", tmp_path)


def test_two_processes_save_what_they_and_one_alone_restore(tmp_path):
    processes.run(f"{SETUP}\n{SAVES}\n{FROZEN}\n{FROZEN_SAVES}", tmp_path)
    processes.run(f"{SETUP}\n{ALONE}\n{FROZEN}\n{FROZEN_ALONE}", tmp_path, processes=1)


@pytest.mark.soak
@pytest.mark.parametrize(("told", "signum", "kill_at"), [(1, signal.SIGTERM, 5), (0, signal.SIGINT, 8)][: 1 + LARGE])
def test_a_job_that_was_told_to_end_and_then_killed_goes_on_as_if_it_had_not_been(tmp_path, told, signum, kill_at):
    job = processes.Job(f"{SETUP}\n{RESUMES}\n{SIGNALLED}", tmp_path, kill_at, 100_000)
    while "epoch 1" not in job.processes[told].printed()[0]:
        assert job.processes[told].is_running()
        time.sleep(0.01)
    os.kill(job.processes[told].pid, signum)
    for code, output, errors in job.outcomes():
        assert code == BackupAndRestore.EXIT_CODE, errors
        assert "leaves 75" in output
    epochs = (checkpoint.examine(tmp_path / "signalled").states[-1].step + kill_at) // 3 + 1
    for code, _, errors in processes.Job(f"{SETUP}\n{RESUMES}\n{KILLED}", tmp_path, kill_at, epochs).outcomes():
        assert code != 0, errors
    processes.run(f"{SETUP}\n{RESUMES}\n{COMPARED}", tmp_path, kill_at, epochs)
