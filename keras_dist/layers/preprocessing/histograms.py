"""Layers that spread the values of pixels: contrast and histogram equalization."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import check_number, check_size, check_sizes
from keras_dist.layers.preprocessing.image_layer import ImageLayer, check_value_range
from keras_dist.layers.weight_arguments import LayerArguments


class _SpreadLayer(ImageLayer):
    """The base of these layers."""

    moves_pixels = False

    def __init__(
        self,
        value_range: Sequence[float] = (0, 255),
        *,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(data_format=data_format, **kwargs)
        self.value_range = check_value_range(value_range, self.name)

    def _to_bytes(self, images: jax.Array) -> jax.Array:
        low, high = self.value_range
        return images if self.value_range == (0, 255) else (images - low) * (255 / (high - low))

    def _from_bytes(self, images: jax.Array) -> jax.Array:
        low, high = self.value_range
        return images if self.value_range == (0, 255) else images * ((high - low) / 255) + low


class AutoContrast(_SpreadLayer):
    """Spread the values of each channel of each image over the whole range, not only in training.

    Args:
        value_range, data_format, **kwargs: as in `RandomBrightness`.

    Differs from Keras: `data_format` is respected.
    """

    def transform_images(self, images: jax.Array, transformation: Any = None, training: bool = True) -> jax.Array:
        images = images.astype(self.compute_dtype)
        values = self._to_bytes(images)
        low, high = (reduce(values, self._axes, keepdims=True) for reduce in (jnp.min, jnp.max))
        scale = 255.0 / jnp.where(high > low, high - low, 1)
        spread = self._from_bytes(jnp.clip(values * scale - low * scale, 0, 255))
        return jnp.where(high > low, spread, images).astype(self.compute_dtype)


class Equalization(_SpreadLayer):
    """Equalize the histogram of each channel over a whole batch, in training.

    Args:
        bins: number of bins of the histogram.
        value_range, data_format, **kwargs: as in `RandomBrightness`.
    """

    def __init__(
        self,
        value_range: Sequence[float] = (0, 255),
        bins: int = 256,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(value_range, data_format=data_format, **kwargs)
        self.bins = check_size("bins", bins, self.name)

    def transform_images(self, images: jax.Array, transformation: Any = None, training: bool = True) -> jax.Array:
        if not training:
            return images
        images = images.astype(self.compute_dtype)
        equalized = jax.vmap(self._equalized, self._channels, self._channels)(self._to_bytes(images))
        return self._from_bytes(equalized).astype(self.compute_dtype)

    def _equalized(self, channel: jax.Array) -> jax.Array:
        last = self.bins - 1
        counted = jnp.clip((channel.astype("float32") * last / 255).astype("int32"), 0, last)
        total = jnp.cumsum(jnp.bincount(counted.ravel(), length=self.bins))
        first = total[jnp.argmax(total > 0)]
        spread = total[-1] - first
        values = jnp.clip(jnp.round((total - first) * 255 / jnp.where(spread == 0, 1, spread)), 0, 255)
        places = jnp.clip(channel / 255.0 * last, 0, last).astype("int32")
        return jnp.where(spread == 0, channel, values[places])


class ContrastLimitedAdaptiveHistogramEqualization(_SpreadLayer):
    """Equalize the histograms of the tiles of each image (CLAHE), not only in training.

    Results are interpolated between neighbouring tiles.

    Args:
        clip_limit: limit of counts, as a multiple of the mean count; the excess is distributed equally. 0 for no limit.
        tile_grid_size: number of tiles, (rows, columns).
        value_range, data_format, **kwargs: as in `RandomBrightness`.
    """

    def __init__(
        self,
        value_range: Sequence[float] = (0, 255),
        clip_limit: float = 4.0,
        tile_grid_size: Sequence[int] = (8, 8),
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(value_range, data_format=data_format, **kwargs)
        self.clip_limit = check_number("clip_limit", clip_limit, layer=self.name, example=4.0)
        self.tile_grid_size = check_sizes("tile_grid_size", tile_grid_size, 2, self.name)

    def transform_images(self, images: jax.Array, transformation: Any = None, training: bool = True) -> jax.Array:
        values = self._to_bytes(images.astype("float32"))
        each_channel = jax.vmap(jax.vmap(self._equalized), self._channels, self._channels)
        return self._from_bytes(each_channel(values)).astype(images.dtype)

    def _equalized(self, channel: jax.Array) -> jax.Array:
        rows, columns = self.tile_grid_size
        height, width = -(-channel.shape[0] // rows), -(-channel.shape[1] // columns)  # of a tile
        missing = [(0, rows * height - channel.shape[0]), (0, columns * width - channel.shape[1])]
        pixels = jnp.clip(jnp.pad(channel, missing, mode="symmetric"), 0, 255).astype("int32")
        tiles = pixels.reshape(rows, height, columns, width).swapaxes(1, 2).reshape(rows, columns, -1)
        counts = jax.vmap(jax.vmap(functools.partial(jnp.bincount, length=256)))(tiles).astype("float32")
        if self.clip_limit > 0:
            kept = jnp.minimum(counts, self.clip_limit * height * width / 256)
            counts = kept + jnp.sum(counts - kept, -1, keepdims=True) / 256
        total = jnp.cumsum(counts, -1)
        spread = height * width - total[..., :1]
        table = jnp.clip((total - total[..., :1]) * 255 / jnp.where(spread == 0, 1, spread), 0, 255)
        (top, bottom, down), (left, right, across) = _between(rows, height), _between(columns, width)

        def of(row: np.ndarray, column: np.ndarray) -> jax.Array:
            return table[row[:, None], column, pixels]

        upper = of(top, left) * (1 - across) + of(top, right) * across
        lower = of(bottom, left) * (1 - across) + of(bottom, right) * across
        found = upper * (1 - down[:, None]) + lower * down[:, None]
        return found[: channel.shape[0], : channel.shape[1]]


def _between(tiles: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each pixel the tiles before and after it, and the weight of the latter."""
    places = (np.arange(tiles * size, dtype="float32") - size / 2) / size  # in tiles, from the middle of the first
    before = np.floor(places).astype("int32")
    return np.clip(before, 0, tiles - 1), np.clip(before + 1, 0, tiles - 1), (places - before).astype("float32")
