"""`RandomPerspective`."""

from __future__ import annotations

from typing import Any, Unpack

import jax
import jax.numpy as jnp

from keras_dist import random
from keras_dist._support.arguments import check_fraction, check_number, check_option
from keras_dist.layers.preprocessing.image_layer import Factor, RandomImageLayer, check_range
from keras_dist.layers.weight_arguments import LayerArguments
from keras_dist.ops import image_transforms


class RandomPerspective(RandomImageLayer):
    """Show some images as seen from elsewhere in training: their corners are moved at random.

    Args:
        factor: the least and the largest probability; a number stands for 0 and itself.
        scale: how far corners are moved at most, as parts of twice their distance from the first corner, from 0 to 1.
        interpolation: `"bilinear"` or `"nearest"`.
        fill_value: the value around an image.
        seed, data_format, **kwargs: as in `RandomBrightness`.
    """

    def __init__(
        self,
        factor: Factor = 1.0,
        scale: float = 1.0,
        interpolation: str = "bilinear",
        fill_value: float = 0.0,
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(seed, data_format=data_format, **kwargs)
        self.factor = check_range("factor", factor, (0, 1), self.name)
        self.scale = check_fraction("scale", scale, self.name)
        options = image_transforms.AFFINE_INTERPOLATIONS
        self.interpolation = check_option("interpolation", interpolation, options, self.name)
        self.fill_value = check_number("fill_value", fill_value, layer=self.name)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        """Return which images change, and where their corners are before and afterwards, (images, 4, 2)."""
        chosen = self._chosen(images, self.factor, seed)
        limits = (-0.5 * self.scale, 0.5 * self.scale)
        moved = random.uniform((*chosen.shape, 4, 2), *limits, dtype=self.compute_dtype, seed=seed)
        bottom, right = (size - 1.0 for size in self._size(images))
        start = jnp.asarray([[0, 0], [right, 0], [0, bottom], [right, bottom]], moved.dtype)
        return {
            "apply_perspective": chosen,
            "start_points": jnp.broadcast_to(start, moved.shape),
            "end_points": start + start * moved,
        }

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        points = (jnp.asarray(transformation[name], "float32") for name in ("start_points", "end_points"))
        matrices = image_transforms.perspective(*points)
        options = (interpolation, "constant", self.fill_value, self.data_format)
        found = image_transforms.affine_transform(images, matrices, *options, is_affine=False)
        return jnp.where(transformation["apply_perspective"][:, None, None, None], found, images)
