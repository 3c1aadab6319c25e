"""`VGG19`, in a separate module as in Keras."""

from keras_dist.applications.vgg import VGG19, decode_predictions, preprocess_input

__all__ = ["VGG19", "decode_predictions", "preprocess_input"]
