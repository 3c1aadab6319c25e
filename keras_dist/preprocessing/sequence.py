"""Names of `keras.preprocessing.sequence`, with its arguments and defaults."""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist.data import pad_sequences

__all__ = ["pad_sequences"]

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
