"""Adam with moments of 8 bits: codes of one byte, and the largest absolute value of each block.

Blocks are along the last dim of a weight, so that each device has whole blocks of a sharded weight. A code is a number
with a decimal exponent and a fraction, which has more bits for larger exponents. Codes are computed by comparisons and
products: a lookup in the table of 256 values would be a gather, which is slow on TPUs.

Source: Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (2022), arXiv 2110.02861; bitsandbytes.
"""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from keras_dist._support.arguments import check_int
from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError
from keras_dist.optimizers.adam import MomentsOptimizer
from keras_dist.optimizers.arguments import ArgumentsButDecay, CommonArguments, Rate, scale_by_rate

_BLOCK, _LEAST_BLOCK, _LEAST_DIM = 256, 64, 32


class Quantized(NamedTuple):
    """A moment of 8 bits."""

    codes: jax.Array  # int8 for the mean of gradients, uint8 for the mean of squares, in the shape of the weight
    scales: jax.Array  # float32 (..., blocks)


class Adam8bit(MomentsOptimizer):
    """Adam with moments `m` and `v` of one byte a value, a quarter of Adam's memory. Updates are computed in float32.

    Each block of 256 values along the last dim of a weight has a scale, the largest absolute value. If 256 does not
    divide the dim, blocks have its largest divisor from 64 to 255; without one, the last block is shorter. Rounding
    changes a stored moment by at most 0.71 % of its scale, and smaller values by less. A gradient that is not finite,
    or whose square is not, makes all moments of its block nan.

    Args:
        learning_rate, **common: as in `Optimizer`.
        beta_1: decay of `m`, the moving average of gradients.
        beta_2: decay of `v`, the moving average of squared gradients.
        epsilon: added to the root, before bias correction.
        min_8bit_size: least number of values of a weight, or of a slice of a stack of layers or experts, for moments of
            8 bits. Smaller weights, and weights whose last dim is below 32, keep float32.

    Example:
        >>> import keras_dist as kd
        >>> model = kd.Sequential([kd.Input((64,)), kd.layers.Dense(512, name="d1")])
        >>> model.compile(kd.optimizers.Adam8bit(1e-3), loss="mse")
        >>> [f"{v.dtype}{v.shape}" for v in model.optimizer.variables if "mu/" in v.path]
        ['float32(512,)', 'int8(64, 512)', 'float32(64, 2)']

    Source: `bitsandbytes.optim.Adam8bit`, with Keras's epsilon. Unlike there, a positive `v` is not rounded to 0, which
    would divide `m` by `epsilon`. Gradients that differ by rounding, as on another mesh, may have neighboring codes.
    """

    takes_rows: ClassVar[bool] = True

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        min_8bit_size: int = 4096,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **common)
        self.min_8bit_size = check_int("min_8bit_size", min_8bit_size, 0)

    def transformation(self) -> optax.GradientTransformation:
        return optax.chain(optax.GradientTransformation(self._init, self._update), scale_by_rate())

    def _init(self, params: PyTree) -> optax.ScaleByAdamState:
        def zeros(dtype: Any, w: jax.Array) -> Any:
            if w.ndim == 0 or w.size < self.min_8bit_size or w.shape[-1] < _LEAST_DIM:
                return jnp.zeros(w.shape, jnp.float32)
            return Quantized(
                jnp.zeros(w.shape, dtype), jnp.zeros((*w.shape[:-1], _blocks(w.shape[-1])[0]), jnp.float32)
            )

        mu, nu = (self.map_weights(functools.partial(zeros, dtype), params) for dtype in (jnp.int8, jnp.uint8))
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), mu, nu)

    def _update(self, updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, optax.ScaleByAdamState]:
        def blend(beta: float, power: int, grad: jax.Array, moment: Any) -> jax.Array:
            before = _dequantized(moment) if isinstance(moment, Quantized) else moment
            return beta * before + (1 - beta) * grad.astype(jnp.float32) ** power

        def stored(values: jax.Array, moment: Any) -> Any:
            return _quantized(values, moment.codes.dtype) if isinstance(moment, Quantized) else values

        count = optax.safe_increment(state.count)
        factor = jnp.sqrt(1 - self.beta_2**count) / (1 - self.beta_1**count)
        mu = jax.tree.map(functools.partial(blend, self.beta_1, 1), updates, state.mu)
        nu = jax.tree.map(functools.partial(blend, self.beta_2, 2), updates, state.nu)
        directions = jax.tree.map(lambda m, n: factor * m / (jnp.sqrt(n) + self.epsilon), mu, nu)
        mu, nu = jax.tree.map(stored, mu, state.mu), jax.tree.map(stored, nu, state.nu)
        return directions, optax.ScaleByAdamState(count, mu, nu)


