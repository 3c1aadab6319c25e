"""TensorFlow's tutorial "Multi-worker training with Keras", without its progress bar: one process of the job.

TensorFlow 2.15 wants an older numpy, so this runs in an environment of its own (`make dtensor`); `bench_jobs` starts
it. Prints the seconds of a step as JSON.

Source: https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras
"""

import json
import sys
import time

import numpy as np
import tensorflow as tf


def make_model():
    """The tutorial's."""
    model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(input_shape=(28, 28)),
            tf.keras.layers.Reshape(target_shape=(28, 28, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.001),
        metrics=["accuracy"],
    )
    return model


def main(rows: int, batch_size: int, steps: int, epochs: int) -> None:
    """Train for an epoch that compiles, and time the others."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rng = np.random.default_rng(0)
    x, y = rng.random((rows, 28, 28), np.float32), rng.integers(0, 10, rows)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(rows).repeat().batch(batch_size)
    with strategy.scope():
        model = make_model()
    ends = []
    clock = tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ends.append(time.perf_counter()))
    model.fit(data, epochs=1 + epochs, steps_per_epoch=steps, callbacks=[clock], verbose=0)
    print(json.dumps((ends[-1] - ends[0]) / epochs / steps))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
