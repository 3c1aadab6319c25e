"""Names of `keras.utils`, with its arguments and defaults."""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist._support.raw_errors import explain_functions
from keras_dist.backend import clear_session as clear_session
from keras_dist.backend import standardize_dtype as standardize_dtype
from keras_dist.callbacks.progbar import Progbar as Progbar
from keras_dist.config.settings import disable_interactive_logging as disable_interactive_logging
from keras_dist.config.settings import enable_interactive_logging as enable_interactive_logging
from keras_dist.config.settings import is_interactive_logging_enabled as is_interactive_logging_enabled
from keras_dist.data import PyDataset as PyDataset
from keras_dist.data import array_to_img as array_to_img
from keras_dist.data import image_dataset_from_directory as image_dataset_from_directory
from keras_dist.data import img_to_array as img_to_array
from keras_dist.data import load_img as load_img
from keras_dist.data import normalize as normalize
from keras_dist.data import pad_sequences as pad_sequences
from keras_dist.data import save_img as save_img
from keras_dist.data import split_dataset as split_dataset
from keras_dist.data import text_dataset_from_directory as text_dataset_from_directory
from keras_dist.data import timeseries_dataset_from_array as timeseries_dataset_from_array
from keras_dist.data import to_categorical as to_categorical
from keras_dist.data.batch import pack_x_y_sample_weight as pack_x_y_sample_weight
from keras_dist.data.batch import unpack_x_y_sample_weight as unpack_x_y_sample_weight
from keras_dist.datasets.local_file import get_file as get_file
from keras_dist.random import set_random_seed as set_random_seed
from keras_dist.saving import CustomObjectScope as CustomObjectScope
from keras_dist.saving import custom_object_scope as custom_object_scope
from keras_dist.saving import deserialize_keras_object as deserialize_keras_object
from keras_dist.saving import get_custom_objects as get_custom_objects
from keras_dist.saving import get_registered_name as get_registered_name
from keras_dist.saving import get_registered_object as get_registered_object
from keras_dist.saving import register_keras_serializable as register_keras_serializable
from keras_dist.saving import serialize_keras_object as serialize_keras_object
from keras_dist.symbolic.tensors import get_source_inputs as get_source_inputs
from keras_dist.symbolic.tensors import is_keras_tensor as is_keras_tensor
from keras_dist.visualization import model_to_dot as model_to_dot
from keras_dist.visualization import plot_model as plot_model

Sequence = PyDataset  # Keras's older name

__all__ = [name for name, value in vars().items() if callable(value) and value not in (missing_from, explain_functions)]  # pyright: ignore[reportUnsupportedDunderAll]

explain_functions(vars())
if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
