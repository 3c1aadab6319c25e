"""Files of other programs: which of their arrays are which weights.

The maps work on the weights of any model, in `Model.load_weights` and `Model.save_weights`.
"""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist.formats.weight_map import Joined, WeightMap
from keras_dist.formats.weight_transforms import Linear, Offset, Permute, Reshape
from keras_dist.interop.snapshots import snapshot

__all__ = ["Joined", "Linear", "Offset", "Permute", "Reshape", "WeightMap", "snapshot"]

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
