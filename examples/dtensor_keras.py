"""TensorFlow's tutorial "Using DTensors with Keras" with `keras_dist`: layouts of layers, packed batches, `LayoutMap`.

    python examples/dtensor_keras.py                 # digits of scikit-learn, upscaled to 28x28
    python examples/dtensor_keras.py --mnist         # MNIST, if tensorflow-datasets can download it
    python examples/dtensor_keras.py --devices 2 --epochs 20

In a job of several processes (DTensor's clients), as `TF_CONFIG` or the launcher describe it, each has so many devices:

    keras-dist launch --processes 2 examples/dtensor_keras.py --devices 4

What differs from the original: imports; `jnp` for `tf`; `dtensor.function` for `tf.function`; and a function to
differentiate in the place of the tape. The same numbers come out on any number of devices and processes.

Source: https://www.tensorflow.org/tutorials/distribute/dtensor_keras_tutorial
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

import keras_dist as kd
from keras_dist import dtensor
from keras_dist.datasets import digits, mnist

BATCH_SIZE = 128


def load(use_mnist):
    """Batches of images of 28x28x1 and their labels, to train on and to test on."""
    train, test = (mnist if use_mnist else digits).load_data()
    return [list(batches(*upscaled(*part))) for part in (train, test)]


def upscaled(images, labels):
    """Images of 28x28x1, from 0 to 1."""
    images = np.asarray(images, np.float32) / np.max(images)
    return np.asarray(jax.image.resize(images, (len(images), 28, 28), "bilinear"))[..., None], labels


def batches(images, labels):
    """Batches whose rows the devices divide; the rows that are left over are left out."""
    for first in range(0, len(images) // BATCH_SIZE * BATCH_SIZE, BATCH_SIZE):
        yield images[first : first + BATCH_SIZE], labels[first : first + BATCH_SIZE]


def make_model(mesh):
    """The classifier, with a layout for each weight: every weight is whole on every device."""
    unsharded_layout_2d = dtensor.Layout.replicated(mesh, 2)
    unsharded_layout_1d = dtensor.Layout.replicated(mesh, 1)
    return kd.Sequential(
        [
            kd.layers.Flatten(input_shape=(28, 28, 1)),
            kd.layers.Dense(
                128, activation="relu", name="d1", kernel_layout=unsharded_layout_2d, bias_layout=unsharded_layout_1d
            ),
            kd.layers.Dense(10, name="d2", kernel_layout=unsharded_layout_2d, bias_layout=unsharded_layout_1d),
        ]
    )


@dtensor.function
def train_step(model, x, y, optimizer, metrics):
    """Train on a batch."""

    def loss_fn():
        logits = model(x, training=True)
        # jnp.sum reduces the losses of the rows, which devices share, to one loss
        return jnp.sum(kd.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)), logits

    (loss, logits), gradients = dtensor.value_and_grad(loss_fn, model.trainable_variables, has_aux=True)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    for metric in metrics.values():
        metric.update_state(y_true=y, y_pred=logits)
    return {"loss": loss / len(x)}


@dtensor.function
def eval_step(model, x, y, metrics):
    """Evaluate a batch."""
    logits = model(x, training=False)
    loss = jnp.sum(kd.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))
    for metric in metrics.values():
        metric.update_state(y_true=y, y_pred=logits)
    return {"eval_loss": loss / len(x)}


def pack_dtensor_inputs(images, labels, image_layout, label_layout):
    """Split a batch over the devices: its part for this process over those of this process."""
    num_local_devices = image_layout.mesh.num_local_devices()
    images = np.split(own_rows(images), num_local_devices)
    labels = np.split(own_rows(labels), num_local_devices)
    return dtensor.pack(images, image_layout), dtensor.pack(labels, label_layout)


def own_rows(rows):
    """The part of a batch for this process, which is the whole batch where there is no other."""
    return np.split(rows, dtensor.num_clients())[dtensor.client_id()]


def train(model, mesh, ds_train, ds_test, epochs):
    """The tutorial's loop."""
    optimizer = dtensor.keras.optimizers.Adam(0.01, mesh=mesh)
    metrics = {"accuracy": kd.metrics.SparseCategoricalAccuracy(mesh=mesh)}
    eval_metrics = {"eval_accuracy": kd.metrics.SparseCategoricalAccuracy(mesh=mesh)}
    image_layout = dtensor.Layout.batch_sharded(mesh, "batch", rank=4)
    label_layout = dtensor.Layout.batch_sharded(mesh, "batch", rank=1)
    for epoch in range(epochs):
        print("Epoch: ", epoch)
        for metric in [*metrics.values(), *eval_metrics.values()]:
            metric.reset_state()
        results = {}
        pbar = kd.utils.Progbar(target=len(ds_train), stateful_metrics=["accuracy"])
        for step, batch in enumerate(ds_train, 1):
            images, labels = pack_dtensor_inputs(*batch, image_layout, label_layout)
            results.update(train_step(model, images, labels, optimizer, metrics))
            results.update({name: metric.result() for name, metric in metrics.items()})
            pbar.update(step, values=results.items())
        for batch in ds_test:
            images, labels = pack_dtensor_inputs(*batch, image_layout, label_layout)
            results.update(eval_step(model, images, labels, eval_metrics))
        results.update({name: metric.result() for name, metric in eval_metrics.items()})
        for name, value in results.items():
            print(f"{name}: {float(value):.6f}")


