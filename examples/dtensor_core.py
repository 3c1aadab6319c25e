"""TensorFlow's tutorial "Distributed training with Core APIs and DTensor" with `keras_dist`: everything by hand.

    python examples/dtensor_core.py                          # digits of scikit-learn, upscaled to 28x28
    python examples/dtensor_core.py --mnist                  # 5,000 rows of MNIST
    python examples/dtensor_core.py --devices 2 --folder run # two devices; plots and weights are saved in `run`

The same numbers come out on any number of devices, which those of the original do not: its Adam counts the steps in a
number of Python, which `tf.function` reads once.

Source: https://www.tensorflow.org/guide/core/distribution
"""

import argparse
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax

import keras_dist as kd
from keras_dist import dtensor
from keras_dist.datasets import digits, mnist

BATCH_SIZE = 128


class DenseLayer(dtensor.Module):
    """A dense layer whose weights have a layout."""

    def __init__(self, in_dim, out_dim, weight_layout, key, activation=lambda x: x):
        self.activation = activation
        xavier_lim = np.sqrt(6.0) / np.sqrt(in_dim + out_dim)
        self.w = dtensor.DVariable(
            dtensor.call_with_layout(
                jax.random.uniform, weight_layout, key, shape=(in_dim, out_dim), minval=-xavier_lim, maxval=xavier_lim
            )
        )
        bias_layout = weight_layout.delete([0])
        self.b = dtensor.DVariable(dtensor.call_with_layout(jnp.zeros, bias_layout, shape=[out_dim]))

    def __call__(self, x):
        """The forward pass."""
        return self.activation(jnp.add(jnp.matmul(x, self.w), self.b))


class MLP(dtensor.Module):
    """Layers, one after the other."""

    def __init__(self, layers):
        self.layers = layers

    def __call__(self, x):
        """Logits."""
        for layer in self.layers:
            x = layer(x)
        return x


class Adam(dtensor.Module):
    """Adam, with slots that lie as their variables do."""

    def __init__(self, model_vars, learning_rate=1e-3, beta_1=0.9, beta_2=0.999, ep=1e-7):
        self.model_vars = model_vars
        self.beta_1, self.beta_2, self.learning_rate, self.ep = beta_1, beta_2, learning_rate, ep
        self.t = dtensor.DVariable(1.0, trainable=False)
        self.v_dvar = [self.slot(var) for var in model_vars]
        self.s_dvar = [self.slot(var) for var in model_vars]

    @staticmethod
    def slot(var):
        """Zeros, laid out as a variable."""
        return dtensor.DVariable(dtensor.call_with_layout(jnp.zeros, var.layout, shape=var.shape), trainable=False)

    def apply_gradients(self, grads):
        """Update the variables of the model."""
        for i, (d_var, var) in enumerate(zip(grads, self.model_vars, strict=True)):
            self.v_dvar[i].assign(self.beta_1 * self.v_dvar[i] + (1 - self.beta_1) * d_var)
            self.s_dvar[i].assign(self.beta_2 * self.s_dvar[i] + (1 - self.beta_2) * jnp.square(d_var))
            v_dvar_bc = self.v_dvar[i] / (1 - (self.beta_1**self.t))
            s_dvar_bc = self.s_dvar[i] / (1 - (self.beta_2**self.t))
            var.assign_sub(self.learning_rate * (v_dvar_bc / (jnp.sqrt(s_dvar_bc) + self.ep)))
        self.t.assign_add(1.0)


