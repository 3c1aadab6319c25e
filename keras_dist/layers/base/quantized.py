"""`Quantization`: the form of a frozen weight in eight or four bits, and what layers compute with it.

A quantized weight is two variables. `<weight>` has the values, `<weight>_scale` one float32 number for each tile of
neighbouring inputs. Quantizing is done by qwix. Four-bit values are two in a byte: arrays of `uint4` do not survive a
compiled program that shards them (jax 0.10).

The backward pass dequantizes a weight again, so that no copy of it in floating point waits for that pass.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.dim_names import INPUTS, DimNames, of_slice
from keras_dist._support.extras import import_extra
from keras_dist.layers.base.layer import Layer
from keras_dist.variables.variable import Quantized, Variable

MODES = ("int8", "int4", "nf4", "fp8")

_FP8 = jnp.float8_e4m3fn
_TILES = range(64, 15, -1)
"""Sizes of tiles, the best first: QLoRA has 64, for which a float32 scale takes half a bit for each value."""

_NORMAL_FLOATS = """
-1.0 -0.6961928009986877 -0.5250730514526367 -0.39491748809814453 -0.28444138169288635 -0.18477343022823334
-0.09105003625154495 0.0 0.07958029955625534 0.16093020141124725 0.24611230194568634 0.33791524171829224
0.44070982933044434 0.5626170039176941 0.7229568362236023 1.0
"""
_BUCKETS = np.array(_NORMAL_FLOATS.split(), np.float32)
"""The values of nf4. Source: Dettmers et al. 2023, arXiv:2305.14314, appendix E."""

_ROWS = 1 << 16
"""Most tiles that `quantized` computes at a time."""


@dataclasses.dataclass(frozen=True)
class Quantization:
    """The form of a quantized weight.

    Attributes:
        mode: `"int8"`, `"int4"`, `"nf4"` or `"fp8"`.
        dim: the dim with tiles, from the end.
        tile: neighbours along it that share a scale.
        dtype: the dtype of the weight that was quantized.
    """

    mode: str
    dim: int
    tile: int
    dtype: str

    @property
    def stored_dtype(self) -> Any:
        """The dtype of the values as they are stored, which differs between modes of equal shapes; of fp8 the bits."""
        return jnp.dtype("int8" if self.mode in ("int8", "int4") else "uint8")

    @property
    def per_element(self) -> int:
        """Number of values in a stored element."""
        return 2 if self.mode in ("int4", "nf4") else 1

    def stored_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the stored values of a weight."""
        return self._divided(shape, self.per_element)

    def scale_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the scales of a weight."""
        return self._divided(shape, self.tile)

    def shape(self, stored: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the weight with stored values of this shape."""
        sizes = list(stored)
        sizes[self.dim] *= self.per_element
        return tuple(sizes)

    def dequantized(self, values: Any, scale: Any, xp: Any = jnp) -> Any:
        """Return the weight in float32, given stored values and scales; fully sharded ones are gathered as stored."""
        if xp is jnp:
            values, scale = jax.lax.optimization_barrier((values, scale))
        dim = values.ndim + self.dim
        values = values if self.mode == "int8" else values.view(xp.uint8)
        if self.per_element == 2:
            values = xp.stack([values & 15, values >> 4], dim + 1).reshape(self.shape(values.shape))
        if self.mode == "nf4":
            found = xp.asarray(_BUCKETS)[values]
        elif self.mode == "int4":
            found = ((values ^ 8).astype(xp.int8) - 8).astype(xp.float32)
        else:
            found = (values.view(_FP8) if self.mode == "fp8" else values).astype(xp.float32)
        tiled = found.reshape(*found.shape[:dim], -1, self.tile, *found.shape[dim + 1 :])
        return (tiled * xp.expand_dims(scale, dim + 1)).reshape(found.shape)

    def quantized(self, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return stored values and scales of a weight on the host, or of whole tiles of it."""
        dim = weight.ndim + self.dim
        moved = np.moveaxis(weight, dim, -1)  # of files of PyTorch a view in the order of the file
        rows = moved.reshape(-1, self.tile)
        block = min(_ROWS, len(rows))
        program = _quantizing(self.mode, self.tile)
        values, scale = np.empty(rows.shape, self.stored_dtype), np.empty(len(rows), np.float32)
        for start in range(0, len(rows), block):
            part = np.zeros((block, self.tile), np.float32)
            count = min(block, len(rows) - start)
            part[:count] = rows[start : start + count]
            found = program(part)
            values[start : start + count], scale[start : start + count] = (np.asarray(one)[:count] for one in found)
        values = values.reshape(moved.shape)
        if self.per_element == 2:
            low, high = np.bitwise_and(values[..., 0::2], 15), np.left_shift(values[..., 1::2], 4)
            values = np.bitwise_or(low, high)
        return np.moveaxis(values, -1, dim), np.moveaxis(scale.reshape(*moved.shape[:-1], -1), -1, dim)

    def _divided(self, shape: Sequence[int], by: int) -> tuple[int, ...]:
        sizes = list(shape)
        sizes[self.dim] //= by
        return tuple(sizes)


@functools.cache
def _quantizing(mode: str, tile: int) -> Callable[[np.ndarray], tuple[jax.Array, jax.Array]]:
    """Return a program for the values and scales of tiles (tiles, size)."""
    qwix = import_extra("qwix", "quantize", f"quantize={mode!r}")

    def quantized(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = qwix.quantize(rows, _FP8 if mode == "fp8" else mode, channelwise_axes=(0,), tiled_axes={1: tile})
        values, scale = found.qvalue, found.scale[:, 0]
        scale = jnp.where(jnp.isfinite(rows).all(1), scale, jnp.nan)  # XLA's maximum on CPUs leaves NaN out
        if mode == "fp8":
            return values.view("uint8"), scale
        return values.astype("uint8" if mode == "nf4" else "int8"), scale

    return jax.jit(quantized)


def quantization_for(mode: str, names: DimNames, shape: Sequence[int], dtype: Any) -> Quantization | str:
    """Return the form of a weight in this mode, given the names of its dims, or the reason why it has none."""
    dims = [dim for dim, name in enumerate(names) if name == INPUTS]
    if not jnp.issubdtype(dtype, jnp.floating):
        return f"its numbers are {jnp.dtype(dtype).name}"
    if not dims:
        return "its dims are not inputs and outputs"
    size, dim = shape[dims[-1]], dims[-1] - len(shape)
    packs = mode in ("int4", "nf4")
    if packs and size % 2:
        return f"two values are stored in a byte, and its inputs are {size}"
    sizes = [tile for tile in _TILES if size % tile == 0 and not (packs and tile % 2)]
    return Quantization(mode, dim, next(iter(sizes), size), str(jnp.dtype(dtype)))


def form_of(weight: Any) -> Quantization | None:
    """Return the form of a quantized weight; None for others."""
    return weight.get_metadata("quantization", None) if isinstance(weight, Variable) else None


def shape_of(weight: Variable) -> tuple[int, ...]:
    """Return the shape of a weight, also of a quantized one."""
    form = form_of(weight)
    return weight.shape if form is None else form.shape(weight.shape)


def weight_value(layer: Layer, name: str) -> jax.Array:
    """Return the value of a weight as `call` uses it."""
    weight = getattr(layer, name)
    form = form_of(weight)
    if form is None:
        return weight[...]
    return form.dequantized(weight.stored(), getattr(layer, f"{name}_scale")[...]).astype(layer.compute_dtype)


def product_with(
    layer: Layer, name: str, inputs: jax.Array, apply: Callable[[jax.Array, jax.Array], jax.Array]
) -> jax.Array:
    """Return `apply(inputs, weight)`; the backward pass dequantizes a quantized weight again."""
    weight = getattr(layer, name)
    form = form_of(weight)
    if form is None:
        return apply(inputs, weight[...])

    @jax.checkpoint
    def product(inputs: jax.Array, values: jax.Array, scale: jax.Array) -> jax.Array:
        return apply(inputs, form.dequantized(values, scale).astype(layer.compute_dtype))

    return product(inputs, weight.stored(), getattr(layer, f"{name}_scale")[...])


def quantize_weight(layer: Layer, name: str, form: Quantization) -> None:
    """Replace a weight by its stored values and scales, which are zero; the model must be told."""
    weight: Variable = getattr(layer, name)
    options: dict[str, Any] = {"dim_names": of_slice(weight.dim_names, weight.ndim), "autocast": False}
    values = layer.add_weight(form.stored_shape(weight.shape), "zeros", form.stored_dtype, name=name, **options)
    scale = layer.add_weight(form.scale_shape(weight.shape), "zeros", "float32", name=f"{name}_scale", **options)
    place = {"number": weight.get_metadata("number", None)}  # among the weights of the layer
    values.set_metadata(quantization=form, regularizer=None, constraint=None, **place)
    scale.set_metadata(**place, factor_of=(name, tuple(range(weight.ndim))), regularizer=None, constraint=None)
    for variable, attribute in ((values, name), (scale, f"{name}_scale")):
        variable.freeze()
        setattr(layer, attribute, variable)
    object.__setattr__(values, "__class__", Quantized)


def dequantize_weight(layer: Layer, name: str) -> None:
    """Replace the stored values and scales by one weight, which is zero and trained; the model must be told."""
    stored: Variable = getattr(layer, name)
    form: Any = form_of(stored)
    options: dict[str, Any] = {"dim_names": of_slice(stored.dim_names, stored.ndim)}
    weight = layer.add_weight(form.shape(stored.shape), "zeros", form.dtype, name=name, **options)
    weight.set_metadata(number=stored.get_metadata("number", None))
    setattr(layer, name, weight)
    delattr(layer, f"{name}_scale")