class AdamW8bit(Adam8bit):
    """Adam8bit after `w -= learning_rate * weight_decay * w`. Arguments as in `Adam8bit`."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        weight_decay: float = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        min_8bit_size: int = 4096,
        **common: Unpack[ArgumentsButDecay],
    ) -> None:
        if weight_decay is None:
            fix = "use Adam8bit"
            raise ModelError("AdamW8bit: `weight_decay` must be a number", given="weight_decay=None", fix=fix)
        super().__init__(learning_rate, beta_1, beta_2, epsilon, min_8bit_size, weight_decay=weight_decay, **common)


def _blocks(size: int) -> tuple[int, int]:
    """Return the number and the size of the blocks of a dim."""
    largest = next(block for block in range(min(size, _BLOCK), 0, -1) if size % block == 0)
    block = largest if largest >= min(size, _LEAST_BLOCK) else _BLOCK
    return math.ceil(size / block), block


def _of_values(scales: jax.Array, size: int) -> jax.Array:
    """Repeat the scale of each block for its values."""
    return jnp.repeat(scales, _blocks(size)[1], axis=-1)[..., :size]


def _decades(dtype: Any) -> list[tuple[int, float]]:
    """Return `(start, unit)` of each decade, whose codes are `start <= code < 2 * start`."""
    return [((1 if dtype == jnp.int8 else 2) << place, 10.0 ** (place - 6)) for place in range(7)]


def _one(dtype: Any) -> int:
    """Return the code of 1.0. Negative codes have negative values, and 0 is zero."""
    return -128 if dtype == jnp.int8 else 1


def _center(code: Any, start: Any, unit: Any) -> Any:
    """Return the value of a code: a decade has `start` cells of equal size from `0.1 * unit` to `unit`."""
    return unit * (0.1 + 0.9 * (code - start + 0.5) / start)


def _decade_of(numbers: jax.Array, least: list[Any], dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Return `start` and `unit` of the decade of each number, given the least number of each decade."""
    start, unit = (jnp.full(numbers.shape, first, jnp.float32) for first in _decades(dtype)[0])
    for bound, (its_start, its_unit) in zip(least[1:], _decades(dtype)[1:], strict=True):
        start, unit = jnp.where(numbers >= bound, its_start, start), jnp.where(numbers >= bound, its_unit, unit)
    return start, unit


def _dequantized(moment: Quantized) -> jax.Array:
    codes, dtype = moment.codes, moment.codes.dtype
    code = jnp.abs(codes.astype(jnp.float32))
    values = _center(code, *_decade_of(code, [start for start, _ in _decades(dtype)], dtype))
    values = jnp.where(codes < 0, -values, jnp.where(codes == 0, 0.0, values))
    return jnp.where(codes == _one(dtype), 1.0, values) * _of_values(moment.scales, codes.shape[-1])


def _quantized(values: jax.Array, dtype: Any) -> Quantized:
    """Return the nearest codes, but no zeros for positive values without a sign."""
    count, block = _blocks(size := values.shape[-1])
    padded = jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, count * block - size)])
    blocks = padded.reshape(*values.shape[:-1], count, block)
    # XLA's maximum on CPUs leaves out what is not a number
    scales = jnp.where(jnp.isfinite(blocks).all(-1), jnp.abs(blocks).max(-1), jnp.nan)
    relative = values / _of_values(jnp.where(scales == 0, 1, scales), size)
    centers = [_center(code, start, unit) for start, unit in _decades(dtype) for code in (start, 2 * start - 1)]
    halves = [(below + above) / 2 for below, above in zip([0.0, *centers[1::2]], [*centers[::2], 1.0], strict=True)]
    number = jnp.abs(relative)
    start, unit = _decade_of(number, halves[:-1], dtype)
    code = start + jnp.clip(jnp.floor((number / unit - 0.1) / 0.9 * start), 0, start - 1)
    code = jnp.where((number < halves[0]) if dtype == jnp.int8 else (number == 0), 0, code)
    code = jnp.where(relative < 0, -code, jnp.where(relative >= halves[-1], _one(dtype), code))
    return Quantized(code.astype(dtype), scales)
