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


@pytest.mark.slow
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
    np.testing.assert_array_equal(model(IMAGES, training=False), IMAGES)
    for called in (layer, model):  # as in Keras: who does not say gets random images
        assert np.abs(np.asarray(called(IMAGES)) - IMAGES).max() > 1


def test_dicts_and_single_images():
    masks = (IMAGES[..., :1] > 100).astype("int32")
    data = {"images": IMAGES, "segmentation_masks": masks, "labels": LABELS}
    found = layers.RandomTranslation((0.5, 0.5), 0.0, fill_mode="constant")(data)
    np.testing.assert_array_equal(found["segmentation_masks"][:, 3:], masks[:, :3])
    np.testing.assert_allclose(found["images"][:, 3:], IMAGES[:, :3], rtol=1e-6)
    np.testing.assert_array_equal(found["labels"], LABELS)
    one = layers.Resizing(3, 4)({name: part[0] for name, part in data.items()})
    assert (one["images"].shape, one["segmentation_masks"].shape, one["labels"].shape) == ((3, 4, 3), (3, 4, 1), ())
    with pytest.raises(kd.errors.ModelError, match="takes images of rank 3 or 4, or a dict of images"):
        layers.RandomFlip()({"images": IMAGES, "bounding_boxes": LABELS})
    with pytest.raises(kd.errors.ModelError, match="takes images of rank 3 or 4, or a dict of images"):
        layers.RandomFlip()(IMAGES[0, 0])


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_masks_need_no_channels(data_format):
    images = IMAGES if data_format == "channels_last" else np.moveaxis(IMAGES, -1, 1)
    masks = (IMAGES[..., 0] > 100).astype("int32")
    flipped = layers.RandomFlip("horizontal", seed=1, data_format=data_format)
    found = flipped({"images": images, "segmentation_masks": masks})
    is_flipped = (np.asarray(found["images"]) != images).any((1, 2, 3))
    assert 0 < is_flipped.sum() < len(images)
    expected = np.where(is_flipped[:, None, None], masks[:, :, ::-1], masks)
    np.testing.assert_array_equal(found["segmentation_masks"], expected)
    resized = layers.Resizing(3, 4, data_format=data_format)
    for rows in (slice(None), 0):
        data = {"images": images[rows], "segmentation_masks": masks[rows]}
        assert resized(data)["segmentation_masks"].shape == (*masks[rows].shape[:-2], 3, 4)
    with pytest.raises(kd.errors.ModelError, match="batches of different sizes"):
        resized({"images": images, "segmentation_masks": masks[:5]})


def test_numbers_are_drawn_for_dicts_and_single_images():
    for data in (IMAGES[0], {"images": IMAGES[:1], "labels": LABELS[:1]}):
        found = layers.RandomFlip().get_random_transformation(data, seed=3)
        assert found["flips"].shape == (1, 1, 1, 1)
        assert layers.RandomFlip().get_random_transformation(data, training=False) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.RandomRotation((0.1, 0.2, 0.3)),
        lambda: layers.RandomZoom((0.1, 2.0)),
        lambda: layers.RandomBrightness(0.1, value_range=(0,)),
        lambda: layers.RandomContrast(0.1, value_range=(5, 5)),
        lambda: layers.RandomFlip("sideways"),
        lambda: layers.RandomTranslation(0.1, 0.1, fill_mode="mirror"),
        lambda: layers.Resizing(3, 3, crop_to_aspect_ratio=True, pad_to_aspect_ratio=True),
        lambda: layers.CenterCrop(0, 3),
    ],
)
def test_wrong_arguments(make):
    with pytest.raises(kd.errors.ModelError):
        make()


def test_a_pipeline_passes_a_mask_to_layers_that_take_one():
    class Masked(layers.Layer):
        supports_masking = True

        def call(self, inputs, mask=None):
            return inputs if mask is None else inputs * mask

    pipeline = layers.Pipeline([layers.Identity(), Masked()])
    np.testing.assert_array_equal(pipeline(np.ones(3, "float32"), mask=np.array([True, False, True])), [1, 0, 1])
