"""`Hashing`: words and integers hashed to bins."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_dist._support.arguments import check_size
from keras_dist.errors import DataError
from keras_dist.layers.base.host_layer import HostLayer, as_rows
from keras_dist.layers.preprocessing.category_encoding import (
    OUTPUT_MODES,
    check_dense,
    check_output_mode,
    check_salt,
    encoded,
    encoded_like,
)
from keras_dist.layers.preprocessing.text_hashes import bins_of
from keras_dist.symbolic.tensors import KerasTensor


class Hashing(HostLayer):
    """Hash words or integers to `num_bins` bins; runs on the host.

    Args:
        num_bins: number of bins, including the bin of `mask_value`.
        mask_value: a value with its own bin 0.
        salt: one or two integers: a key for SipHash, which replaces FarmHash.
        output_mode: `"int"` for bin indices; `"one_hot"` for a vector for each value; `"multi_hot"` or `"count"` for a
            vector for all values of the last dim.
        sparse: must be False.
        **kwargs: see `Layer`.

    Example:
        >>> from keras_dist import layers
        >>> layers.Hashing(num_bins=3)([["A"], ["B"], ["C"], ["D"], ["E"]])[:, 0].tolist()
        [1, 0, 1, 1, 2]

    Source: `keras.layers.Hashing`, with the same bins.
    """

    def __init__(
        self,
        num_bins: int,
        mask_value: Any = None,
        salt: Any = None,
        output_mode: str = "int",
        sparse: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_bins = check_size("num_bins", num_bins, self.name)
        self.mask_value = mask_value
        self.salt = check_salt(salt, self.name)
        self.output_mode = check_output_mode(output_mode, OUTPUT_MODES[:-1], self.name)
        self.sparse = check_dense(sparse, False, self.name)

    def transform(self, inputs: Any) -> np.ndarray:
        rows = as_rows(inputs, self.name)
        if rows.dtype.kind not in "Oiub" and rows.size:
            given = f"an array of {rows.dtype}"
            fix = "round the numbers, or Discretization(num_bins=10) for those that are measured"
            raise DataError(f"layer {self.name!r} hashes neither text nor integers", given=given, fix=fix)
        has_mask = self.mask_value is not None and self.num_bins > 1
        values = rows.ravel().tolist() if rows.dtype == object else rows.ravel().astype("int64").tolist()
        bins = bins_of(map(str, values), self.num_bins - has_mask, self.salt)
        if has_mask:
            bins = np.where([value == self.mask_value for value in values], 0, bins + 1)
        bins = bins.reshape(rows.shape)
        return bins.astype("int32") if self.output_mode == "int" else encoded(bins, self.output_mode, self.num_bins)

    def output_like(self, inputs: KerasTensor) -> KerasTensor:
        return encoded_like(inputs, self.output_mode, self.num_bins, "int32")
