"""`Images`: images in the form in which operations compute, and back in that in which they were given."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError
from keras_dist.ops import channel_order
from keras_dist.ops.operation import as_array


@dataclasses.dataclass(frozen=True)
class Images:
    """Images as a batch with channels last.

    Attributes:
        values: (batch, height, width, channels).
        is_batch: whether they were given as a batch.
        is_last: whether their channels were given last.
    """

    values: jax.Array
    is_batch: bool
    is_last: bool

    @classmethod
    def of(cls, name: str, images: ArrayLike, data_format: str | None) -> Images:
        """Return `Images`, if the array has three dims, or four for a batch."""
        array = as_array(images)
        if array.ndim not in (3, 4):
            summary = f"{name} takes images (height, width, channels), or (batch, height, width, channels)"
            fix = "ops.expand_dims(images, -1) for images without channels"
            raise ModelError(summary, given=f"shape {array.shape}", fix=fix)
        is_last = channel_order.is_last(data_format, name)
        batch = array if array.ndim == 4 else array[None]
        return cls(batch if is_last else jnp.moveaxis(batch, 1, -1), array.ndim == 4, is_last)

    def restored(self, values: jax.Array) -> jax.Array:
        """Return `values`, a batch with channels last, in the form in which the images were given."""
        values = values if self.is_last else jnp.moveaxis(values, -1, 1)
        return values if self.is_batch else values[0]
