"""Layers for images in models, on meshes, on single images and dicts; values are compared in tests/parity."""

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from tests.training.collectives import collectives_of, of_kind

IMAGES = np.random.default_rng(0).uniform(0, 255, (14, 6, 8, 3)).astype("float32")
LABELS = np.arange(14) % 3


def augmented(seed):
    kd.set_random_seed(3)
    inputs = kd.Input((6, 8, 3))
    x = layers.RandomFlip(seed=seed)(inputs)
    x = layers.RandomRotation(0.2, seed=seed)(x)
    x = layers.RandomContrast(0.4, seed=seed)(layers.RandomCrop(5, 6, seed=seed)(x))
    outputs = layers.Dense(3)(layers.Flatten()(layers.Rescaling(1 / 255)(layers.Resizing(4, 4)(x))))
    model = kd.Model(inputs, outputs)
    model.compile(kd.optimizers.SGD(0.1), kd.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_every_mesh_augments_alike():
    found = {}
    for shape in ((1, 1), (4, 2)):
        mesh = kd.DeviceMesh(shape, ("batch", "model"), devices=kd.list_devices()[: shape[0] * shape[1]])
        with kd.ModelParallel(layout_map=kd.LayoutMap(mesh), batch_dim_name="batch").scope():
            model = augmented(seed=5)
        # 14 rows in batches of 5: no batch divides the mesh
        history = model.fit(IMAGES, LABELS, batch_size=5, epochs=2, shuffle=False, verbose=0).history
        found[shape] = history["loss"]
        assert not of_kind(collectives_of(model.lower_train_step(IMAGES[:8], LABELS[:8])), "all-gather")
    np.testing.assert_allclose(found[4, 2], found[1, 1], rtol=1e-5)
    assert found[1, 1][0] != found[1, 1][1]


def test_nothing_is_random_but_in_training():
    layer = layers.RandomZoom(0.4)
    np.testing.assert_array_equal(layer(IMAGES, training=False), IMAGES)
    model = kd.Sequential([kd.Input((6, 8, 3)), layer])
    np.testing.assert_array_equal(model.predict(IMAGES, verbose=0), IMAGES)
    assert np.abs(np.asarray(layer(IMAGES)) - IMAGES).max() > 1  # as Keras, outside of models by default


def test_dicts_and_single_images():
    masks = (IMAGES[..., :1] > 100).astype("int32")
    data = {"images": IMAGES, "segmentation_masks": masks, "labels": LABELS}
    found = layers.RandomTranslation((0.5, 0.5), 0.0, fill_mode="constant")(data)
    np.testing.assert_array_equal(found["segmentation_masks"][:, 3:], masks[:, :3])
    np.testing.assert_allclose(found["images"][:, 3:], IMAGES[:, :3], rtol=1e-6)
    np.testing.assert_array_equal(found["labels"], LABELS)
    one = layers.Resizing(3, 4)({name: part[0] for name, part in data.items()})
    assert (one["images"].shape, one["segmentation_masks"].shape, one["labels"].shape) == ((3, 4, 3), (3, 4, 1), ())
    with pytest.raises(kd.errors.ModelError, match="something else than images"):
        layers.RandomFlip()({"images": IMAGES, "bounding_boxes": LABELS})
    with pytest.raises(kd.errors.ModelError, match="something else than images"):
        layers.RandomFlip()(IMAGES[0, 0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.RandomRotation((0.1, 0.2, 0.3)),
        lambda: layers.RandomZoom(-1.0),
        lambda: layers.RandomZoom((0.1, 2.0)),
        lambda: layers.RandomContrast(-0.1),
        lambda: layers.RandomBrightness(0.1, value_range=(0,)),
        lambda: layers.RandomFlip("sideways"),
        lambda: layers.RandomTranslation(0.1, 0.1, fill_mode="mirror"),
        lambda: layers.Resizing(3, 3, crop_to_aspect_ratio=True, pad_to_aspect_ratio=True),
        lambda: layers.CenterCrop(0, 3),
    ],
)
def test_wrong_arguments(make):
    with pytest.raises(kd.errors.ModelError):
        make()
