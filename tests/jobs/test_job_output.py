"""What users see of a job of two real processes, whose data differ: one process speaks, and all decide alike."""

import csv
import json
import re
import socket

import pytest

from tests.forks import Python
from tests.processes import environment

GLOO = "[Gloo] Rank "

PROGRAM = """
import json, os, pathlib, signal, sys, time, warnings
import numpy as np
import keras_dist as kd
from keras_dist import callbacks, layers
from keras_dist.visualization import plot_history

process, port, folder = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
kd.initialize(f"127.0.0.1:{port}", 2, process)
kd.random.set_random_seed(1)
warnings.warn("of all")
if process:
    warnings.warn("of one", RuntimeWarning)
seen = {}


class Watch(callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        seen.setdefault("epochs", []).append([float(self.model.optimizer.learning_rate), best.best, dict(logs)])


draws = np.random.default_rng(process)
x = draws.normal(size=(20, 3)).astype("f4")
y = x[:, :1] + draws.normal(size=(20, 1)).astype("f4")
with kd.DataParallel(auto_shard_dataset=False).scope():
    model = kd.Sequential([layers.Input((3,)), layers.Dense(8, "relu"), layers.Dense(1)])
model.compile(kd.optimizers.SGD(0.2), "mse", metrics=["mae"])
model.summary()
best = callbacks.ModelCheckpoint(folder / "best", save_best_only=True, verbose=1)
calls = [
    callbacks.ReduceLROnPlateau(patience=1, factor=0.5, verbose=1),
    best,
    Watch(),
    callbacks.CSVLogger(folder / "log.csv"),
    callbacks.TensorBoard(folder / "board"),
    callbacks.EarlyStopping(patience=3, verbose=1, restore_best_weights=True),
]
history = model.fit(x, y, 8, 40, validation_data=(x[:6], y[:6]), callbacks=calls)
plot_history(history, folder / f"of {process}.svg")
seen["history"] = history.history
seen["losses"] = model.evaluate(x, y, 8)
seen["outputs"] = model.predict(x, 8).tolist()
with kd.checkpoint.CheckpointManager(model, folder / "states [1]", keep=2) as manager:
    for _ in range(3):
        model.train_on_batch(x, y)
        manager.save()
    weights = model.get_weights()
    model.set_weights([0 * weight for weight in weights])
    manager.restore_or_initialize()
    np.testing.assert_equal(model.get_weights(), weights)
(folder / f"{process}.json").write_text(json.dumps(seen))
if process:
    os.kill(os.getpid(), signal.SIGTERM)  # JAX notes it, within a second; no steps are left to end after
    time.sleep(1.5)
"""


def run_job(program, *arguments):
    """Exit code, output and errors of each of two processes with one device."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = [Python("-c", program, process, port, *arguments, env=environment(1)) for process in range(2)]
    return [process.outcome(120) for process in started]


@pytest.mark.multiprocess
def test_one_process_speaks_and_writes_and_all_decide_alike(tmp_path):
    (code, output, errors), other = run_job(PROGRAM, tmp_path)
    assert code == 0, errors
    assert other[0] == 0 and all(line.startswith(GLOO) for line in other[1].splitlines()), other[1]
    assert re.fullmatch(r".*: RuntimeWarning: of one\n", other[2]), other[2]
    assert re.fullmatch(r".*: UserWarning: of all\n", errors), errors
    first, second = (json.loads((tmp_path / f"{process}.json").read_text()) for process in range(2))
    assert first == second  # bit for bit: JSON has all digits
    rates, bests, _ = zip(*first["epochs"], strict=True)
    assert len(rates) < 40
    assert len(set(rates)) > 1
    assert 1 < len(set(bests)) < len(bests)
    assert len(first["outputs"]) == 40
    lines = [line for line in output.splitlines() if not line.startswith(GLOO)]
    assert lines[0].startswith('Model: "sequential" on mesh {batch: 2}')
    for text, count in {f"Epoch {len(rates)}/40": 1, "early stopping": 1, "3/3 ━": len(rates) + 2}.items():
        assert sum(text in line for line in lines[1:]) == count, (text, output)
    with open(tmp_path / "log.csv") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == [str(epoch) for epoch in range(len(rates))]
    assert sorted(path.name for path in (tmp_path / "board").iterdir()) == ["train", "validation"]
    assert all(len(list(path.iterdir())) == 1 for path in (tmp_path / "board").iterdir())
    assert [path.name for path in tmp_path.glob("*.svg")] == ["of 0.svg"]
