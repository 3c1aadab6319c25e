"""`Rescaling`, and `Normalization` by mean and variance of data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import check_axes, check_axes_exist, check_broadcasts, check_numbers, check_optional
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.config.settings import epsilon, image_data_format
from keras_dist.errors import DataError, ModelError, shorten, with_type
from keras_dist.layers.base.building import build_once
from keras_dist.layers.base.layer import Layer
from keras_dist.layers.base.weight_arguments import LayerArguments
from keras_dist.variables import call_context

_CHUNK_BYTES = 2**26  # size of the parts of an array that `adapt` converts at a time


class Rescaling(Layer):
    """`inputs * scale + offset`, in the layer's element type.

    Args:
        scale: a number, or one for each channel, in the order of `keras_dist.config.image_data_format()`.
        offset: a number, or one for each channel.
        **kwargs: see `Layer`.
    """

    def __init__(self, scale: ArrayLike, offset: ArrayLike = 0.0, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        self.scale = check_numbers("scale", scale, self.name)
        self.offset = check_numbers("offset", offset, self.name)
        self.supports_masking = True

    def call(self, inputs: jax.Array) -> jax.Array:
        dtype = self.compute_dtype
        scale, offset = (self._per_channel(numbers, inputs.ndim) for numbers in (self.scale, self.offset))
        return inputs.astype(dtype) * scale + offset

    def _per_channel(self, numbers: ArrayLike, rank: int) -> jax.Array:
        """Return the numbers, with further dims if the channels of images come first."""
        values = jnp.asarray(numbers, self.compute_dtype)
        is_first = values.ndim and image_data_format() == "channels_first"
        return values.reshape(*values.shape, *(1,) * min(rank - 1, 3 - values.ndim)) if is_first else values


class Normalization(Layer):
    """`(inputs - mean) / sqrt(variance)`, with given moments, or moments of data.

    Without given moments it has the non-trainable weights `mean`, `variance` (the dims of `axis`) and `count`; mean 0
    and variance 1 until `adapt(data)` sets them.

    Args:
        axis: the dims, counted with the batch, with a separate mean for each index; None for one mean.
        mean: a number, or an array of the last dims of `axis`; requires `variance`.
        variance: like `mean`.
        invert: whether to return `inputs * sqrt(variance) + mean`.
        **kwargs: see `Layer`.

    Example:
        >>> import numpy as np
        >>> from keras_dist import layers
        >>> layer = layers.Normalization()
        >>> layer.adapt(np.array([[0.0, 7.0], [2.0, 9.0]], "float32"))
        >>> layer(np.array([[0.0, 9.0]], "float32")).tolist()
        [[-1.0, 1.0]]
    """

    def __init__(
        self,
        axis: int | Sequence[int] | None = -1,
        mean: ArrayLike | None = None,
        variance: ArrayLike | None = None,
        invert: bool = False,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(**kwargs)
        is_empty = axis is None or (isinstance(axis, list | tuple) and not axis)
        self.axis = () if is_empty else check_axes("axis", axis, self.name)
        self.input_mean = check_optional(check_numbers, "mean", mean, self.name)
        self.input_variance = check_optional(check_numbers, "variance", variance, self.name)
        self._check_statistics()
        self.invert = invert
        self.supports_masking = True

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `mean`, `variance` (the dims of `axis`) and `count`, unless the first two are given."""
        shape = tuple(input_shape[axis] for axis in check_axes_exist("axis", self.axis, input_shape, self.name))
        if self.input_mean is None:
            self.mean = self.add_weight(shape, "zeros", trainable=False, name="mean")
            self.variance = self.add_weight(shape, "ones", trainable=False, name="variance")
            self.count = self.add_weight((), "zeros", "int32", trainable=False, name="count")
        else:
            check_broadcasts("mean", np.shape(self.input_mean), shape, self.name)

    def call(self, inputs: jax.Array) -> jax.Array:
        inputs = inputs.astype(self.compute_dtype)
        mean, variance = self._statistics(inputs)
        deviation = jnp.maximum(jnp.sqrt(variance), epsilon())
        return inputs * deviation + mean if self.invert else (inputs - mean) / deviation

    def adapt(self, data: ArrayLike | Iterable[PyTree]) -> None:
        """Set `mean` and `variance` to the moments of data.

        Args:
            data: an array; or an iterable of batches: arrays, or tuples that start with one.

        Raises:
            ModelError: `mean` and `variance` were given.
            DataError: the data are empty, or their sizes in `axis` differ from the layer's inputs.
        """
        if self.input_mean is not None:
            given = f"mean={shorten(self.input_mean)}, variance={shorten(self.input_variance)}"
            fix = "leave them out, or do not call adapt"
            raise ModelError(f"layer {self.name!r} cannot adapt to data", given=given, fix=fix)
        total: _Moments = (0, 0.0, 0.0)
        for batch in _batches(data, self.name):
            if not self._is_built:
                build_once(self, {"inputs": batch}, call_context.CallContext())
            for chunk in self._chunks(batch):
                total = _merged(total, self._moments(chunk))
        if not total[0]:
            fix = "pass the data themselves; a generator gives its batches only once"
            raise DataError(f"layer {self.name!r} cannot adapt to no data", given=shorten(data), fix=fix)
        for weight, value in zip(self.weights[:2], total[1:], strict=True):
            weight.assign(value)

    def _statistics(self, inputs: jax.Array) -> list[jax.Array]:
        """Return mean and variance, with the rank of the inputs."""
        kept = check_axes_exist("axis", self.axis, inputs.shape, self.name)
        given = (self.input_mean, self.input_variance)
        pair = (self.mean[...], self.variance[...]) if self.input_mean is None else given
        statistics = [jnp.asarray(values, self.compute_dtype) for values in pair]
        reduced = tuple(axis for axis in range(inputs.ndim) if axis not in kept)
        shapes = [(*(1,) * (len(kept) - values.ndim), *values.shape) for values in statistics]
        return [jnp.expand_dims(v.reshape(shape), reduced) for v, shape in zip(statistics, shapes, strict=True)]

    def _chunks(self, batch: np.ndarray) -> Iterator[np.ndarray]:
        """Yield parts of a batch along its first dim, unless it is one of `axis`."""
        rows = max(1, _CHUNK_BYTES // max(1, 8 * math.prod(batch.shape[1:])))
        whole = 0 in check_axes_exist("axis", self.axis, batch.shape, self.name)
        for start in range(0, len(batch), len(batch) if whole else rows):
            yield batch if whole else batch[start : start + rows]

    def _moments(self, batch: np.ndarray) -> _Moments:
        kept = check_axes_exist("axis", self.axis, batch.shape, self.name)
        reduced = tuple(axis for axis in range(batch.ndim) if axis not in kept)
        sizes, built = tuple(batch.shape[axis] for axis in kept), self.weights[0].shape
        if sizes != built:
            summary = f"layer {self.name!r} cannot adapt to a batch of another shape than {built}"
            given = f"a batch of shape {batch.shape}, with {sizes} for axis={self.axis}"
            raise DataError(summary, given=given, fix="reshape the data, or make a layer for them")
        values = batch.astype("float64")
        return math.prod(batch.shape[axis] for axis in reduced), values.mean(reduced), values.var(reduced)

    def _check_statistics(self) -> None:
        mean: Any = self.input_mean
        variance: Any = self.input_variance
        if (mean is None) != (variance is None) or np.shape(mean) != np.shape(variance):
            given = f"mean={shorten(mean)}, variance={shorten(variance)}"
            fix = "give both, of one shape; or neither, and call layer.adapt(data)"
            raise ModelError(f"`mean` and `variance` of layer {self.name!r} belong together", given=given, fix=fix)
        if mean is not None and np.ndim(mean) > len(self.axis):
            summary = f"`mean` and `variance` of layer {self.name!r} have more dims than `axis`"
            fix = f"give at most {len(self.axis)} dims, or name in axis the dims that they belong to"
            raise ModelError(summary, given=f"shape {np.shape(mean)} for axis={self.axis}", fix=fix)


_Moments = tuple[int, Any, Any]  # number of values, mean, variance


def _merged(first: _Moments, second: _Moments) -> _Moments:
    """Return the moments of the union of two sets of values."""
    count = first[0] + second[0]
    if count == 0:
        return first
    share = second[0] / count
    apart = second[1] - first[1]
    variance = first[2] * (1 - share) + second[2] * share + apart**2 * share * (1 - share)
    return count, first[1] + apart * share, variance


def _batches(data: Any, layer: str) -> Iterator[np.ndarray]:
    if not hasattr(data, "shape") and not isinstance(data, Iterable):
        if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
            raise _no_batches(data, layer)
        data = map(data.__getitem__, range(len(data)))  # a PyDataset
    for batch in [data] if hasattr(data, "shape") else data:
        inputs = batch[0] if isinstance(batch, tuple) else batch
        if not getattr(inputs, "shape", ()):
            raise _no_batches(inputs, layer)
        yield np.asarray(inputs)


def _no_batches(data: Any, layer: str) -> DataError:
    fix = "convert the data with np.asarray, or batch the dataset"
    return DataError(f"layer {layer!r} cannot adapt to what has no batches", given=with_type(data), fix=fix)