def cross_entropy_loss(y_pred, y):
    """The mean over the batch."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(y_pred, y))


def accuracy(y_pred, y):
    """The share of the rows that are classified rightly."""
    return jnp.mean(jnp.argmax(y_pred, axis=1) == y)


def repack_local_tensor(x, layout):
    """Split an array of the host, and put each part on its device."""
    for axis in range(layout.rank):
        if x.shape[axis] % layout.shape[axis]:
            raise ValueError(f"{layout.shape[axis]} devices do not divide dim {axis} of {x.shape}")
    queue = {(): x}  # the parts by their place along the sharded dims
    for axis, num_splits in enumerate(layout.shape):
        parts = {place: np.split(part, num_splits, axis=axis) for place, part in queue.items()}
        queue = {(*place, index): part for place, found in parts.items() for index, part in enumerate(found)}
    return dtensor.pack([queue[place] for place in layout.offset_to_shard()], layout)


def repack_batch(x, y, mesh):
    """Split a batch by rows."""
    x = repack_local_tensor(x, layout=dtensor.Layout(["batch", dtensor.UNSHARDED], mesh))
    y = repack_local_tensor(y, layout=dtensor.Layout(["batch"], mesh))
    return x, y


@dtensor.function
def train_step(model, x_batch, y_batch, loss, metric, optimizer):
    """Train on a batch."""

    def forward():
        y_pred = model(x_batch)
        return loss(y_pred, y_batch), y_pred

    (batch_loss, y_pred), grads = dtensor.value_and_grad(forward, model.trainable_variables, has_aux=True)
    optimizer.apply_gradients(grads)
    return batch_loss, metric(y_pred, y_batch)


@dtensor.function
def test_step(model, x_batch, y_batch, loss, metric):
    """Evaluate a batch."""
    y_pred = model(x_batch)
    return loss(y_pred, y_batch), metric(y_pred, y_batch)


def load(use_mnist):
    """Batches of rows of 784 numbers and their labels, to train on and to test on."""
    train, test = (mnist if use_mnist else digits).load_data()
    return [list(batches(*(part[:5000] for part in parts))) for parts in (train, test)]


def batches(images, labels):
    """Batches whose rows the devices divide; the rows that are left over are left out."""
    images = np.asarray(images, np.float32) / np.max(images)
    images = np.asarray(jax.image.resize(images, (len(images), 28, 28), "bilinear")).reshape(-1, 784)
    for first in range(0, len(images) // BATCH_SIZE * BATCH_SIZE, BATCH_SIZE):
        yield images[first : first + BATCH_SIZE], labels[first : first + BATCH_SIZE]


def make_model(mesh):
    """The tutorial's network, as it was meant: 784-700-500-10."""
    weight_layout = dtensor.Layout([dtensor.UNSHARDED, dtensor.UNSHARDED], mesh)
    keys = jax.random.split(jax.random.key(22), 3)
    return MLP(
        [
            DenseLayer(784, 700, weight_layout, keys[0], jax.nn.relu),
            DenseLayer(700, 500, weight_layout, keys[1], jax.nn.relu),
            DenseLayer(500, 10, weight_layout, keys[2]),
        ]
    )


def train(mlp_model, optimizer, mesh, train_data, test_data, epochs):
    """The tutorial's loop; returns the losses and accuracies of each epoch."""
    history = {name: [] for name in ("loss", "accuracy", "val_loss", "val_accuracy")}
    for epoch in range(epochs):
        trained, tested = [], []
        for batch in train_data:
            x, y = repack_batch(*batch, mesh)
            trained.append(train_step(mlp_model, x, y, cross_entropy_loss, accuracy, optimizer))
        for batch in test_data:
            x, y = repack_batch(*batch, mesh)
            tested.append(test_step(mlp_model, x, y, cross_entropy_loss, accuracy))
        means = [*np.mean(trained, axis=0), *np.mean(tested, axis=0)]
        for values, mean in zip(history.values(), means, strict=True):
            values.append(float(mean))
        print(f"Epoch: {epoch}")
        print(f"Training loss: {means[0]:.6f}, Training accuracy: {means[1]:.3f}")
        print(f"Testing loss: {means[2]:.6f}, Testing accuracy: {means[3]:.3f}")
    return history


def main():
    """Run the tutorial."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", action="store_true", help="train on MNIST, not on the digits of scikit-learn")
    parser.add_argument("--devices", type=int, default=8, help="fake CPU devices (default: 8)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--folder", type=pathlib.Path, help="where to save plots and weights; by default nowhere")
    given = parser.parse_args()
    kd.use_cpu_devices(given.devices)
    devices = [f"CPU:{index}" for index in range(given.devices)]
    mesh = dtensor.create_mesh([("batch", given.devices)], devices=devices)

    mlp_model = make_model(mesh)
    optimizer = Adam(mlp_model.trainable_variables)
    history = train(mlp_model, optimizer, mesh, *load(given.mnist), given.epochs)
    if given.folder:
        given.folder.mkdir(parents=True, exist_ok=True)
        kd.visualization.plot_history(history, given.folder / "history.png")
        dtensor.DTensorCheckpoint(mesh, model=mlp_model, optimizer=optimizer).save(given.folder / "weights")


if __name__ == "__main__":
    main()
