"""`CategoryEncoding`, category vectors for layers that look up, hash or discretize, and `Discretization`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import (
    argument_error,
    check_int,
    check_number,
    check_option,
    check_optional,
    check_size,
    is_number,
)
from keras_dist._support.types import ArrayLike
from keras_dist.errors import DataError, ModelError, shorten
from keras_dist.layers.base.layer import Layer
from keras_dist.layers.base.weight_arguments import LayerArguments
from keras_dist.symbolic.tensors import KerasTensor

OUTPUT_MODES = ("int", "one_hot", "multi_hot", "count", "tf_idf")


class CategoryEncoding(Layer):
    """Encode integers as vectors with one entry for each category.

    Args:
        num_tokens: number of categories; the integers are 0 to `num_tokens - 1`.
        output_mode: `"one_hot"` for a vector for each integer; `"multi_hot"` for a vector for each example, with 1 for
            its integers; `"count"` for a vector for each example, with the numbers of occurrences.
        sparse: must be False.
        **kwargs: see `Layer`.

    Example:
        >>> import numpy as np
        >>> from keras_dist import layers
        >>> layers.CategoryEncoding(3, output_mode="count")(np.array([[0, 2, 2]])).tolist()
        [[1.0, 0.0, 2.0]]

    Differs from Keras: `sparse=True` is refused.
    """

    def __init__(
        self,
        num_tokens: int | None = None,
        output_mode: str = "multi_hot",
        sparse: bool = False,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.num_tokens = check_size("num_tokens", num_tokens, self.name)
        self.output_mode = check_output_mode(output_mode, ("multi_hot", "one_hot", "count"), self.name)
        self.sparse = check_dense(sparse, False, self.name)
        self.autocast = False

    def call(self, inputs: ArrayLike, count_weights: jax.Array | None = None) -> jax.Array:
        """Return the vectors.

        Args:
            inputs: integers (batch, n), or (batch,).
            count_weights: weight of each integer, of the shape of the inputs; only with `output_mode="count"`.
        """
        if count_weights is not None and self.output_mode != "count":
            expected, fix = f'None with output_mode="{self.output_mode}"', 'leave it out, or output_mode="count"'
            raise argument_error("count_weights", count_weights, expected, layer=self.name, fix=fix)
        return encode_categories(inputs, self.output_mode, self.num_tokens, self.compute_dtype, count_weights)


def encode_categories(
    inputs: ArrayLike, output_mode: str, depth: int, dtype: str, count_weights: jax.Array | None = None
) -> jax.Array:
    """Encode integers as vectors of size `depth`; see `CategoryEncoding`."""
    inputs = jnp.atleast_1d(jnp.asarray(inputs))
    if output_mode == "one_hot" and inputs.ndim > 1 and inputs.shape[-1] == 1:
        inputs = inputs[..., 0]
    vectors = jax.nn.one_hot(inputs.astype("int32"), depth, dtype=dtype)
    if output_mode == "one_hot":
        return vectors
    axis = min(inputs.ndim - 1, 1)
    if output_mode == "multi_hot":
        return jnp.max(vectors, axis)
    if count_weights is not None:
        vectors = vectors * jnp.asarray(count_weights, dtype)[..., None]
    return jnp.sum(vectors, axis)


def check_dense(sparse: Any, ragged: Any, layer: str) -> bool:
    """Check that neither sparse nor ragged results are requested; return False."""
    if sparse or ragged:
        given = f"sparse={shorten(sparse)}, ragged={shorten(ragged)}"
        fix = "leave them out; integers need no encoding before an Embedding"
        raise ModelError(f"layer {layer!r} gives dense arrays of one shape", given=given, fix=fix)
    return False


def check_output_mode(output_mode: Any, modes: Sequence[str], layer: str) -> str:
    """Check the output mode, and return its current name."""
    names = {"binary": "multi_hot", "tf-idf": "tf_idf"}
    return check_option("output_mode", names.get(output_mode, output_mode), modes, layer)


def check_salt(salt: Any, layer: str) -> tuple[int, int] | None:
    """Return the two integers of a key; one integer stands for both."""
    pair = tuple(salt) if isinstance(salt, list | tuple) else (salt, salt)
    if salt is None or (len(pair) == 2 and all(isinstance(each, int | np.integer) for each in pair)):
        return None if salt is None else (int(pair[0]), int(pair[1]))
    raise argument_error("salt", salt, "an integer, two of them, or None", layer=layer, example=(133, 137))


def batches_of(data: Any, steps: int | None) -> Iterator[Any]:
    """Yield the batches for `adapt`: an array or list itself, or up to `steps` batches of an iterable."""
    if isinstance(data, str | bytes | list | tuple) or hasattr(data, "shape") or not isinstance(data, Iterable):
        yield data
        return
    for number, batch in enumerate(data):
        if steps is not None and number >= steps:
            return
        yield batch


def encoded(indices: np.ndarray, output_mode: str, depth: int) -> np.ndarray:
    """Encode indices as float32 vectors of size `depth` on the host; indices out of range are ignored."""
    indices = np.atleast_1d(indices)
    if output_mode == "one_hot":
        if indices.ndim > 1 and indices.shape[-1] == 1:
            indices = indices[..., 0]
        rows = indices.reshape(-1, 1)
        shape = indices.shape
    else:
        rows = indices.reshape(-1, indices.shape[-1])
        shape = indices.shape[:-1]
    vectors = np.zeros((len(rows), depth), "float32")
    row, column = np.nonzero((rows >= 0) & (rows < depth))
    places = (row, rows[row, column])
    if output_mode == "multi_hot":
        vectors[places] = 1
    else:
        np.add.at(vectors, places, 1)
    return vectors.reshape(*shape, depth)


def encoded_like(inputs: KerasTensor, output_mode: str, depth: int, dtype: str) -> KerasTensor:
    """Return the symbolic result of `encoded`, or for mode `"int"` of the indices."""
    shape = inputs.shape
    if output_mode == "int":
        return KerasTensor(shape, dtype)
    if output_mode != "one_hot" or (len(shape) > 1 and shape[-1] == 1):
        shape = shape[:-1]
    return KerasTensor((*shape, depth), "float32")


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
