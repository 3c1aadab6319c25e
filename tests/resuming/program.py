"""A training that is killed again and again: `python -m tests.resuming.program CASE FOLDER SEEDS`.

Each life is a fork of a process that has imported everything and started nothing; each seed says when one is killed. It
prints, as JSON, what the training gave that was never killed, and what the last life of the other one gave.
"""

import hashlib
import json
import os
import pathlib
import random
import signal
import sys
import threading
import time
import warnings
from typing import Any

import jax
import numpy as np
import orbax.checkpoint  # noqa: F401  # once, in the process that is forked

import keras_dist as kd
from keras_dist import callbacks, layers
from keras_dist.checkpoint.snapshot import Snapshot
from keras_dist.errors import CheckpointWarning
from tests import layouts
from tests.networks import CLASSES, FEATURES, HIDDEN, LOSS, Noisy, blobs
from tests.pretrained import python_source

X, Y = blobs(45)
WEIGHTS = np.linspace(0.5, 1.5, 45).astype(np.float32)
BATCH_SIZE = 10
EPOCHS = 3


class Batches(kd.utils.PyDataset):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * BATCH_SIZE, (index + 1) * BATCH_SIZE)
        return X[rows], Y[rows], WEIGHTS[rows]


def forever():
    while True:
        yield from (Batches()[index] for index in range(5))


def network() -> kd.Model:
    return kd.Sequential(
        [
            kd.Input((FEATURES,)),
            layers.Dense(HIDDEN, name="d1"),
            layers.BatchNormalization(),
            layers.Dropout(0.25),
            layers.Dense(CLASSES, name="d2"),
        ]
    )


def with_accuracy() -> dict[str, Any]:
    return {"optimizer": kd.optimizers.Adam(0.01), "loss": LOSS, "metrics": ["accuracy"]}


def watchers() -> list[Any]:
    """Callbacks with a memory."""
    return [
        callbacks.EarlyStopping("loss", patience=2, min_delta=0.05, restore_best_weights=True, start_from_epoch=1),
        callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=1.0),
        callbacks.LearningRateScheduler(lambda epoch, rate: 0.9 * rate),
    ]


CASES: dict[str, dict[str, Any]] = {
    "generator in a save": {
        "layout": "data=4,model=2",
        "data": ((forever,), {"steps_per_epoch": 5}),
        "save_freq": 1,
        "in_save": True,
        "life": (2, 6),
    },
    "foreign module": {
        "layout": "data=4,model=2",
        "factory": Noisy,
        "data": ((X, Y, BATCH_SIZE), {"sample_weight": WEIGHTS, "validation_data": (X[:13], Y[:13])}),
        "callbacks": watchers,
        "save_freq": 2,
    },
    "fine-tuning": {
        "layout": "data=2,model=4",
        "rules": python_source.RULES,
        "model": python_source.decoder,
        "compile": lambda: {"optimizer": kd.optimizers.Adam(0.01, gradient_accumulation_steps=2), "loss": "causal_lm"},
        "data": ((python_source.packed, None, 8), {"steps_per_epoch": 7}),
        "save_freq": 1,
        "life": (6, 11),  # in an epoch, and between two updates
    },
    "matrices": {
        "layout": "fully data=2,model=4",
        "compile": lambda: {"optimizer": kd.optimizers.Muon(0.01, neuron_beta=0.9), "loss": LOSS},
        "data": ((X, Y, BATCH_SIZE), {}),
        "save_freq": 2,
    },
    "epochs": {
        "layout": "fully data=8",
        "data": ((X, Y, BATCH_SIZE), {}),
        "save_freq": "epoch",
        "sync": True,
        "life": (6, 9),
    },
}


class Killer(callbacks.Callback):
    """Kills the process in a step, or some time after a save has begun: after so many of them, by chance."""

    def __init__(self, seed: int, in_save: bool, life: tuple[int, int]) -> None:
        super().__init__()
        rng = random.Random(seed)
        self.left = rng.randint(*life)
        self.seconds = rng.uniform(0, 0.1)
        self.in_save = in_save
        if in_save:
            begin = Snapshot.begin

            def begin_and_die(snapshot: Snapshot, *arguments: Any) -> Any:
                self.left -= 1
                if self.left <= 0:
                    threading.Thread(target=self.die_later, daemon=True).start()
                return begin(snapshot, *arguments)

            Snapshot.begin = begin_and_die  # type: ignore[method-assign]

    def die_later(self) -> None:
        time.sleep(self.seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.in_save and self.left <= 0:
            time.sleep(60)  # until it is killed: a quick machine must not come to the end before
        if not self.in_save:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def life(name: str, folder: str, kill: int | None) -> dict[str, Any]:
    """Train, from where the life before was killed, and tell what came of it."""
    case = CASES[name]
    begun = bool(list(pathlib.Path(folder).glob("step_*")))
    with layouts.on(case["layout"], case.get("rules", layouts.RULES)).scope():
        kd.set_random_seed(8 if begun else 7)  # a life that goes on with another is not told its seed
        model = kd.Model.from_nnx(case["factory"]) if "factory" in case else case.get("model", network)()
    model.compile(**case.get("compile", with_accuracy)())
    watching = case.get("callbacks", list)()
    save_freq = case["save_freq"]
    if kill is None and not begun and save_freq != "epoch":
        save_freq = 10**6  # the training that is never killed needs no saves
    backup = callbacks.BackupAndRestore(folder, save_freq, asynchronous="sync" not in case)
    killer = [] if kill is None else [Killer(kill, case.get("in_save", False), case.get("life", (3, 6)))]
    args, options = case["data"]
    args = [arg() if callable(arg) else arg for arg in args]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)  # the drafts of those that were killed
        history = model.fit(*args, epochs=EPOCHS, verbose=0, callbacks=[*watching, backup, *killer], **options)
    arrays = model.snapshot().arrays
    return {
        "begun": begun,
        "arrays": {path: digest(array) for path, array in arrays.items()},
        "history": history.history,
        "epochs": history.epoch,
        "metrics": {name: float(value) for name, value in model.get_metrics_result().items()},
        "wait": [getattr(callback, "wait", None) for callback in watching],
        "left over": os.path.exists(folder),
    }


def digest(array: Any) -> str:
    array = jax.random.key_data(array) if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key) else array
    return hashlib.sha256(np.asarray(array).tobytes()).hexdigest()[:16]


def forked(name: str, folder: str, kill: int | None = None) -> dict[str, Any] | None:
    """What a life in a process of its own gave; None if it was killed."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            found = life(name, folder, kill)
            os.write(write, json.dumps(found).encode())
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and kill is not None:
        return None
    if status:
        raise RuntimeError(f"a life ended with status {status}")
    return json.loads(text)


def main() -> None:
    name, folder, kills = sys.argv[1], sys.argv[2], [int(seed) for seed in sys.argv[3:]]
    expected = forked(name, f"{folder}/never killed")
    killed = 0
    for seed in kills:
        found = forked(name, f"{folder}/killed", seed)
        if found is not None:
            break  # it came to its end before
        killed += 1
    else:
        found = forked(name, f"{folder}/killed")
    print(json.dumps({"expected": expected, "found": found, "killed": killed}))


if __name__ == "__main__":
    main()
