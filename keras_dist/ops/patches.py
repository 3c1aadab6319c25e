"""Conversion between blocks of images and channels or columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import argument_error, check_option, check_sizes
from keras_dist._support.types import ArrayLike
from keras_dist.config.settings import check_data_format
from keras_dist.errors import ArgumentTypeError, ModelError
from keras_dist.ops.operation import as_array, floating, operation

Pair: TypeAlias = int | Sequence[int]


@operation
def unfold(x: ArrayLike, kernel_size: Pair, dilation: Pair = 1, padding: Pair = 0, stride: Pair = 1) -> jax.Array:
    """Return the windows of images as columns, (batch, channels * size of a window, number of windows).

    Args:
        x: (batch, channels, height, width).
        kernel_size: height and width of a window; one integer for both, here and below.
        dilation: distance of the elements of a window.
        padding: number of zeros at each side.
        stride: step of the window.
    """
    images = _of_rank("unfold", x, 4, "(batch, channels, height, width)")
    zeros = check_sizes("padding", padding, 2, least=0)
    patches = jax.lax.conv_general_dilated_patches(
        images,
        check_sizes("kernel_size", kernel_size, 2),
        check_sizes("stride", stride, 2),
        [(size, size) for size in zeros],
        rhs_dilation=check_sizes("dilation", dilation, 2),
    )
    return patches.reshape(*patches.shape[:2], math.prod(patches.shape[2:]))


@operation
def fold(
    x: ArrayLike, output_size: Pair, kernel_size: Pair, dilation: Pair = 1, padding: Pair = 0, stride: Pair = 1
) -> jax.Array:
    """Return images (batch, channels, height, width) from their windows, summing where windows overlap.

    Args:
        x: (batch, channels * size of a window, number of windows), as returned by `unfold`.
        output_size: height and width of the images; one integer for both, here and below.
        padding: number of rows and columns removed at each side.
        kernel_size, dilation, stride: as in `unfold`.
    """
    columns = _of_rank("fold", x, 3, "(batch, channels * size of a window, number of windows)")
    height, width = check_sizes("output_size", output_size, 2)
    rows, cols = check_sizes("kernel_size", kernel_size, 2)
    shape = (len(columns), columns.shape[1] // (rows * cols), height, width)

    def unfolded(images: jax.Array) -> jax.Array:
        return unfold(images, kernel_size, dilation, padding, stride)

    floats = floating(columns)  # JAX cannot transpose functions of integers
    blank = jax.ShapeDtypeStruct(shape, floats.dtype)
    if jax.eval_shape(unfolded, blank).shape != columns.shape:
        summary = "fold: the columns are not the windows of such images"
        given = f"x of shape {columns.shape}, images of shape {shape}"
        fix = "pass the arguments that unfold was called with"
        raise ModelError(summary, given=given, expected=f"x of shape {jax.eval_shape(unfolded, blank).shape}", fix=fix)
    (images,) = jax.linear_transpose(unfolded, blank)(floats)
    return images.astype(columns.dtype)


@operation
def depth_to_space(x: ArrayLike, block_size: int, data_format: str | None = "channels_last") -> jax.Array:
    """Rearrange blocks of channels into blocks of pixels: (batch, size * height, size * width, channels).

    Args:
        x: (batch, height, width, size**2 * channels).
        block_size: size: height and width of a block, at least 2.
        data_format: `"channels_last"` or `"channels_first"`.
    """
    images, is_last = _images("depth_to_space", x, block_size, data_format)
    batch, height, width, depth = images.shape
    channels = depth // block_size**2
    blocks = images.reshape(batch, height, width, block_size, block_size, channels)
    if not is_last:  # channels are the slowest there
        blocks = jnp.moveaxis(images.reshape(batch, height, width, channels, block_size, block_size), 3, 5)
    pixels = blocks.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height * block_size, width * block_size, channels)
    return pixels if is_last else jnp.moveaxis(pixels, -1, 1)


@operation
def space_to_depth(x: ArrayLike, block_size: int, data_format: str | None = "channels_last") -> jax.Array:
    """Rearrange blocks of pixels into channels, the inverse of `depth_to_space`: (batch, height, width, channels)."""
    images, is_last = _images("space_to_depth", x, block_size, data_format)
    batch, height, width, channels = images.shape
    blocks = images.reshape(batch, height // block_size, block_size, width // block_size, block_size, channels)
    blocks = blocks.transpose(0, 1, 3, 2, 4, 5)
    if not is_last:
        blocks = jnp.moveaxis(blocks, 5, 3)
    depths = blocks.reshape(*blocks.shape[:3], block_size**2 * channels)
    return depths if is_last else jnp.moveaxis(depths, -1, 1)


@operation
def extract_patches(
    images: ArrayLike,
    size: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    dilation_rate: int | Sequence[int] = 1,
    padding: str = "valid",
    data_format: str | None = None,
) -> jax.Array:
    """Return patches of images as channels: (batch, rows, columns, height * width * channels of a patch).

    Args:
        images: (height, width, channels), or a batch of them; volumes (depth, height, width, channels) for three sizes.
        size: size of a patch, in each dim or in all of them.
        strides: distance of the starts of patches; None for `size`.
        dilation_rate: distance of the pixels of a patch.
        padding: `"valid"`, or `"same"` for patches that reach over the borders, where pixels are 0.
        data_format: `"channels_last"`, the default, or `"channels_first"`.
    """
    rank = 2 if isinstance(size, int) else len(size)
    array = as_array(images)
    is_batch = array.ndim == rank + 2
    is_last = check_data_format(data_format, "extract_patches") == "channels_last"
    if rank not in (2, 3) or array.ndim not in (rank + 1, rank + 2):
        summary = "extract_patches takes images (height, width, channels), volumes, or batches of them"
        fix = "size=(16, 16) for images, size=(8, 16, 16) for volumes (depth, height, width, channels)"
        raise ArgumentTypeError(summary, given=f"shape {array.shape}, size={size}", fix=fix)
    batch = array if is_batch else array[None]
    batch = jnp.moveaxis(batch, -1, 1) if is_last else batch
    sizes = check_sizes("size", size, rank)
    patches = jax.lax.conv_general_dilated_patches(
        batch,
        sizes,
        sizes if not strides else check_sizes("strides", strides, rank),
        check_option("padding", padding, ("valid", "same")).upper(),
        rhs_dilation=check_sizes("dilation_rate", dilation_rate, rank),
    )
    shape = (len(batch), batch.shape[1], math.prod(sizes), *patches.shape[2:])
    of_pixels = patches.reshape(shape)  # channels are the slowest in it
    patches = jnp.swapaxes(of_pixels, 1, 2).reshape(patches.shape)
    patches = jnp.moveaxis(patches, 1, -1) if is_last else patches
    return patches if is_batch else patches[0]


@operation
def extract_patches_3d(
    volumes: ArrayLike,
    size: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    dilation_rate: int | Sequence[int] = 1,
    padding: str = "valid",
    data_format: str | None = None,
) -> jax.Array:
    """Return `extract_patches` of volumes (depth, height, width, channels), or of a batch of them."""
    sizes = (size,) * 3 if isinstance(size, int) else size
    return extract_patches(volumes, sizes, strides, dilation_rate, padding, data_format)


def _images(name: str, x: ArrayLike, block_size: int, data_format: str | None) -> tuple[jax.Array, bool]:
    """Return the images with channels last, and whether they were given in this format."""
    images = _of_rank(name, x, 4, "images with a batch and channels")
    is_last = check_data_format(data_format, name) == "channels_last"
    if block_size < 2:
        raise argument_error("block_size", block_size, "at least 2", example=2)
    return images if is_last else jnp.moveaxis(images, 1, -1), is_last


def _of_rank(name: str, x: ArrayLike, rank: int, expected: str) -> jax.Array:
    array = as_array(x)
    if array.ndim != rank:
        raise ModelError(f"{name} takes {expected}", given=f"shape {array.shape}", fix="reshape it")
    return array