def fit(mesh, ds_train, ds_test, epochs):
    """The same with `fit`, which DTensor does not have."""
    model = make_model(mesh)
    loss = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(dtensor.keras.optimizers.Adam(0.01, mesh=mesh), loss, metrics=["accuracy"])
    images, labels = map(np.concatenate, zip(*ds_train, strict=True))
    tested = tuple(map(np.concatenate, zip(*ds_test, strict=True)))
    model.fit(images, labels, BATCH_SIZE, epochs, validation_data=tested, verbose=2)


class SubclassedModel(kd.Model):
    """The tutorial's second model, whose rules go by the names of attributes."""

    def __init__(self):
        super().__init__()
        self.feature = kd.layers.Dense(16)
        self.feature_2 = kd.layers.Dense(24)
        self.dropout = kd.layers.Dropout(0.1)

    def call(self, inputs, training=None):
        """Logits."""
        x = self.feature(inputs)
        x = self.dropout(x, training=training)
        return self.feature_2(x)


def show_layout_maps(mesh):
    """The layouts of existing models by rules: subclassed, functional and sequential."""
    layout_map = dtensor.keras.LayoutMap(mesh=mesh)
    layout_map["feature.*kernel"] = dtensor.Layout.batch_sharded(mesh, "batch", rank=2)
    layout_map["feature.*bias"] = dtensor.Layout.batch_sharded(mesh, "batch", rank=1)

    with layout_map.scope():
        subclassed_model = SubclassedModel()
    dtensor_input = dtensor.copy_to_mesh(jnp.zeros((16, 16)), layout=dtensor.Layout.replicated(mesh, rank=2))
    subclassed_model(dtensor_input)  # creates the weights
    print(subclassed_model.feature.kernel.layout)

    with layout_map.scope():
        inputs = kd.Input((16,), batch_size=16)
        x = kd.layers.Dense(16, name="feature")(inputs)
        x = kd.layers.Dropout(0.1)(x)
        output = kd.layers.Dense(32, name="feature_2")(x)
        model = kd.Model(inputs, output)
    print(model.layers[1].kernel.layout)

    with layout_map.scope():
        model = kd.Sequential(
            [
                kd.layers.Dense(16, name="feature", input_shape=(16,)),
                kd.layers.Dropout(0.1),
                kd.layers.Dense(32, name="feature_2"),
            ]
        )
    print(model.layers[2].kernel.layout)


def main():
    """Run the tutorial."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", action="store_true", help="train on MNIST, not on the digits of scikit-learn")
    parser.add_argument("--devices", type=int, default=8, help="fake CPU devices of each process (default: 8)")
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    kd.use_cpu_devices(given.devices)
    dtensor.initialize_accelerator_system()  # joins the job, if there is one
    kd.utils.set_random_seed(1337)
    mesh = dtensor.create_distributed_mesh([("batch", dtensor.num_global_devices())])

    ds_train, ds_test = load(given.mnist)
    model = make_model(mesh)
    for weight in model.weights:
        print(f"Weight name: {weight.path} with layout: {weight.layout}")
        break
    train(model, mesh, ds_train, ds_test, given.epochs)
    kd.utils.set_random_seed(1337)
    fit(mesh, ds_train, ds_test, given.epochs)
    show_layout_maps(mesh)


if __name__ == "__main__":
    main()
