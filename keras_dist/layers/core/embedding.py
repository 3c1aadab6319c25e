"""`Embedding` and `ReversibleEmbedding`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import check_number, check_optional, check_size
from keras_dist._support.dim_names import INPUTS, OUTPUTS
from keras_dist._support.integer_checks import check_indices
from keras_dist._support.types import ArrayLike, DTypeLike, PyTree
from keras_dist.errors import ModelError
from keras_dist.layers.base.attributes import check_dtype
from keras_dist.layers.base.lora import LoraLayer
from keras_dist.layers.base.weight_arguments import EmbeddingsArguments, Identifier, Layout
from keras_dist.layers.core.dense import project
from keras_dist.layers.core.row_table import RowTable
from keras_dist.variables import call_context
from keras_dist.variables.variable import Variable


class Embedding(LoraLayer):
    """Look up a vector for each integer: row `i` of a table.

    Args:
        input_dim: number of rows; the integers are 0 to `input_dim - 1`.
        output_dim: size of a vector.
        mask_zero: whether 0 is padding, so that the output has a mask.
        weights: initial value of `embeddings`, an array or a list with one array; the layer is then built at once.
        lora_rank, lora_alpha: as in `Dense`, of the frozen `embeddings`.
        **kwargs: `embeddings_initializer`, `embeddings_regularizer`, `embeddings_constraint` and `embeddings_layout` of
            the weight `embeddings` (input_dim, output_dim), and the arguments of `Layer`.

    Differs from Keras: without `quantization_config`.
    """

    weight_initializers: ClassVar = {"embeddings": "uniform"}
    _adapted = "embeddings"
    _drops_inputs = False  # they are integers

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        *,
        mask_zero: bool = False,
        weights: ArrayLike | list[ArrayLike] | None = None,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        **kwargs: Unpack[EmbeddingsArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.input_dim = check_size("input_dim", input_dim, self.name)
        self.output_dim = check_size("output_dim", output_dim, self.name)
        self.mask_zero = mask_zero
        self._describe_lora(lora_rank, lora_alpha)
        self.supports_masking = bool(mask_zero)
        self.autocast = False  # bfloat16 would round large integers
        self._arguments.pop("weights", None)  # a config holds no values of weights
        if weights is not None:
            self.embeddings = self._add_embeddings(self._as_initializer(weights))

    def build(self, input_shape: PyTree = None) -> None:
        """Create `embeddings` (input_dim, output_dim)."""
        if not hasattr(self, "embeddings"):
            self.embeddings = self._add_embeddings()
        self._add_factors()

    def call(self, inputs: jax.Array) -> jax.Array:
        """Return the vectors (..., output_dim) for integers (...); other numbers are truncated.

        Raises:
            DataError: an index is out of range, outside of compiled steps or with `compile(check=True)`.
        """
        check_indices(
            inputs,
            self.input_dim,
            f"layer {self.name!r}: index out of range for `embeddings`",
            f"a larger input_dim than {self.input_dim}, or other integers: unknown ones mapped to one of the rows",
        )
        inputs = jnp.asarray(inputs)
        rows = inputs if inputs.dtype in (jnp.int32, jnp.int64) else inputs.astype("int32")
        table: Any = self.embeddings[...]
        vectors = table.take(rows) if isinstance(table, RowTable) else jnp.take(table, rows, axis=0)
        vectors = vectors if self.lora_rank is None else vectors + self._product(rows)
        return vectors.astype(self.compute_dtype)

    def compute_mask(self, inputs: PyTree, mask: PyTree = None) -> PyTree:
        """Return where the integers are not 0, if `mask_zero` is set."""
        return jnp.asarray(inputs) != 0 if self.mask_zero else None

    def _add_embeddings(self, initializer: Identifier = None) -> Variable:
        return self._add_adapted((self.input_dim, self.output_dim), (INPUTS, OUTPUTS), initializer)

    def _as_initializer(self, weights: ArrayLike | Sequence[ArrayLike]) -> Callable[..., jax.Array]:
        table: Any = weights[0] if isinstance(weights, list) and len(weights) == 1 else weights
        if np.shape(table) != (self.input_dim, self.output_dim):
            summary = f"`weights` of layer {self.name!r} must have shape {(self.input_dim, self.output_dim)}"
            fix = "pass an array, or a list with one, that has a row for each integer"
            raise ModelError(summary, given=f"weights of shape {np.shape(table)}", fix=fix)
        return lambda shape, dtype, key=None: jnp.asarray(table, dtype)


class ReversibleEmbeddingArguments(EmbeddingsArguments, total=False):
    """Keyword arguments of `Embedding`."""

    mask_zero: bool
    weights: ArrayLike | list[ArrayLike] | None
    lora_rank: int | None
    lora_alpha: float | None


class ReversibleEmbedding(Embedding):
    """An `Embedding` that also projects vectors to a logit for each row: `layer(vectors, reverse=True)`.

    Args:
        input_dim, output_dim, **kwargs: as in `Embedding`.
        tie_weights: whether the projection uses the same table, instead of `reverse_embeddings`.
        reverse_dtype: element type of the projection; by default the type of the layer.
        logit_soft_cap: positive limit of the logits: `cap * tanh(x / cap)`; None for no limit.
        reverse_embeddings_layout: layout of `reverse_embeddings` (output_dim, input_dim).

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> embedding = layers.ReversibleEmbedding(100, 8)
        >>> vectors = embedding(jnp.array([[4, 2, 9]]))
        >>> embedding(vectors, reverse=True).shape
        (1, 3, 100)

    Source: `keras.layers.ReversibleEmbedding`; https://arxiv.org/abs/1608.05859.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        tie_weights: bool = True,
        *,
        reverse_dtype: DTypeLike | None = None,
        logit_soft_cap: float | None = None,
        reverse_embeddings_layout: Layout = None,
        **kwargs: Unpack[ReversibleEmbeddingArguments],
    ) -> None:
        super().__init__(input_dim, output_dim, **kwargs)
        self.tie_weights = tie_weights
        self.reverse_dtype = None if reverse_dtype is None else check_dtype(reverse_dtype, self.name)
        self.logit_soft_cap = check_optional(check_number, "logit_soft_cap", logit_soft_cap, above=0, layer=self.name)
        if not tie_weights:
            self.describe_weight("reverse_embeddings", self.embeddings_initializer, layout=reverse_embeddings_layout)

    def build(self, input_shape: PyTree = None) -> None:
        """Create `embeddings` (input_dim, output_dim), and `reverse_embeddings` (output_dim, input_dim) unless tied."""
        super().build(input_shape)
        if not self.tie_weights:
            self.reverse_embeddings = self.add_weight((self.output_dim, self.input_dim), name="reverse_embeddings")

    def call(self, inputs: jax.Array, reverse: bool = False) -> jax.Array:
        """Return vectors (..., output_dim) for integers (...); with `reverse`, logits (..., input_dim) for vectors."""
        if not reverse:
            outputs = super().call(inputs)
            context = call_context.current()
            if context is not None:
                context.set_mask(outputs, super().compute_mask(inputs))
            return outputs
        kernel = self._adapted_value() if self.tie_weights else self.reverse_embeddings[...]
        if self.reverse_dtype is not None:
            inputs, kernel = inputs.astype(self.reverse_dtype), kernel.astype(self.reverse_dtype)
        weight, dim = (self.embeddings, 0) if self.tie_weights else (self.reverse_embeddings, 1)
        return project(inputs, weight, kernel=kernel, vocabulary_dim=dim, soft_cap=self.logit_soft_cap)

    def compute_mask(self, inputs: PyTree, mask: PyTree = None) -> PyTree:
        """Return None: `call` sets the mask, depending on the direction."""
        return None
