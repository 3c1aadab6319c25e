"""Initializers that draw random numbers."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from keras_dist import random
from keras_dist._support.arguments import check_number, check_option
from keras_dist._support.types import DTypeLike
from keras_dist.errors import ModelError, UnknownNameError, shorten
from keras_dist.initializers.initializer import RandomInitializer

_DISTRIBUTIONS: dict[str, Any] = {  # Keras's names, and JAX's
    "normal": "truncated_normal",
    "truncated_normal": "truncated_normal",
    "untruncated_normal": "normal",
    "uniform": "uniform",
}


class _Normal(RandomInitializer):
    _values: ClassVar[Callable[..., Any]]

    def __init__(self, mean: float = 0.0, stddev: float = 0.05, seed: int | random.SeedGenerator | None = None) -> None:
        super().__init__(seed)
        self.mean = mean
        self.stddev = stddev

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", key: jax.Array | None = None) -> jax.Array:
        """Return values of `shape` for the seed or `key`."""
        dtype = dtype or "float32"
        values = self._values(self.stddev)(self.choose_key(key), shape, dtype)
        return values + jnp.asarray(self.mean, dtype)


class RandomNormal(_Normal):
    """Normal values with this mean and standard deviation. For `seed` see `VarianceScaling`."""

    _values = staticmethod(jax.nn.initializers.normal)


class TruncatedNormal(_Normal):
    """Normal values, redrawn if they are more than two standard deviations from the mean.

    Args:
        mean: the mean.
        stddev: the standard deviation before truncation, which reduces it by a factor of 0.88.
        seed: as in `VarianceScaling`.
    """

    _values = staticmethod(jax.nn.initializers.truncated_normal)


class RandomUniform(RandomInitializer):
    """Uniform values in [minval, maxval). For `seed` see `VarianceScaling`."""

    def __init__(
        self, minval: float = -0.05, maxval: float = 0.05, seed: int | random.SeedGenerator | None = None
    ) -> None:
        super().__init__(seed)
        self.minval = minval
        self.maxval = maxval

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", key: jax.Array | None = None) -> jax.Array:
        """Return values of `shape` for the seed or `key`."""
        return jax.random.uniform(self.choose_key(key), shape, dtype or "float32", self.minval, self.maxval)


class VarianceScaling(RandomInitializer):
    """Values with mean 0 and variance `scale / n`, where `n` is fan_in, fan_out or their mean.

    A weight (..., inputs, outputs) has fan_in = r * inputs and fan_out = r * outputs, with r the product of the leading
    dims.

    Args:
        scale: a positive number.
        mode: `"fan_in"`, `"fan_out"` or `"fan_avg"`.
        distribution: `"truncated_normal"` (at two standard deviations), `"untruncated_normal"` or `"uniform"`.
        seed: None, an integer that takes precedence over keys, or a `SeedGenerator`.
        input_axes, output_axes: other dims whose products are fan_in and fan_out.

    Raises:
        UnknownNameError: no mode or distribution has this name.
        ModelError: `scale` is not positive, or only one of the axes is given, which Keras ignores.
    """

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: int | random.SeedGenerator | None = None,
        input_axes: Sequence[int] | None = None,
        output_axes: Sequence[int] | None = None,
    ) -> None:
        super().__init__(seed)
        check_number("scale", scale, above=0, example=1.0)
        if (input_axes is None) != (output_axes is None):
            given = f"input_axes={shorten(input_axes)}, output_axes={shorten(output_axes)}"
            fix = "give both, or neither"
            raise ModelError("`input_axes` and `output_axes` must be given together", given=given, fix=fix)
        self.scale = scale
        self.mode = check_option("mode", mode, ("fan_in", "fan_out", "fan_avg"), error=UnknownNameError)
        self.distribution = check_option("distribution", distribution, [*_DISTRIBUTIONS], error=UnknownNameError)
        self.input_axes = input_axes
        self.output_axes = output_axes

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", key: jax.Array | None = None) -> jax.Array:
        """Return values of `shape` for the seed or `key`."""
        dtype = dtype or "float32"
        if 0 in shape:
            return jnp.zeros(shape, dtype)
        draw = jax.nn.initializers.variance_scaling(
            self.scale, self.mode, _DISTRIBUTIONS[self.distribution], *self._fan_axes(shape)
        )
        return draw(self.choose_key(key), shape, dtype)

    def _fan_axes(self, shape: Sequence[int]) -> tuple[Any, Any, tuple[int, ...]]:
        """Return the dims of inputs, of outputs, and of neither; all others count for both."""
        rank = len(shape)
        if self.input_axes is None or self.output_axes is None:
            return (-2, -1, ()) if rank > 1 else ((), (), ())
        axes = (*self.input_axes, *self.output_axes)
        counted = {axis % rank for axis in axes if -rank <= axis < rank}
        if len(counted) < len(axes):
            summary = f"`input_axes` and `output_axes` must be distinct axes of {rank} dims"
            given = f"input_axes={self.input_axes}, output_axes={self.output_axes}, shape {tuple(shape)}"
            raise ModelError(summary, given=given, fix="correct the axes, or leave both out")
        return tuple(self.input_axes), tuple(self.output_axes), tuple(set(range(rank)) - counted)


class _Preset(VarianceScaling):
    """`VarianceScaling` with its first three arguments fixed."""

    _preset: tuple[float, Literal["fan_in", "fan_avg"], Literal["truncated_normal", "uniform"]]

    def __init__(
        self,
        seed: int | random.SeedGenerator | None = None,
        input_axes: Sequence[int] | None = None,
        output_axes: Sequence[int] | None = None,
    ) -> None:
        super().__init__(*self._preset, seed, input_axes, output_axes)


class GlorotNormal(_Preset):
    """Truncated normal values with variance `2 / (fan_in + fan_out)`, Glorot 2010. Arguments: see `VarianceScaling`."""

    _preset = (1.0, "fan_avg", "truncated_normal")


class GlorotUniform(_Preset):
    """Uniform values with limit `sqrt(6 / (fan_in + fan_out))`, Glorot 2010. Arguments: see `VarianceScaling`."""

    _preset = (1.0, "fan_avg", "uniform")


class HeNormal(_Preset):
    """Truncated normal values with variance `2 / fan_in`, arXiv:1502.01852. Arguments: see `VarianceScaling`."""

    _preset = (2.0, "fan_in", "truncated_normal")


class HeUniform(_Preset):
    """Uniform values with limit `sqrt(6 / fan_in)`, arXiv:1502.01852. Arguments: see `VarianceScaling`."""

    _preset = (2.0, "fan_in", "uniform")


class LecunNormal(_Preset):
    """Truncated normal values with variance `1 / fan_in`, arXiv:1706.02515. Arguments: see `VarianceScaling`."""

    _preset = (1.0, "fan_in", "truncated_normal")


class LecunUniform(_Preset):
    """Uniform values with limit `sqrt(3 / fan_in)`, arXiv:1706.02515. Arguments: see `VarianceScaling`."""

    _preset = (1.0, "fan_in", "uniform")


class Orthogonal(RandomInitializer):
    """A matrix with orthonormal columns, or with orthonormal rows if it has more columns than rows.

    A weight of more dims is such a matrix after all dims except the last are merged.

    Args:
        gain: factor of the matrix.
        seed: as in `VarianceScaling`.

    Source: Saxe et al. 2014, arXiv:1312.6120.
    """

    def __init__(self, gain: float = 1.0, seed: int | random.SeedGenerator | None = None) -> None:
        super().__init__(seed)
        self.gain = gain

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", key: jax.Array | None = None) -> jax.Array:
        """Return values of `shape` for the seed or `key`, computed in float32 or more."""
        if len(shape) < 2:
            given = f"shape {tuple(shape)} of {len(shape)} dims"
            fix = "choose another initializer for this weight"
            raise ModelError("Orthogonal initializes only weights of shape (..., rows, columns)", given=given, fix=fix)
        dtype = jnp.dtype(dtype or "float32")
        draw = jax.nn.initializers.orthogonal(self.gain)
        return draw(self.choose_key(key), shape, jnp.promote_types(dtype, "float32")).astype(dtype)
