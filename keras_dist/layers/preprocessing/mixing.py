"""`MixUp`, `CutMix` and `RandomErasing`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from keras_dist import random
from keras_dist._support.arguments import argument_error, check_number, is_number
from keras_dist.errors import ModelError
from keras_dist.layers.preprocessing.image_layer import Factor, RandomImageLayer, check_range
from keras_dist.layers.preprocessing.random_colors import FactorLayer
from keras_dist.layers.weight_arguments import LayerArguments


class MixLayer(RandomImageLayer):
    """The base of layers that mix the images of a batch in pairs, and their labels in the same proportion."""

    def transform_labels(self, labels: Any, transformation: Any = None, training: bool = True) -> Any:
        """Return labels, vectors of classes, mixed in the proportions of the images."""
        if not training or transformation is None:
            return labels
        if labels.ndim == 1 and jnp.issubdtype(labels.dtype, jnp.integer):
            given = f"labels of shape {labels.shape}, dtype {labels.dtype}"
            fix = "labels = keras_dist.utils.to_categorical(labels, num_classes)"
            raise ModelError(f"layer {self.name!r} cannot mix numbers of classes", given=given, fix=fix)
        labels = labels.astype(jnp.result_type(labels, "float32"))
        share = jnp.reshape(transformation["mix_weight"], (-1, *(1,) * (labels.ndim - 1)))
        return share * labels + (1.0 - share) * labels[jnp.asarray(transformation["permutation_order"])]


class MixUp(MixLayer):
    """Mix the images of a batch in pairs, and their labels, in random proportions in training.

    Inputs are a dict of `"images"` and `"labels"`, vectors of classes (batch, classes).

    Args:
        alpha: proportions are drawn from Beta(alpha, alpha).
        data_format, seed, **kwargs: as in `RandomBrightness`.

    Source: `keras.layers.MixUp`; https://arxiv.org/abs/1710.09412.
    """

    def __init__(
        self,
        alpha: float = 0.2,
        data_format: str | None = None,
        seed: int | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(seed, data_format=data_format, **kwargs)
        self.alpha = check_number("alpha", alpha, above=0, layer=self.name, example=0.2)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        rows = images.shape[0]
        order = random.shuffle(jnp.arange(rows), seed=seed)
        return {"permutation_order": order, "mix_weight": random.beta((rows,), self.alpha, self.alpha, seed=seed)}

    def transform_segmentation_masks(
        self, segmentation_masks: jax.Array, transformation: Any = None, training: bool = True
    ) -> jax.Array:
        """Return masks, mixed like their images."""
        return self.transform_images(segmentation_masks, transformation, training)

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        share = jnp.asarray(transformation["mix_weight"], images.dtype).reshape(-1, 1, 1, 1)
        return share * images + (1.0 - share) * images[jnp.asarray(transformation["permutation_order"])]


class BoxLayer(RandomImageLayer):
    """The base of layers that replace a rectangle of each image."""

    def _span(self, length: int, ratio: jax.Array, seed: Any) -> tuple[jax.Array, jax.Array]:
        """Draw start and end of an interval that covers `ratio` of a dim, (images,) each."""
        size = ratio * length
        start = random.uniform(ratio.shape, dtype=self.compute_dtype, seed=seed) * (length - size)
        return start, start + size

    def _inside(self, images: jax.Array, columns: Sequence[jax.Array], rows: Sequence[jax.Array]) -> jax.Array:
        """Return which pixels are inside the rectangles, with a dim of size 1 for channels."""
        inside = [
            (places >= start[:, None]) & (places < end[:, None])
            for places, (start, end) in zip(map(jnp.arange, self._size(images)), (rows, columns), strict=True)
        ]
        return jnp.expand_dims(inside[0][:, :, None] & inside[1][:, None], self._channels)


class CutMix(BoxLayer, MixLayer):
    """Replace a rectangle of each image by the same part of another image in training, and mix their labels.

    Inputs are a dict of `"images"` and `"labels"`, vectors of classes (batch, classes).

    Args:
        factor: range of alpha; a number x stands for (0, x). The kept share is drawn from Beta(alpha, alpha).
        seed, data_format, **kwargs: as in `RandomBrightness`.

    Source: `keras.layers.CutMix`; https://arxiv.org/abs/1905.04899.
    """

    def __init__(
        self,
        factor: Factor = 1.0,
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(seed, data_format=data_format, **kwargs)
        self.factor = check_range("factor", factor, (0, 1), self.name)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        rows = images.shape[0]
        alpha = random.uniform((), *self.factor, dtype=self.compute_dtype, seed=seed) + 1e-6
        ratio = jnp.sqrt(1.0 - random.beta((rows,), alpha, alpha, dtype=self.compute_dtype, seed=seed))
        height, width = self._size(images)
        (left, right), (top, bottom) = self._span(width, ratio, seed), self._span(height, ratio, seed)
        share = 1.0 - (right - left) * (bottom - top) / (width * height)
        return {
            "permutation_order": random.shuffle(jnp.arange(rows), seed=seed),
            "batch_masks": self._inside(images, (left, right), (top, bottom)),
            "mix_weight": share[:, None, None, None],
        }

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        return jnp.where(transformation["batch_masks"], images[transformation["permutation_order"]], images)


class RandomErasing(BoxLayer, FactorLayer):
    """Erase a rectangle of some images in training.

    Args:
        factor: smallest and largest probability; a number x stands for (0, x).
        scale: smallest and largest fraction of an image, from 0 to 1.
        fill_value: value of erased pixels, or three values; None for random values.
        value_range, seed, data_format, **kwargs: as in `RandomBrightness`.
    """

    def __init__(
        self,
        factor: Factor = 1.0,
        scale: Factor = (0.02, 0.33),
        fill_value: float | Sequence[float] | None = None,
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(factor, value_range, data_format, seed, **kwargs)
        self.scale = check_range("scale", scale, (0, 1), self.name)
        numbers = fill_value if isinstance(fill_value, list | tuple) else (fill_value,)
        if fill_value is not None and (len(numbers) not in (1, 3) or not all(map(is_number, numbers))):
            raise argument_error("fill_value", fill_value, "a number, three, or None", layer=self.name, example=0)
        self.fill_value = fill_value

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        height, width = self._size(images)
        ratio = random.uniform((images.shape[0], 2), *self.scale, dtype=self.compute_dtype, seed=seed) ** 0.5
        columns, rows = self._span(width, ratio[:, 0], seed), self._span(height, ratio[:, 1], seed)
        return {
            "apply_erasing": self._chosen(images, self.factor, seed),
            "batch_masks": self._inside(images, columns, rows),
            "fill_value": self._clipped(self._filling(images, seed)),
        }

    def _filling(self, images: jax.Array, seed: Any) -> jax.Array:
        if self.fill_value is None:
            return random.normal(images.shape, dtype=self.compute_dtype, seed=seed) * self.value_range[1]
        values = jnp.asarray(self.fill_value, self.compute_dtype).reshape(-1)
        if values.size > 1:
            self._check_colors(images)
        return values if self.data_format == "channels_last" else values[:, None, None]

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        erased = transformation["apply_erasing"][:, None, None, None] & transformation["batch_masks"]
        return jnp.where(erased, jnp.asarray(transformation["fill_value"], images.dtype), images)
