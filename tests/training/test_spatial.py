"""Spatial parallelism: images split over their height and width train convolutions as one device does."""

import functools
from typing import Any

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from tests import layouts
from tests.soak import LARGE, few, repeated

HEIGHT, WIDTH, CHANNELS, ROWS, BATCH = 16, 8, 3, 11, 4
LOSS = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
X = np.random.default_rng(0).normal(size=(ROWS, HEIGHT, WIDTH, CHANNELS)).astype("f4")
Y = np.random.default_rng(1).integers(0, 3, ROWS)

SPLIT: dict[str, tuple[str, tuple[Any, ...]]] = {
    "height": ("height=4", (None, "height", None, None)),
    "height and width": ("height=2,width=4", (None, "height", "width", None)),
    "batch and height": ("batch=2,height=4", ("batch", "height", None, None)),
    "height, each part on two devices": ("batch=2,height=4", (None, "height", None, None)),
    "one row a device": ("batch=1,height=8", (None, "height", None, None)),
}
"""Meshes, and the layouts of images on them."""


def split_over(name: str) -> kd.Distribution:
    mesh, axes = SPLIT.get(name, ("batch=2,model=4", ("batch", None, None, None)))
    size = int(np.prod([int(axis.split("=")[1]) for axis in mesh.split(",")]))
    rules = kd.LayoutMap(kd.DeviceMesh(mesh, devices=kd.list_devices()[:size]))
    rules["input/x"] = axes
    return kd.ModelParallel(rules, strict=True)


def network() -> kd.Model:
    """The images have 16, 8, 4 and 2 rows of 8, 4, 2 and 1 pixels: the last ones are fewer than the devices."""
    return kd.Sequential(
        [
            kd.Input((HEIGHT, WIDTH, CHANNELS)),
            layers.Conv2D(4, 3, padding="same"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Conv2D(8, 3, strides=2, padding="same", activation="tanh"),
            layers.AveragePooling2D(2),
            layers.Conv2D(8, 3, padding="same", activation="tanh"),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )


def compiled(distribution: kd.Distribution, make: Any = network) -> kd.Model:
    with distribution.scope():
        kd.utils.set_random_seed(0)
        model = make()
    model.compile(kd.optimizers.SGD(0.1), loss=LOSS)
    return model


def weights_of(model: kd.Model) -> dict[str, np.ndarray]:
    return {variable.path: variable.numpy() for variable in model.weights}


def used(model: kd.Model) -> dict[str, Any]:
    """What one step changes, then a loop over several steps, and what the model says afterwards."""
    found: dict[str, Any] = {}
    before = weights_of(model)
    found["loss of a step"] = model.train_on_batch(X[:BATCH], Y[:BATCH])
    found |= {f"step of {path}": value - before[path] for path, value in weights_of(model).items()}
    found["losses"] = model.fit(X, Y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0).history["loss"]
    found |= weights_of(model)
    found["evaluation"] = model.evaluate(X[:BATCH], Y[:BATCH], verbose=0)
    found["outputs"] = model.predict(X[:BATCH], verbose=0)
    return found


@functools.cache
def one_device() -> dict[str, Any]:
    return used(compiled(layouts.one_device()))


def assert_near(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """To 1e-5 of the largest number of each array."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name], value, rtol=1e-5, atol=1e-5 * float(np.max(np.abs(value))) + 1e-7, err_msg=name
        )


@pytest.mark.slow
@repeated
@pytest.mark.parametrize("name", few(list(SPLIT)[: None if LARGE else 3], "height and width"))
def test_images_split_over_devices_train_as_on_one(name):
    assert_near(used(compiled(split_over(name))), one_device())


@pytest.mark.parametrize("name", few(["batch alone", *SPLIT] if LARGE else ["batch alone", "height and width"]))
def test_grouped_convolutions_and_windows_that_overlap_do_so_too(name):
    def trained(distribution):
        model = compiled(
            distribution,
            lambda: kd.Sequential(
                [
                    kd.Input((HEIGHT, WIDTH, CHANNELS)),
                    layers.SeparableConv2D(4, 3, padding="same"),
                    layers.MaxPooling2D(3, strides=1, padding="same"),
                    layers.Conv2D(8, 3, padding="same", groups=2, activation="tanh"),
                    layers.MaxPooling2D(4, strides=2, padding="same"),
                    layers.GlobalAveragePooling2D(),
                    layers.Dense(3),
                ]
            ),
        )
        losses = model.fit(X[:8], Y[:8], batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]
        return {"losses": losses, **weights_of(model)}

    assert_near(trained(split_over(name)), trained(layouts.one_device()))


@pytest.mark.slow
def test_fully_sharded_kernels_do_not_make_activations_whole():
    """A kernel sharded by its channels, with as many dims as an image, splits no image."""

    def make():
        parts = [layers.DepthwiseConv2D(3, padding="same"), layers.Conv2DTranspose(8, 3), layers.Conv2D(3, 1)]
        return kd.Sequential([kd.Input((4, 4, 16)), *parts])

    images, targets = (np.random.default_rng(0).normal(size=size) for size in ((16, 4, 4, 16), (16, 6, 6, 3)))

    def trained(distribution):
        with distribution.scope():
            model = make()
        model.compile(kd.optimizers.SGD(0.1), "mse")
        model.set_weights([np.random.default_rng(1).normal(size=weight.shape) for weight in model.weights])
        return {"loss": model.train_on_batch(images, targets), **weights_of(model)}

    strategy = kd.FullySharded(kd.DeviceMesh("data=8"))
    report = kd.plan(make, (images, targets), strategy, "sgd", "mse")
    assert report.problems == () and report.step.repeated == ()
    assert {each.weight != "" for each in report.step.collectives if each.kind == "all_gather"} == {True}
    assert_near(trained(strategy), trained(layouts.one_device()))


def test_each_device_computes_its_rows_and_is_given_the_border_of_its_neighbours():
    def make():
        return kd.Sequential(
            [
                kd.Input((HEIGHT, WIDTH, CHANNELS)),
                layers.Conv2D(4, 3, padding="same"),
                layers.GlobalAveragePooling2D(),
                layers.Dense(3),
            ]
        )

    program = compiled(split_over("height"), make).lower_train_step(X[:BATCH], Y[:BATCH]).compile().as_text()
    assert "collective-permute" in program
    assert f"f32[{BATCH},{HEIGHT // 4},{WIDTH},4]" in program, "the output of the convolution"
    assert f"f32[{BATCH},{HEIGHT},{WIDTH},4]" not in program


def test_a_height_that_the_mesh_does_not_divide_is_refused_with_its_name_and_a_remedy():
    x = np.zeros((BATCH, 30, WIDTH, CHANNELS), "f4")
    model = compiled(
        split_over("height"),
        lambda: kd.Sequential([kd.Input((None, None, CHANNELS)), layers.GlobalAveragePooling2D(), layers.Dense(3)]),
    )
    with pytest.raises(kd.errors.LayoutError, match="cannot shard dim 1 of 'input/x'") as caught:
        model.fit(x, Y[:BATCH], verbose=0)
    assert caught.value.expected == "dim 1 = 30 divisible by axis 'height' = 4"
    assert caught.value.fix == "make the dim 32, or map this path to (None, None, None, None)"
