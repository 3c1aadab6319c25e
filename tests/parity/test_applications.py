"""Networks for images: layers, weights and predictions of Keras's; images and classes as it has them."""

import importlib
import json

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import applications
from keras_dist.distribution.abstract import abstract_meshes
from keras_dist.errors import DataError, ModelError
from tests import soak

NETWORKS = {
    "EfficientNetB0": {"classes": 5, "classifier_activation": None},
    "MobileNetV2": {"classes": 5, "alpha": 0.35},
    "ResNet50": {"include_top": False, "pooling": "avg"},
    "VGG16": {"include_top": False, "pooling": "max"},
    "VGG19": {"classes": 5},
    "Xception": {"classes": 5},
}
SHAPE = (75, 75, 3)
SIZES = ("kernel_size", "strides", "pool_size", "dilation_rate")
UNNAMED = ("activity_regularizer", "autocast", "quantization_config")
"""Of Keras's configs, what those of networks do not say."""


LARGE = ("EfficientNetB0", "ResNet50", "Xception", "MobileNetV2")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in NETWORKS]
)
def test_layers_and_weights_are_those_of_keras(keras, name):
    theirs, ours = built(keras, name, SHAPE)
    assert ours.name == theirs.name
    assert [layer.name for layer in ours.layers] == [layer.name for layer in theirs.layers]
    with abstract_meshes():
        mine = [(weight.path, tuple(weight.shape), str(weight.dtype)) for weight in ours.weights]
    assert mine == [(weight.path, tuple(weight.shape), str(weight.dtype)) for weight in theirs.weights]
    described = [
        {layer["name"]: layer for layer in model.get_config()["layers"] if layer["class_name"] != "InputLayer"}
        for model in (theirs, ours)
    ]
    assert described[1].keys() == described[0].keys()
    for layer, expected in described[0].items():
        found = described[1][layer]
        assert found["class_name"] == expected["class_name"]
        assert settled(found["config"]) == settled(expected["config"]), layer
        assert [*tensors(found["inbound_nodes"])] == [*tensors(expected["inbound_nodes"])], layer


CUTS = {"MobileNetV2": "block_2_add", **({"Xception": "add"} if soak.ROUNDS else {})}
"""Where networks are cut off whose predictions are compared: after one of each of their blocks."""
WHOLE = dict.fromkeys(NETWORKS) if soak.LARGE else {}


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("name", "last"), [*CUTS.items(), *WHOLE.items()])
def test_predictions_are_those_of_keras(keras, name, last):
    theirs, ours = built(keras, name, SHAPE)
    if last:
        theirs = keras.Model(theirs.input, theirs.get_layer(last).output)
        with abstract_meshes():
            ours = kd.Model(ours.input, ours.get_layer(last).output)
    ours = kd.Model.from_config(ours.get_config())  # with arrays
    random = np.random.default_rng(0)
    values = [drawn(random, weight, 5 if name == "EfficientNetB0" else 2) for weight in theirs.weights]
    ours.set_weights(values)
    x = random.uniform(0, 255 if name == "EfficientNetB0" else 1, (2, *SHAPE)).astype("float32")
    x[1] *= 0.2
    by_weight = {id(weight): value for weight, value in zip(theirs.weights, values, strict=True)}
    trained, others = (
        [by_weight[id(weight)] for weight in some]
        for some in (theirs.trainable_variables, theirs.non_trainable_variables)
    )
    expected = np.asarray(jax.jit(lambda *state: theirs.stateless_call(*state, training=False)[0])(trained, others, x))
    scale = max(1.0, float(np.abs(expected).max()))
    assert np.ptp(expected, axis=0).max() > 1e-3 * scale, "the images must count"
    np.testing.assert_allclose(ours.predict(x, verbose=0) / scale, expected / scale, atol=1e-4)


def test_weights_come_from_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(applications.mobilenet_v2, "_STAGES", ((16, 1, 1),))
    arguments = {"include_top": False, "alpha": 0.35, "input_shape": (32, 32, 3)}
    network = applications.MobileNetV2(weights=None, **arguments)
    path = tmp_path / "network.safetensors"
    network.save_weights(path)
    again = applications.MobileNetV2(weights=path, input_tensor=kd.Input((32, 32, 3)), name="again", **arguments)
    assert again.name == "again"
    for weight, value in zip(again.weights, network.get_weights(), strict=True):
        np.testing.assert_array_equal(weight.numpy(), value, err_msg=weight.path)


