"""Keras 2's support of DTensor: `tf.keras.dtensor.experimental`, and a switch of `tf.keras.backend`."""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist.dtensor.keras import backend, optimizers
from keras_dist.dtensor.keras.layout_map import LayoutMap

__all__ = ["LayoutMap", "backend", "optimizers"]

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
