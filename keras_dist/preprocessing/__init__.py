"""Names of `keras.preprocessing`, with its arguments and defaults."""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist.data import image_dataset_from_directory, text_dataset_from_directory, timeseries_dataset_from_array
from keras_dist.preprocessing import image, sequence

__all__ = [
    "image",
    "image_dataset_from_directory",
    "sequence",
    "text_dataset_from_directory",
    "timeseries_dataset_from_array",
]

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
