"""Gradients in a `dtensor.function` of what is split in ways that XLA's partitioner computes wrongly by itself."""

import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import dtensor


def losses_of_images(sizes, split):
    """The losses of three steps with images that are split over their height: before the step, or always."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 8, 4, 2)).astype("f4"), rng.integers(0, 2, 4)
    mesh = dtensor.create_mesh(sizes, devices=kd.list_devices()[: int(np.prod(list(sizes.values())))])
    layout = dtensor.Layout.batch_sharded(mesh, "height", rank=4, axis=1)
    kd.utils.set_random_seed(0)
    with kd.ModelParallel(kd.LayoutMap(mesh)).scope():
        model = kd.Sequential(
            [
                kd.Input(x.shape[1:]),
                kd.layers.Conv2D(2, 3, padding="same", groups=2),
                kd.layers.MaxPooling2D(3, strides=1, padding="same"),
                kd.layers.Flatten(),
                kd.layers.Dense(2),
            ]
        )
    optimizer = kd.optimizers.SGD(0.1)
    images = dtensor.DVariable(x, trainable=False, layout=layout)
    whole = dtensor.copy_to_mesh(x, dtensor.Layout.replicated(mesh, 4))

    @dtensor.function
    def step(model, x, y, optimizer):
        x = images if split == "variable" else x

        def loss_fn():
            return jnp.mean(kd.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True))

        loss, gradients = dtensor.value_and_grad(loss_fn, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    given = dtensor.relayout(whole, layout) if split == "before" else None
    return [float(step(model, given, y, optimizer)) for _ in range(3)]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("split", ["before", "variable"])
def test_images_may_be_split_over_height(split):
    found = losses_of_images({"other": 2, "height": 4}, split)
    np.testing.assert_allclose(found, losses_of_images({"height": 1}, split), rtol=1e-5)


@pytest.mark.parametrize("specs", [["batch", "unsharded"], ["unsharded", "model"]])
def test_parts_of_tokens_that_a_mesh_does_not_divide_have_exact_gradients(specs):
    mesh = dtensor.create_mesh([("batch", 2), ("model", 4)])
    table = dtensor.DVariable(jnp.ones((10, 2)), layout=dtensor.Layout.replicated(mesh, 2))
    tokens = dtensor.copy_to_mesh(np.arange(64).reshape(8, 8) % 10, dtensor.Layout(specs, mesh))

    @dtensor.function
    def gradient(tokens):
        return dtensor.value_and_grad(lambda: jnp.sum(table[tokens[:7, :-1]]), [table])[1][0]

    counts = np.bincount(np.arange(64).reshape(8, 8)[:7, :-1].ravel() % 10, minlength=10)
    np.testing.assert_array_equal(gradient(tokens), np.stack([counts, counts], axis=1))
