"""The names of `tf.keras.dtensor.experimental.optimizers`: optimizers of `keras_dist.optimizers`, which take `mesh`."""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist.optimizers import SGD, Adadelta, Adagrad, Adam, AdamW, RMSprop

__all__ = ["SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "RMSprop"]

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
