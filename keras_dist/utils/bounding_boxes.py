"""Bounding boxes under the names that Keras users look for.

Source: names, arguments and defaults as in `keras.utils.bounding_boxes`.
"""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist.bounding_boxes import (
    affine_transform,
    clip_to_image_size,
    compute_ciou,
    compute_iou,
    convert_format,
    crop,
    decode_deltas_to_boxes,
    encode_box_to_deltas,
    pad,
)

__all__ = [
    "affine_transform",
    "clip_to_image_size",
    "compute_ciou",
    "compute_iou",
    "convert_format",
    "crop",
    "decode_deltas_to_boxes",
    "encode_box_to_deltas",
    "pad",
]

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
