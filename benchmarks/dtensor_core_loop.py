"""The training loop of TensorFlow's tutorial "Distributed training with Core APIs and DTensor": 784-700-500-10.

Its network is the one that the tutorial describes; its second hidden layer has 500 units here. TensorFlow 2.15 wants an
older numpy, so this runs in an environment of its own (`make dtensor`); `bench_dtensor` starts it. Prints the seconds
of a step as JSON.

Source: https://www.tensorflow.org/guide/core/distribution
"""

import json
import sys
import time

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

DEVICES, BATCH_SIZE = 8, 128


class DenseLayer(tf.Module):
    """The tutorial's."""

    def __init__(self, in_dim, out_dim, weight_layout, activation=tf.identity):
        super().__init__()
        self.activation = activation
        uniform_initializer = tf.function(tf.random.stateless_uniform)
        limit = tf.sqrt(6.0) / tf.sqrt(tf.cast(in_dim + out_dim, tf.float32))
        self.w = dtensor.DVariable(
            dtensor.call_with_layout(
                uniform_initializer, weight_layout, shape=(in_dim, out_dim), seed=(22, 23), minval=-limit, maxval=limit
            )
        )
        self.b = dtensor.DVariable(dtensor.call_with_layout(tf.zeros, weight_layout.delete([0]), shape=[out_dim]))

    def __call__(self, x):
        """The tutorial's."""
        return self.activation(tf.add(tf.matmul(x, self.w), self.b))


class MLP(tf.Module):
    """The tutorial's."""

    def __init__(self, layers):
        self.layers = layers

    def __call__(self, x):
        """The tutorial's."""
        for layer in self.layers:
            x = layer(x)
        return x


class Adam(tf.Module):
    """The tutorial's."""

    def __init__(self, model_vars, learning_rate=1e-3, beta_1=0.9, beta_2=0.999, ep=1e-7):
        self.model_vars = model_vars
        self.beta_1, self.beta_2, self.learning_rate, self.ep = beta_1, beta_2, learning_rate, ep
        self.t = 1.0
        self.v_dvar, self.s_dvar = [], []
        for var in model_vars:
            self.v_dvar.append(dtensor.DVariable(dtensor.call_with_layout(tf.zeros, var.layout, shape=var.shape)))
            self.s_dvar.append(dtensor.DVariable(dtensor.call_with_layout(tf.zeros, var.layout, shape=var.shape)))

    def apply_gradients(self, grads):
        """The tutorial's."""
        for i, (d_var, var) in enumerate(zip(grads, self.model_vars, strict=True)):
            self.v_dvar[i].assign(self.beta_1 * self.v_dvar[i] + (1 - self.beta_1) * d_var)
            self.s_dvar[i].assign(self.beta_2 * self.s_dvar[i] + (1 - self.beta_2) * tf.square(d_var))
            v_dvar_bc = self.v_dvar[i] / (1 - (self.beta_1**self.t))
            s_dvar_bc = self.s_dvar[i] / (1 - (self.beta_2**self.t))
            var.assign_sub(self.learning_rate * (v_dvar_bc / (tf.sqrt(s_dvar_bc) + self.ep)))
        self.t += 1.0


@tf.function
def train_step(model, x_batch, y_batch, optimizer):
    """The tutorial's."""
    with tf.GradientTape() as tape:
        y_pred = model(x_batch)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y_batch, logits=y_pred))
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(grads)
    accuracy = tf.reduce_mean(tf.cast(tf.equal(y_batch, tf.argmax(y_pred, axis=1)), tf.float32))
    return loss, accuracy


def main(rows: int, epochs: int) -> None:
    """Train for an epoch that compiles, and time the others."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * DEVICES
    )
    mesh = dtensor.create_mesh([("batch", DEVICES)], devices=[f"CPU:{index}" for index in range(DEVICES)])
    weight_layout = dtensor.Layout([dtensor.UNSHARDED, dtensor.UNSHARDED], mesh)
    sizes = (784, 700, 500, 10)
    activations = (tf.nn.relu, tf.nn.relu, tf.identity)
    pairs = zip(sizes[:-1], sizes[1:], activations, strict=True)
    model = MLP([DenseLayer(units, out, weight_layout, activation) for units, out, activation in pairs])
    optimizer = Adam(model.trainable_variables)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 784)).astype(np.float32)
    y = rng.integers(0, 10, rows)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH_SIZE)
    x_layout = dtensor.Layout(["batch", dtensor.UNSHARDED], mesh)
    y_layout = dtensor.Layout(["batch"], mesh)
    started = 0.0
    for epoch in range(1 + epochs):
        if epoch == 1:
            started = time.perf_counter()
        for x_batch, y_batch in data:
            packed = (
                dtensor.pack(tf.split(x_batch, DEVICES), x_layout),
                dtensor.pack(tf.split(y_batch, DEVICES), y_layout),
            )
            loss, _ = train_step(model, *packed, optimizer)
        loss.numpy()
    print(json.dumps((time.perf_counter() - started) / epochs / (rows // BATCH_SIZE)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
