"""`VGG16`, in a separate module as in Keras."""

from keras_dist.applications.vgg import VGG16, decode_predictions, preprocess_input

__all__ = ["VGG16", "decode_predictions", "preprocess_input"]
