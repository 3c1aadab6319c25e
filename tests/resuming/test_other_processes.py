"""A training that is stopped in the middle of an epoch, and goes on in another number of processes."""

import json

import numpy as np
import pytest

from tests import processes

PROGRAM = """
import json
import pathlib
import jax.numpy as jnp
import keras_dist as kd
from keras_dist import layers
from keras_dist.callbacks import BackupAndRestore, Callback

folder, lives = pathlib.Path(sys.argv[4]), json.loads(sys.argv[5])
draws = np.random.default_rng(0)
ROWS = 45  # batches of 10, and one of 5
X, Y = draws.normal(size=(ROWS, 3)).astype("f4"), draws.normal(size=(ROWS, 1)).astype("f4")
NUMBERED = np.concatenate([Y, np.arange(ROWS, dtype="f4")[:, None]], 1)


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


class Stop(Callback):
    def __init__(self, batches):
        super().__init__()
        self.left = batches or -1

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            raise InterruptedError


def train(name, seed, batches):
    # from where the life before was stopped, so many batches, of which the last one is not saved
    kd.set_random_seed(seed)
    with kd.DataParallel().scope():
        model = kd.Sequential([kd.Input((3,)), layers.Dense(8, "tanh"), layers.Dropout(0.25), layers.Dense(1)])
        model.compile(kd.optimizers.SGD(0.05, momentum=0.9), error, metrics=[Miscounted()])
    backup = BackupAndRestore(folder / name, save_freq=2, keep=None, delete_checkpoint=False)
    try:
        model.fit(X, NUMBERED, 10, 3, verbose=0, callbacks=[backup, Stop(batches)])
    except InterruptedError:
        return
    assert model.history.history["miscounted"] == [0, 0, 0], model.history.history
    values = [*model.get_weights(), *(slot.numpy() for slot in model.optimizer.variables)]
    if process == 0:
        np.savez(folder / f"{name}.npz", *values, loss=model.history.history["loss"])


for life in lives:
    train(*life)
"""


@pytest.mark.multiprocess
def test_every_row_counts_once_an_epoch_whoever_trains_on_it(tmp_path):
    def run(count, *lives):
        processes.run(PROGRAM, tmp_path, json.dumps(lives), processes=count, devices=1)

    run(3, ("fewer", 7, 4))
    run(2, ("fewer", 8, 6))
    run(1, ("fewer", 9, None), ("alone", 7, None))
    fewer, alone = (np.load(tmp_path / f"{name}.npz") for name in ("fewer", "alone"))
    for name in alone.files:
        np.testing.assert_allclose(fewer[name], alone[name], rtol=0, atol=1e-6, err_msg=name)


OWN_ROWS = """
import pathlib
import keras_dist as kd
from keras_dist.errors import ModelError

class Stop(kd.callbacks.Callback):
    left = 5  # in the second epoch

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0 and processes == 2:
            raise InterruptedError


def train(name):
    kd.set_random_seed(0)
    with kd.DataParallel(auto_shard_dataset=False).scope():
        model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
        model.compile("sgd", "mse")
    backup = kd.callbacks.BackupAndRestore(pathlib.Path(sys.argv[4]) / str(name), name, keep=1, delete_checkpoint=False)
    rows = 12 // processes
    model.fit(np.ones((rows, 3)), np.ones((rows, 1)), 2, 3, verbose=0, callbacks=[backup, Stop()])
    return len(model.history.epoch)


for name in ("epoch", 1):
    try:
        print(name, train(name))
    except (InterruptedError, ModelError) as error:
        print(name, str(error).partition("\\n")[0])
"""


@pytest.mark.multiprocess
def test_another_number_of_processes_with_their_own_rows_resumes_between_epochs_only(tmp_path):
    def run(count):
        job = processes.Job(OWN_ROWS, tmp_path, processes=count, devices=1)
        ((code, output, errors), *_) = job.outcomes()
        assert code == 0, errors
        return [line for line in output.splitlines() if line.startswith(("epoch ", "1 "))]

    assert run(2) == ["epoch ", "1 "]
    epoch, batch = run(1)
    assert epoch == "epoch 3"
    assert batch.startswith("1 fit cannot resume within an epoch: the number of processes that pass their own rows")
