"""Networks for images: layers, weights and predictions of Keras's; images and classes as it has them."""

import json

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import applications
from keras_dist.errors import DataError, ModelError

SMALL = {"weights": None, "input_shape": (32, 32, 3), "include_top": False, "pooling": "avg"}
NETWORKS = {
    "MobileNetV2": {"weights": None, "input_shape": (32, 32, 3), "classes": 5, "alpha": 0.35},
    "ResNet50": {**SMALL},
    "EfficientNetB0": {"weights": None, "input_shape": (33, 33, 3), "classes": 5, "classifier_activation": None},
    "VGG16": {**SMALL, "pooling": "max"},
}


LARGE = ("ResNet50", "EfficientNetB0")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in NETWORKS]
)
def test_networks_are_those_of_keras(keras, name, tmp_path):
    arguments = NETWORKS[name]
    theirs, ours = getattr(keras.applications, name)(**arguments), getattr(applications, name)(**arguments)
    assert ours.name == theirs.name
    kinds = [
        [(type(layer).__name__, layer.name) for layer in model.layers if _is_named(layer)] for model in (theirs, ours)
    ]
    assert kinds[1] == kinds[0]
    assert [weight.shape for weight in ours.weights] == [weight.shape for weight in theirs.weights]
    assert [weight.path for weight in ours.weights] == [weight.path for weight in theirs.weights]
    random = np.random.default_rng(0)
    values = [drawn(random, weight, 5 if name == "EfficientNetB0" else 2) for weight in theirs.weights]
    theirs.set_weights(values)
    for layer in theirs.layers:
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()  # Keras counts its weights only from then on
    ours.set_weights(values)
    x = random.uniform(0, 255 if name == "EfficientNetB0" else 1, (2, *arguments["input_shape"])).astype("float32")
    x[1] *= 0.2
    expected = theirs.predict(x, verbose=0)
    scale = max(1.0, float(np.abs(expected).max()))
    assert np.ptp(expected, axis=0).max() > 1e-3 * scale, "the images must count"
    np.testing.assert_allclose(ours.predict(x, verbose=0) / scale, expected / scale, atol=1e-4)
    if name not in LARGE:
        path = tmp_path / "network.safetensors"
        ours.save_weights(path)
        arguments = {**arguments, "weights": path, "input_tensor": kd.Input(arguments["input_shape"]), "name": "again"}
        again = getattr(applications, name)(**arguments)
        assert again.name == "again"
        for weight, value in zip(again.weights, values, strict=True):
            np.testing.assert_array_equal(weight.numpy(), value, err_msg=weight.path)


def drawn(random, weight, gain):
    """A value with which what comes out depends on what goes in."""
    if len(weight.shape) > 1:
        summed = weight.shape[:2] if weight.shape[-1] == 1 else weight.shape[:-1]  # of a depthwise kernel the window
        return random.normal(0, (gain / np.prod(summed)) ** 0.5, weight.shape).astype("float32")
    low, high = (0.8, 1.2) if weight.name in ("gamma", "moving_variance", "variance") else (-0.1, 0.1)
    return random.uniform(low, high, weight.shape).astype(str(weight.dtype))


def _is_named(layer):
    """Names of others are numbered in the process by Keras, in the model here."""
    return not layer.name.startswith(("input_layer", "global_", "rescaling", "normalization"))


@pytest.mark.parametrize("module", ["mobilenet_v2", "resnet", "resnet50", "efficientnet", "vgg16", "imagenet_utils"])
def test_images_are_prepared_as_by_keras(keras, module):
    x = np.random.default_rng(0).integers(0, 255, (2, 3, 4, 3))
    theirs, ours = getattr(keras.applications, module), getattr(applications, module)
    modes = ["tf", "torch", "caffe"] if module == "imagenet_utils" else [None]
    for mode in modes:
        options = {} if mode is None else {"mode": mode}
        np.testing.assert_allclose(
            ours.preprocess_input(x, **options), theirs.preprocess_input(x, **options), rtol=1e-5
        )
        first = x.transpose(0, 3, 1, 2).astype("float32")
        expected = theirs.preprocess_input(first.copy(), data_format="channels_first", **options)
        np.testing.assert_allclose(ours.preprocess_input(first, "channels_first", **options), expected, rtol=1e-5)


def test_predictions_have_names(tmp_path):
    names = {str(number): [f"n{number}", f"thing {number}"] for number in range(10)}
    path = tmp_path / "classes.json"
    path.write_text(json.dumps(names))
    scores = np.arange(20, dtype="float32").reshape(2, 10)[:, ::-1]
    for given in (path, str(path), names):
        found = applications.vgg16.decode_predictions(scores, top=2, class_index=given)
        assert found == [
            [("n0", "thing 0", 9.0), ("n1", "thing 1", 8.0)],
            [("n0", "thing 0", 19.0), ("n1", "thing 1", 18.0)],
        ]
    with pytest.raises(DataError, match="needs the names"):
        applications.vgg16.decode_predictions(scores)
    with pytest.raises(DataError, match="do not fit the classes"):
        applications.vgg16.decode_predictions(scores[:, 1:], class_index=names)
    path.write_text("[1, 2]")
    with pytest.raises(DataError, match="holds no names"):
        applications.vgg16.decode_predictions(scores, class_index=path)


def test_nothing_is_downloaded():
    with pytest.raises(ModelError, match="nothing is downloaded"):
        applications.VGG16()
    with pytest.raises(ModelError, match="`input_shape` is no shape"):
        applications.ResNet50(weights=None, input_shape=(16, 16, 3))
    with pytest.raises(ModelError, match="another activation"):
        applications.MobileNetV2(weights="weights.safetensors", classifier_activation="relu")
