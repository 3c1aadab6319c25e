"""Names of Keras and TensorFlow that keras_dist does not have: the error says what takes their place."""

import re

import pytest

import keras_dist as kd
from keras_dist import data
from keras_dist._support import missing_names


@pytest.mark.parametrize(
    ("package", "name", "words"),
    [
        (kd, "Quantizer", "model.quantize"),
        (kd, "quantizers", "model.quantize"),
        (kd, "legacy", "kd.saving"),
        (kd, "StatelessScope", "model.stateless_call"),
        (kd, "applications", "from_keras"),
        (kd.layers, "MixUp", "`keras.layers.MixUp` in the data pipeline"),
        (kd.layers, "MelSpectrogram", "in the data pipeline"),
        (kd.datasets, "cifar10", "tensorflow_datasets"),
        (kd.layers, "TFSMLayer", "does not run TensorFlow"),
        (kd.layers, "MaxNumBoundingBoxes", "pad while data is read"),
        (kd.utils, "bounding_boxes", "`jax.numpy`"),
        (kd.export, "ExportArchive", "model.export"),
        (kd, "GradientTape", "; instead: `value_and_grad`"),
        (kd, "function", "`jax.jit`"),
        (kd, "distribute", "kd.ModelParallel"),
        (kd, "MirroredStrategy", "kd.DataParallel"),
        (kd, "io", "`pathlib`"),
        *((kd, name, "`jax.numpy`") for name in ("cast", "convert_to_tensor", "reduce_sum", "split")),
        (kd.config, "set_logical_device_configuration", "kd.use_cpu_devices"),
        (kd.random, "set_seed", "kd.utils.set_random_seed"),
        (data, "Dataset", "`fit` takes"),
    ],
)
def test_the_error_names_the_replacement(package, name, words):
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}'.*{re.escape(words)}"):
        getattr(package, name)


def test_a_mistyped_name_is_answered_with_the_nearest_one():
    with pytest.raises(AttributeError, match=r"has no attribute 'Densse' \(did you mean 'Dense'\?\)$"):
        kd.layers.Densse  # noqa: B018
    with pytest.raises(AttributeError, match=r"^module 'keras_dist\.layers' has no attribute 'Foo'$"):
        kd.layers.Foo  # noqa: B018
    assert not hasattr(kd, "__wrapped__")


def test_every_namespace_with_missing_names_answers():
    names = [name for name in missing_names.OF_KERAS if "*" not in name]
    for name in (*names, *(f"{package}.Anything" for package in ("datasets", "export", "visualization"))):
        package, _, attribute = name.rpartition(".")
        with pytest.raises(AttributeError, match=f"has no attribute '{attribute}'; instead: "):
            getattr(getattr(kd, package) if package else kd, attribute)
