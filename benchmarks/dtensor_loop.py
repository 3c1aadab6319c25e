"""The training loop of TensorFlow's tutorial "Using DTensors with Keras", without its progress bar.

TensorFlow 2.15 wants an older numpy, so this runs in an environment of its own (`make dtensor`); `bench_dtensor`
starts it. Prints the seconds of a step as JSON.

Source: https://www.tensorflow.org/tutorials/distribute/dtensor_keras_tutorial
"""

import json
import sys
import time

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

DEVICES, BATCH_SIZE = 8, 128


@tf.function
def train_step(model, x, y, optimizer, metrics):
    """The tutorial's."""
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = tf.reduce_sum(tf.keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    for metric in metrics.values():
        metric.update_state(y_true=y, y_pred=logits)
    return {"loss": loss / len(x)}


def pack(images, labels, mesh):
    """A batch on the mesh, split by rows."""
    image_layout = dtensor.Layout.batch_sharded(mesh, "batch", rank=4)
    label_layout = dtensor.Layout.batch_sharded(mesh, "batch", rank=1)
    images, labels = tf.split(images, DEVICES), tf.split(labels, DEVICES)
    return dtensor.pack(images, image_layout), dtensor.pack(labels, label_layout)


def make_mesh():
    """Eight virtual CPUs."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * DEVICES
    )
    tf.keras.backend.experimental.enable_tf_random_generator()
    tf.keras.utils.set_random_seed(1337)
    return dtensor.create_mesh([("batch", DEVICES)], devices=[f"CPU:{index}" for index in range(DEVICES)])


def make_model(mesh):
    """The tutorial's: every weight on every device."""
    layouts = {
        "kernel_layout": dtensor.Layout.replicated(mesh, rank=2),
        "bias_layout": dtensor.Layout.replicated(mesh, rank=1),
    }
    return tf.keras.models.Sequential(
        [
            tf.keras.layers.Flatten(input_shape=(28, 28, 1)),
            tf.keras.layers.Dense(128, activation="relu", name="d1", **layouts),
            tf.keras.layers.Dense(10, name="d2", **layouts),
        ]
    )


def main(rows: int, epochs: int) -> None:
    """Train for an epoch that compiles, and time the others."""
    mesh = make_mesh()
    model = make_model(mesh)
    optimizer = tf.keras.dtensor.experimental.optimizers.Adam(0.01, mesh=mesh)
    metrics = {"accuracy": tf.keras.metrics.SparseCategoricalAccuracy(mesh=mesh)}
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 28, 28, 1)).astype(np.float32)
    y = rng.integers(0, 10, rows)
    data = tf.data.Dataset.from_tensor_slices((x, y)).cache().shuffle(rows).batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)
    started = 0.0
    for epoch in range(1 + epochs):
        if epoch == 1:
            started = time.perf_counter()
        for metric in metrics.values():
            metric.reset_state()
        results = {}
        for images, labels in data:
            images, labels = pack(images, labels, mesh)
            results.update(train_step(model, images, labels, optimizer, metrics))
            for name, metric in metrics.items():
                results[name] = metric.result()
        results["loss"].numpy()
    print(json.dumps((time.perf_counter() - started) / epochs / (rows // BATCH_SIZE)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
