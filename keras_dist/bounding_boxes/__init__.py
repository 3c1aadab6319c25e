"""Bounding boxes of objects in images, as arrays: `keras.utils.bounding_boxes`."""

from keras_dist.bounding_boxes.boxes import (
    compute_ciou,
    compute_iou,
    convert_format,
    decode_deltas_to_boxes,
    encode_box_to_deltas,
)
from keras_dist.bounding_boxes.transformations import affine_transform, clip_to_image_size, crop, pad

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
