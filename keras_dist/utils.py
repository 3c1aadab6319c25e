"""Names of `keras.utils`, with its arguments and defaults."""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist.backend import clear_session, standardize_dtype
from keras_dist.callbacks.progbar import Progbar
from keras_dist.config.settings import (
    disable_interactive_logging,
    enable_interactive_logging,
    is_interactive_logging_enabled,
)
from keras_dist.data import (
    PyDataset,
    array_to_img,
    image_dataset_from_directory,
    img_to_array,
    load_img,
    normalize,
    pad_sequences,
    save_img,
    split_dataset,
    text_dataset_from_directory,
    timeseries_dataset_from_array,
    to_categorical,
)
from keras_dist.data.batch import pack_x_y_sample_weight, unpack_x_y_sample_weight
from keras_dist.datasets.local_file import get_file
from keras_dist.random import set_random_seed
from keras_dist.saving import (
    CustomObjectScope,
    custom_object_scope,
    deserialize_keras_object,
    get_custom_objects,
    get_registered_name,
    get_registered_object,
    register_keras_serializable,
    serialize_keras_object,
)
from keras_dist.symbolic.tensors import get_source_inputs, is_keras_tensor
from keras_dist.visualization import model_to_dot, plot_model

Sequence = PyDataset  # Keras's older name

__all__ = [
    "CustomObjectScope",
    "Progbar",
    "PyDataset",
    "Sequence",
    "array_to_img",
    "clear_session",
    "custom_object_scope",
    "deserialize_keras_object",
    "disable_interactive_logging",
    "enable_interactive_logging",
    "get_custom_objects",
    "get_file",
    "get_registered_name",
    "get_registered_object",
    "get_source_inputs",
    "image_dataset_from_directory",
    "img_to_array",
    "is_interactive_logging_enabled",
    "is_keras_tensor",
    "load_img",
    "model_to_dot",
    "normalize",
    "pack_x_y_sample_weight",
    "pad_sequences",
    "plot_model",
    "register_keras_serializable",
    "save_img",
    "serialize_keras_object",
    "set_random_seed",
    "split_dataset",
    "standardize_dtype",
    "text_dataset_from_directory",
    "timeseries_dataset_from_array",
    "to_categorical",
    "unpack_x_y_sample_weight",
]

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
