"""`ResNet50`, under the name that Keras's older code imports."""

from keras_dist.applications.resnet import ResNet50, decode_predictions, preprocess_input

__all__ = ["ResNet50", "decode_predictions", "preprocess_input"]
