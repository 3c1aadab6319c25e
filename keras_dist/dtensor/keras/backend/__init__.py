"""The package of `tf.keras.backend.experimental`."""

from keras_dist.dtensor.keras.backend import experimental

__all__ = ["experimental"]
