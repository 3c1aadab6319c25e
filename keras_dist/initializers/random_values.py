"""Initializers that draw random numbers."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_number, check_option
from keras_dist._support.types import DTypeLike
from keras_dist.errors import ModelError, UnknownNameError, shorten
from keras_dist.initializers.initializer import RandomInitializer
from keras_dist.random.seeds import SeedGenerator

_DISTRIBUTIONS: dict[str, Any] = {  # Keras's names, and JAX's
    "normal": "truncated_normal",
    "truncated_normal": "truncated_normal",
    "untruncated_normal": "normal",
    "uniform": "uniform",
}


class _Normal(RandomInitializer):
    """Normal values of `jax.nn.initializers`, moved to their mean."""

    _values: ClassVar[Callable[..., Any]]

    def __init__(self, mean: float = 0.0, stddev: float = 0.05, seed: int | SeedGenerator | None = None) -> None:
        super().__init__(seed)
        self.mean = mean
        self.stddev = stddev

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", key: jax.Array | None = None) -> jax.Array:
        """Return values of `shape` for the seed or `key`."""
        dtype = dtype or "float32"
        values = self._values(self.stddev)(self.choose_key(key), shape, dtype)
        return values + jnp.asarray(self.mean, dtype)


class RandomNormal(_Normal):
    """Draws normally distributed values.

    Args:
        mean: of the values.
        stddev: their standard deviation.
        seed: None, an integer that goes before every key, or a `SeedGenerator`.
    """

    _values = staticmethod(jax.nn.initializers.normal)


class TruncatedNormal(_Normal):
    """Draws normally distributed values; those more than two standard deviations from the mean are drawn again.

    Args:
        mean: of the values.
        stddev: the standard deviation before values are drawn again; after it, it is 0.88 of that.
        seed: None, an integer that goes before every key, or a `SeedGenerator`.
    """

    _values = staticmethod(jax.nn.initializers.truncated_normal)


class RandomUniform(RandomInitializer):
    """Draws uniformly distributed values from [minval, maxval).

    Args:
        minval: the least value.
        maxval: above all values.
        seed: None, an integer that goes before every key, or a `SeedGenerator`.
    """

    def __init__(self, minval: float = -0.05, maxval: float = 0.05, seed: int | SeedGenerator | None = None) -> None:
        super().__init__(seed)
        self.minval = minval
        self.maxval = maxval

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", key: jax.Array | None = None) -> jax.Array:
        """Return values of `shape` for the seed or `key`."""
        return jax.random.uniform(self.choose_key(key), shape, dtype or "float32", self.minval, self.maxval)


class VarianceScaling(RandomInitializer):
    """Draws values with mean 0 and variance `scale / n`.

    For a weight (..., inputs, outputs), with r the product of the leading dims, `n` is fan_in = r * inputs,
    fan_out = r * outputs, or their mean.

    Args:
        scale: a positive number.
        mode: `"fan_in"`, `"fan_out"` or `"fan_avg"`.
        distribution: `"truncated_normal"` (at two standard deviations), `"untruncated_normal"` or `"uniform"`.
        seed: None, an integer that goes before every key, or a `SeedGenerator`.
        input_axes: the dims whose product is fan_in, when they are others; only together with `output_axes`.
        output_axes: the dims whose product is fan_out.

    Raises:
        UnknownNameError: no mode or distribution has this name.
        ModelError: `scale` is not positive, or axes do not come in a pair.

    Differs from Keras: one of `input_axes` and `output_axes` alone is refused; Keras ignores it.
    """

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: int | SeedGenerator | None = None,
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
        """Return values of `shape` for the seed or `key`.

        Raises:
            ModelError: the axes are not distinct dims of `shape`.
        """
        dtype = dtype or "float32"
        if 0 in shape:
            return jnp.zeros(shape, dtype)
        draw = jax.nn.initializers.variance_scaling(
            self.scale, self.mode, _DISTRIBUTIONS[self.distribution], *self._fan_axes(shape)
        )
        return draw(self.choose_key(key), shape, dtype)

    def _fan_axes(self, shape: Sequence[int]) -> tuple[Any, Any, tuple[int, ...]]:
        """Return the dims of inputs, of outputs, and those that count for neither. All others count for both."""
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
        seed: int | SeedGenerator | None = None,
        input_axes: Sequence[int] | None = None,
        output_axes: Sequence[int] | None = None,
    ) -> None:
        super().__init__(*self._preset, seed, input_axes, output_axes)


class GlorotNormal(_Preset):
    """Draws truncated normal values with variance `2 / (fan_in + fan_out)`. For the arguments see `VarianceScaling`.

    Source: `keras.initializers.GlorotNormal`; http://proceedings.mlr.press/v9/glorot10a.html.
    """

    _preset = (1.0, "fan_avg", "truncated_normal")


class GlorotUniform(_Preset):
    """Draws uniform values with limit `sqrt(6 / (fan_in + fan_out))`. For the arguments see `VarianceScaling`.

    Source: `keras.initializers.GlorotUniform`; http://proceedings.mlr.press/v9/glorot10a.html.
    """

    _preset = (1.0, "fan_avg", "uniform")


class HeNormal(_Preset):
    """Draws truncated normal values with variance `2 / fan_in`. For the arguments see `VarianceScaling`.

    Source: `keras.initializers.HeNormal`; https://arxiv.org/abs/1502.01852.
    """

    _preset = (2.0, "fan_in", "truncated_normal")


class HeUniform(_Preset):
    """Draws uniform values with limit `sqrt(6 / fan_in)`. For the arguments see `VarianceScaling`.

    Source: `keras.initializers.HeUniform`; https://arxiv.org/abs/1502.01852.
    """

    _preset = (2.0, "fan_in", "uniform")


class LecunNormal(_Preset):
    """Draws truncated normal values with variance `1 / fan_in`. For the arguments see `VarianceScaling`.

    Source: `keras.initializers.LecunNormal`; https://arxiv.org/abs/1706.02515.
    """

    _preset = (1.0, "fan_in", "truncated_normal")


class LecunUniform(_Preset):
    """Draws uniform values with limit `sqrt(3 / fan_in)`. For the arguments see `VarianceScaling`.

    Source: `keras.initializers.LecunUniform`; https://arxiv.org/abs/1706.02515.
    """

    _preset = (1.0, "fan_in", "uniform")


class Orthogonal(RandomInitializer):
    """Draws a matrix with orthonormal columns, or rows where it has more columns than rows.

    A weight of more dims is such a matrix with all dims but the last as one.

    Args:
        gain: what the matrix is multiplied by.
        seed: None, an integer that goes before every key, or a `SeedGenerator`.

    Source: `keras.initializers.Orthogonal`; https://openreview.net/forum?id=_wzZwKpTDF_9C.
    """

    def __init__(self, gain: float = 1.0, seed: int | SeedGenerator | None = None) -> None:
        super().__init__(seed)
        self.gain = gain

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", key: jax.Array | None = None) -> jax.Array:
        """Return values of `shape` for the seed or `key`. They are computed in float32 or more.

        Raises:
            ModelError: `shape` has less than two dims.
        """
        if len(shape) < 2:
            given = f"shape {tuple(shape)} of {len(shape)} dims"
            fix = "choose another initializer for this weight"
            raise ModelError("Orthogonal initializes only weights of shape (..., rows, columns)", given=given, fix=fix)
        dtype = jnp.dtype(dtype or "float32")
        draw = jax.nn.initializers.orthogonal(self.gain)
        return draw(self.choose_key(key), shape, jnp.promote_types(dtype, "float32")).astype(dtype)