def built(keras, name, shape):
    """The network of Keras and ours, both without values of weights."""
    arguments = {"weights": None, "input_shape": shape, **NETWORKS[name]}
    keras.backend.clear_session()  # it numbers layers in the process
    scope = importlib.import_module("keras.src.backend.common.stateless_scope").StatelessScope
    with scope(initialize_variables=False), abstract_meshes():
        return getattr(keras.applications, name)(**arguments), getattr(applications, name)(**arguments)


def settled(config):
    """The config of a layer in one form: Keras writes objects and pairs for what may be a name or a number."""
    found = {}
    for key, value in config.items():
        if key.endswith("_initializer"):
            made = kd.initializers.get(value)
            found[key] = type(made).__name__, made.get_config()
        elif key == "activation":
            found[key] = kd.activations.get(value)
        elif key == "dtype":
            found[key] = value["config"]["name"] if isinstance(value, dict) else value
        elif key not in UNNAMED:
            value = listed(value)
            value = [value] * 2 if key in SIZES and isinstance(value, int) else value
            if key == "axis":
                value = [axis % 4 for axis in ([value] if isinstance(value, int) else value)]
            if key == "padding" and isinstance(value, int):
                value = [[value] * 2] * 2
            found[key] = value
    return found


def listed(value):
    """Sequences as lists, those that a config holds as objects, too."""
    if isinstance(value, dict) and value.get("class_name") == "__tuple__":
        value = value["config"]["value"]
    return [listed(one) for one in value] if isinstance(value, list | tuple) else value


def tensors(nodes):
    """The layers that tensors come from and their shapes, of the inputs of a layer in a config."""
    if isinstance(nodes, dict) and "keras_history" in nodes:
        yield nodes["keras_history"][0], [*nodes["shape"]]
    elif isinstance(nodes, dict | list | tuple):
        for one in nodes.values() if isinstance(nodes, dict) else nodes:
            yield from tensors(one)


def drawn(random, weight, gain):
    """A value with which what comes out depends on what goes in."""
    if len(weight.shape) > 1:
        summed = weight.shape[:2] if weight.shape[-1] == 1 else weight.shape[:-1]  # of a depthwise kernel the window
        return random.normal(0, (gain / np.prod(summed)) ** 0.5, weight.shape).astype("float32")
    low, high = (0.8, 1.2) if weight.name in ("gamma", "moving_variance", "variance") else (-0.1, 0.1)
    return random.uniform(low, high, weight.shape).astype(str(weight.dtype))


@pytest.mark.parametrize(
    "module", ["mobilenet_v2", "resnet", "resnet50", "efficientnet", "vgg16", "vgg19", "xception", "imagenet_utils"]
)
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
    with pytest.raises(DataError, match="the scores must have the shape"):
        applications.vgg16.decode_predictions(scores[:, 1:], class_index=names)
    path.write_text("[1, 2]")
    with pytest.raises(DataError, match="`class_index` must be"):
        applications.vgg16.decode_predictions(scores, class_index=path)


def test_nothing_is_downloaded():
    with pytest.raises(ModelError, match="nothing is downloaded"):
        applications.VGG16()
    with pytest.raises(ModelError, match="`input_shape` must be"):
        applications.ResNet50(weights=None, input_shape=(16, 16, 3))
    with pytest.raises(ModelError, match="`input_shape` must be"):
        applications.VGG16(weights=None, input_shape=64)
    with pytest.raises(ModelError, match="`alpha`"):
        applications.MobileNetV2(weights=None, alpha=0)
    with pytest.raises(ModelError, match="channels last"):
        try:
            kd.config.set_image_data_format("channels_first")
            applications.VGG16(weights=None, include_top=False)
        finally:
            kd.config.set_image_data_format("channels_last")
    with pytest.raises(ModelError, match="at least 71"):
        applications.Xception(weights=None, input_shape=(70, 80, 3))
    with pytest.raises(ModelError, match="were trained with the activation"):
        applications.MobileNetV2(weights="weights.safetensors", classifier_activation="relu")
