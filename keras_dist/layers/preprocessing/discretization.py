"""`Discretization`: bin indices of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import argument_error, check_int, check_number, check_optional, is_number
from keras_dist._support.types import ArrayLike
from keras_dist.errors import DataError, ModelError, shorten
from keras_dist.layers.layer import Layer
from keras_dist.layers.preprocessing.category_encoding import (
    OUTPUT_MODES,
    check_dense,
    check_output_mode,
    encode_categories,
)


class Discretization(Layer):
    """Map numbers to the index of their bin.

    Args:
        bin_boundaries: limits between bins, in ascending order; a number equal to a limit belongs to the upper bin.
        num_bins: number of bins for which `adapt` finds limits, with equal numbers of examples.
        epsilon: tolerance of these quantiles; smaller values take longer.
        output_mode: `"int"`; `"one_hot"` for vectors of numbers; `"multi_hot"` or `"count"` for vectors of examples.
        sparse: must be False.
        dtype, name: see `Layer`.

    Example:
        >>> import numpy as np
        >>> from keras_dist import layers
        >>> layer = layers.Discretization(bin_boundaries=[0.0, 1.0, 2.0])
        >>> layer(np.array([[-1.5, 1.0, 3.4, 0.5]])).tolist()
        [[0, 2, 3, 1]]
    """

    def __init__(
        self,
        bin_boundaries: Sequence[float] | None = None,
        num_bins: int | None = None,
        epsilon: float = 0.01,
        output_mode: str = "int",
        sparse: bool = False,
        dtype: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        if (bin_boundaries is None) == (num_bins is None):
            given = f"bin_boundaries={shorten(bin_boundaries)}, num_bins={num_bins!r}"
            fix = "Discretization(num_bins=10) and adapt(data), or Discretization([0.0, 1.0])"
            raise ModelError(f"layer {self.name!r} needs either limits or a number of bins", given=given, fix=fix)
        self.num_bins = check_optional(check_int, "num_bins", num_bins, 1, layer=self.name, example=10)
        self.epsilon = check_number("epsilon", epsilon, above=0, layer=self.name, example=0.01)
        self.output_mode = check_output_mode(output_mode, OUTPUT_MODES[:-1], self.name)
        self.sparse = check_dense(sparse, False, self.name)
        self.bin_boundaries = check_optional(_check_boundaries, "bin_boundaries", bin_boundaries, self.name)
        self._summary = _Summary()

    def adapt(self, data: Any, steps: int | None = None) -> None:
        """Find limits between bins with equal numbers of examples.

        Args:
            data: an array, or an iterable of arrays.
            steps: number of arrays to read; by default all.

        Raises:
            ModelError: the layer was given limits.
            DataError: the data are empty.
        """
        if self.num_bins is None:
            summary = f"layer {self.name!r} cannot adapt: its limits were given"
            raise ModelError(summary, given="bin_boundaries, and adapt(data)", fix="Discretization(num_bins=10)")
        self.reset_state()
        for number, batch in enumerate([data] if hasattr(data, "shape") else data):
            if steps is not None and number >= steps:
                break
            self.update_state(batch)
        if not self._summary.values.size:
            fix = "pass the data themselves; a generator gives its arrays only once"
            raise DataError(f"layer {self.name!r} cannot adapt to no data", given=shorten(data), fix=fix)
        self.finalize_state()

    def update_state(self, data: Any) -> None:
        """Add an array to the summary of the data."""
        self._summary.add(np.asarray(data, "float32"), self.epsilon)

    def finalize_state(self) -> None:
        """Set the limits from the summary of the data."""
        if self.num_bins is not None:
            self.bin_boundaries = self._summary.limits(self.num_bins)

    def reset_state(self) -> None:
        """Clear the summary of the data."""
        self._summary.forget()

    def call(self, inputs: ArrayLike) -> jax.Array:
        if self.bin_boundaries is None:
            fix = "layer.adapt(data) first, or bin_boundaries=[...]"
            raise ModelError(f"layer {self.name!r} has no limits yet", given="num_bins, and no adapt(data)", fix=fix)
        bins = jnp.digitize(jnp.asarray(inputs), jnp.asarray(self.bin_boundaries, "float32")).astype("int32")
        if self.output_mode == "int":
            return bins
        return encode_categories(bins, self.output_mode, len(self.bin_boundaries) + 1, self.compute_dtype)

    def compute_output_spec(self, inputs: Any) -> Any:
        """Return the symbolic output of a call, also before `adapt`, if `num_bins` is given."""
        if self.bin_boundaries is None and self.num_bins is not None:
            limits = [float(limit) for limit in range(max(self.num_bins - 1, 1))]
            return Discretization(limits, output_mode=self.output_mode).compute_output_spec(inputs)
        return super().compute_output_spec(inputs)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor, with the current limits."""
        limits = self.bin_boundaries
        return super().get_config() | {"bin_boundaries": None if limits is None else list(limits)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return a layer from a config of `get_config`."""
        limits = config.get("bin_boundaries")
        if config.get("num_bins") is None or limits is None:
            return super().from_config(config)
        layer = super().from_config({**config, "bin_boundaries": None})
        # data with a single value have one bin, and no limits
        layer.bin_boundaries = _check_boundaries("bin_boundaries", limits, layer.name) if limits else ()
        return layer


class _Summary:
    """Quantile summary: a sample of the numbers and the count of each, as in `keras.layers.Discretization`."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.values, self.counts = np.zeros(0, "float32"), np.zeros(0, "float32")

    def add(self, numbers: np.ndarray, epsilon: float) -> None:
        numbers = np.sort(numbers.reshape(-1))
        step = max(numbers.size * epsilon, 1)
        kept = numbers[int(step - 1) :: int(step)]
        values = np.concatenate([kept, self.values])
        counts = np.concatenate([np.full(kept.shape, step, "float32"), self.counts])
        order = np.argsort(values)
        self.values, self.counts = _thinned(values[order], counts[order], epsilon)

    def limits(self, bins: int) -> tuple[float, ...]:
        values, _ = _thinned(self.values, self.counts, 1.0 / bins)
        return tuple(values[:-1].tolist())


def _thinned(values: np.ndarray, counts: np.ndarray, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """Reduce the sample to 1 / epsilon values and their counts."""
    if len(values) * epsilon < 1:
        return values, counts
    shares = epsilon + np.arange(0.0, 1.0, epsilon)
    total = counts.cumsum()
    known = total / total[-1]
    after = np.interp(shares, known, total)
    return np.interp(shares, known, values).astype("float32"), np.diff(after, prepend=0).astype("float32")


def _check_boundaries(argument: str, value: Any, layer: str) -> tuple[float, ...]:
    limits = tuple(np.asarray(value).ravel().tolist()) if isinstance(value, list | tuple | np.ndarray) else ()
    if limits and all(map(is_number, limits)) and list(limits) == sorted(limits):
        return tuple(map(float, limits))
    raise argument_error(argument, value, "numbers in ascending order", layer=layer, example=[0.0, 1.0])
