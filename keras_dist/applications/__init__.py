"""Image networks as in Keras, with random weights or weights from a local file; nothing is downloaded.

Source: names, arguments and defaults as in `keras.applications`.
"""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist.applications import efficientnet, imagenet_utils, mobilenet_v2, resnet, resnet50, vgg16, vgg19, xception
from keras_dist.applications.efficientnet import EfficientNetB0
from keras_dist.applications.mobilenet_v2 import MobileNetV2
from keras_dist.applications.resnet import ResNet50
from keras_dist.applications.vgg16 import VGG16
from keras_dist.applications.vgg19 import VGG19
from keras_dist.applications.xception import Xception

__all__ = [
    "VGG16",
    "VGG19",
    "EfficientNetB0",
    "MobileNetV2",
    "ResNet50",
    "Xception",
    "efficientnet",
    "imagenet_utils",
    "mobilenet_v2",
    "resnet",
    "resnet50",
    "vgg16",
    "vgg19",
    "xception",
]

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
