"""A small training run, which can wait for a test after one of its steps: `python train.py FOLDER [--hold]`."""

import argparse
import json
import os
import pathlib
import time

import numpy as np

import keras_dist as kd

EPOCHS, STEPS, HOLD = 4, 5, 8
"""`--hold` waits after this step, in the second epoch, at the first start of a job. A state is saved every 3 steps."""


class Hold(kd.callbacks.Callback):
    """Waits after step `HOLD` until the file `go` exists; later steps take a second, in which a signal arrives."""

    def __init__(self, folder: pathlib.Path, process: int) -> None:
        super().__init__()
        self.folder, self.process, self.steps, self.has_held = folder, process, 0, False

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps == HOLD and not (self.folder / "go").exists():
            draft = self.folder / f"draft.{self.process}"
            draft.write_text(str(os.getpid()))
            draft.rename(self.folder / f"holds.{self.process}")
            while not (self.folder / "go").exists():
                time.sleep(0.02)
            self.has_held = True
        if self.has_held:
            time.sleep(1)


def trained(*callbacks):
    """The losses of all epochs."""
    kd.set_random_seed(1)
    model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(4, "tanh"), kd.layers.Dropout(0.25), kd.layers.Dense(1)])
    model.compile(kd.optimizers.Adam(0.01), "mse")
    x = np.random.default_rng(0).normal(size=(8 * STEPS, 3)).astype("float32")
    return model.fit(x, x[:, :1], 8, EPOCHS, verbose=0, callbacks=[*callbacks]).history["loss"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--hold", action="store_true")
    given = parser.parse_args()
    kd.initialize()
    kd.set_distribution(kd.DataParallel())
    callbacks = [kd.callbacks.BackupAndRestore(given.folder / "backup", save_freq=3)]
    if given.hold:
        callbacks.append(Hold(given.folder, kd.distribution.cluster().process_index))
    losses = trained(*callbacks)
    if kd.distribution.is_chief():
        print("losses", json.dumps(losses), flush=True)


if __name__ == "__main__":
    main()
