"""Colours as hue, saturation and value, and filters: functions of images (..., height, width, channels)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.types import ArrayLike


def rgb_to_hsv(images: jax.Array) -> jax.Array:
    """Return hue, saturation and value of images of red, green and blue; the first two are from 0 to 1."""
    values = jnp.where(jnp.abs(images) < jnp.finfo(images.dtype).eps, 0, images)
    red, green, blue = jnp.unstack(values, axis=-1)
    most = jnp.max(values, -1)
    spread = most - jnp.min(values, -1)
    sixth = 1 / (6 * jnp.where(spread > 0, spread, 1))
    hue = jnp.where(most == green, sixth * (blue - red) + 1 / 3, sixth * (red - green) + 2 / 3)
    hue = jnp.where(most == red, sixth * (green - blue), hue)
    hue = jnp.where(spread > 0, hue, 0) + (hue < 0)
    saturation = jnp.where(most > 0, spread / jnp.where(most > 0, most, 1), 0)
    return jnp.stack([hue, saturation, most], -1).astype(images.dtype)


def hsv_to_rgb(images: jax.Array) -> jax.Array:
    """Return red, green and blue of images of hue, saturation and value."""
    hue, saturation, value = jnp.unstack(images, axis=-1)
    sector = hue % 1 * 6
    pure = (jnp.abs(sector - 3) - 1, 2 - jnp.abs(sector - 2), 2 - jnp.abs(sector - 4))
    channels = [value * (1 - saturation + saturation * jnp.clip(channel, 0, 1)) for channel in pure]
    return jnp.stack(channels, -1)


def gaussian(size: int, sigma: ArrayLike, dtype: Any) -> jax.Array:
    """Return the weights of a Gaussian at `size` places, (size,), which add up to 1; `sigma` may be traced."""
    positions = jnp.asarray(np.arange(size) - (size - 1) / 2, dtype)
    weights = jnp.exp(-0.5 * jnp.square(positions / jnp.asarray(sigma, dtype)))
    return weights / jnp.sum(weights)


def filtered(images: jax.Array, kernel: jax.Array, padding: str) -> jax.Array:
    """Return each channel of images (batch, height, width, channels), filtered by `kernel` (height, width)."""
    channels = images.shape[-1]
    return jax.lax.conv_general_dilated(
        images,
        jnp.broadcast_to(kernel[..., None, None], (*kernel.shape, 1, channels)),
        (1, 1),
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=channels,
    )
