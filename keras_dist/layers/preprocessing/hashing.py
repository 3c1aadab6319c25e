"""`Hashing` and `HashedCrossing`: words and integers hashed to bins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_dist._support.arguments import check_size
from keras_dist.errors import DataError, ModelError, shorten
from keras_dist.layers.host_layer import HostLayer, as_rows
from keras_dist.layers.preprocessing.category_encoding import (
    OUTPUT_MODES,
    check_dense,
    check_output_mode,
    check_salt,
    encoded,
    encoded_like,
)
from keras_dist.layers.preprocessing.text_hashes import bins_of, crossed_bin
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


class HashedCrossing(HostLayer):
    """Hash combinations of features to `num_bins` bins; runs on the host.

    Args:
        num_bins: number of bins.
        output_mode: `"int"` for the bin index of each example, or `"one_hot"` for a vector.
        sparse: must be False.
        name, dtype, **kwargs: see `Layer`.

    Example:
        >>> import numpy as np
        >>> from keras_dist import layers
        >>> layer = layers.HashedCrossing(num_bins=5)
        >>> layer((np.array(["A", "B", "A", "B", "A"]), np.array([101, 101, 101, 102, 102]))).tolist()
        [1, 4, 1, 1, 3]
    """

    def __init__(
        self,
        num_bins: int,
        output_mode: str = "int",
        sparse: bool = False,
        name: str | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, dtype=dtype, **kwargs)
        self.num_bins = check_size("num_bins", num_bins, self.name)
        self.output_mode = check_output_mode(output_mode, ("int", "one_hot"), self.name)
        self.sparse = check_dense(sparse, False, self.name)

    def transform(self, inputs: Sequence[Any]) -> np.ndarray:
        if not isinstance(inputs, list | tuple) or len(inputs) < 2:
            raise self._no_features(f"{type(inputs).__name__} {shorten(inputs)}")
        features = [as_rows(each, self.name) for each in inputs]
        shape = features[0].shape
        if any(each.shape != shape for each in features) or len(shape) > 2 or (len(shape) == 2 and shape[1] != 1):
            raise self._no_features(f"shapes {[each.shape for each in features]}")
        if any(each.dtype.kind not in "Oiub" for each in features):
            raise self._no_features(f"dtypes {[str(each.dtype) for each in features]}")
        examples = zip(*(each.ravel().tolist() for each in features), strict=True)
        bins = np.array([crossed_bin(example, self.num_bins) for example in examples], "int32").reshape(shape)
        return bins if self.output_mode == "int" else encoded(bins, self.output_mode, self.num_bins)

    def output_like(self, inputs: Sequence[KerasTensor]) -> KerasTensor:
        return encoded_like(inputs[0], self.output_mode, self.num_bins, "int32")

    def compute_output_shape(self, input_shape: Any) -> Any:
        tensors = [KerasTensor(shape, "string") for shape in input_shape]
        return self.output_like(tensors).shape

    def _no_features(self, given: str) -> DataError | ModelError:
        summary = f"layer {self.name!r} must get two or more features of text or integers, (batch,) or (batch, 1)"
        return DataError(summary, given=given, fix="layer((first, second))")
