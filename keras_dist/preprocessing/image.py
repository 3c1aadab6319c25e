"""Names of `keras.preprocessing.image`, with its arguments and defaults."""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist.data import array_to_img, img_to_array, load_img, save_img
from keras_dist.ops.image_transforms import smart_resize

__all__ = ["array_to_img", "img_to_array", "load_img", "save_img", "smart_resize"]

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
