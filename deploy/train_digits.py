"""Train a convolutional network on handwritten digits: the same script in one process, and in a job of several.

    python train_digits.py --alone                                   # one process
    keras-dist launch --processes 2 train_digits.py                  # two processes of this machine
    sbatch slurm/train.sbatch train_digits.py --folder /shared/run   # several machines; as well mpi/ and kubernetes/

`initialize` finds the place of the process in its job: in `TF_CONFIG`, in `KERAS_DISTRIBUTION_*`, or where Slurm, Open
MPI, Kubernetes and Cloud TPU put it. A job that is started again goes on at the step that was saved last, also with
fewer or more processes. `--folder` must be the same folder for all of them.
"""

import argparse
import pathlib

import numpy as np

import keras_dist as kd
from keras_dist.datasets import digits

STEPS = 70
"""Batches of an epoch."""


def load(rows):
    """Images of 0 to 1 and their labels: so many to train on, which repeat the digits, and those of the test set."""
    (x, y), (x_test, y_test) = digits.load_data()
    x, y = np.resize(x, (rows, 8, 8)), np.resize(y, rows)
    return (x / np.float32(16), y), (x_test / np.float32(16), y_test)


def build_and_compile():
    """The network; its weights are copied to every device of the job."""
    model = kd.Sequential(
        [
            kd.Input((8, 8)),
            kd.layers.Reshape((8, 8, 1)),
            kd.layers.Conv2D(32, 3, activation="relu"),
            kd.layers.Flatten(),
            kd.layers.Dense(128, activation="relu"),
            kd.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=kd.optimizers.SGD(0.05),
        loss=kd.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main():
    """Train, save and evaluate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--alone", action="store_true", help="train in this process, without a job")
    parser.add_argument("--folder", type=pathlib.Path, default="digits", help="where to save (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128, help="of all processes together (default: 128)")
    given = parser.parse_args()

    if not given.alone:
        kd.initialize()
    kd.set_random_seed(1337)
    kd.set_distribution(kd.DataParallel())
    train, test = load(STEPS * given.batch_size)
    model = build_and_compile()
    history = model.fit(
        *train,
        batch_size=given.batch_size,
        epochs=given.epochs,
        validation_data=test,
        verbose=2,
        callbacks=[kd.callbacks.BackupAndRestore(given.folder / "backup", save_freq=30)],
    )
    model.save(given.folder / "model")
    loss, accuracy = model.evaluate(*test, batch_size=given.batch_size, verbose=0)

    print(kd.distribution.cluster())
    for name, values in history.history.items():
        print(f"{name}:", *(f"{value:.6f}" for value in values))
    print(f"test: loss {loss:.6f}, accuracy {accuracy:.6f}")


if __name__ == "__main__":
    main()
