"""`Attention` and `AdditiveAttention`, which have no projections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist import random
from keras_dist._support.arguments import check_fraction, check_option
from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError, shorten
from keras_dist.layers.layer import Layer
from keras_dist.ops.attention import softmax_of_kept


class Attention(Layer):
    """Dot-product attention: `softmax(query @ key.T) @ value`.

    Args:
        use_scale: whether the scores are multiplied by a trained `scale` ().
        score_mode: `"dot"` for products of query and key, `"concat"` for the sum over `tanh(query + key)`, multiplied
            by a trained `concat_score_weight` ().
        dropout: fraction of the scores that is dropped in training.
        seed: fixes what is dropped.
        **kwargs: as of `Layer`.
    """

    def __init__(
        self,
        use_scale: bool = False,
        score_mode: str = "dot",
        dropout: float = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.use_scale = use_scale
        self.score_mode = check_option("score_mode", score_mode, ("dot", "concat"), self.name)
        self.dropout = check_fraction("dropout", dropout, self.name)
        self.seed = seed
        if self.dropout:
            self.seed_generator = random.SeedGenerator(seed)
        self.supports_masking = True

    def build(self, input_shape: PyTree) -> None:
        """Create `scale` and `concat_score_weight`, both ().

        Raises:
            ModelError: the input is no list of a query, a value and perhaps a key.
        """
        self._check_list(input_shape)
        if self.use_scale:
            self.scale = self.add_weight((), "ones", name="scale")
        if self.score_mode == "concat":
            self.concat_score_weight = self.add_weight((), "ones", name="concat_score_weight")

    def call(
        self,
        inputs: Sequence[jax.Array],
        mask: Sequence[jax.Array | None] | None = None,
        training: bool | None = False,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> jax.Array | tuple[jax.Array, jax.Array]:
        """Return `softmax(scores) @ value`.

        Args:
            inputs: a list of the query (batch, target, features), the value (batch, source, features), and perhaps the
                key, as the value; by default the value.
            mask: a list of the positions that count of the query (batch, target), the others give zeros, and of the
                value (batch, source); None for all.
            training: whether scores are dropped.
            return_attention_scores: whether to return the scores, too.
            use_causal_mask: whether no position attends to a later one.

        Returns:
            (batch, target, features), and with `return_attention_scores` (batch, target, source), those that
            training drops as zeros.

        Raises:
            ModelError: the inputs or masks are no such lists.
        """
        self._check_list(inputs)
        query, value, key = inputs[0], inputs[1], inputs[-1]
        query_mask, value_mask = self._masks(mask)
        scores = self._scores(query, key)
        weights = softmax_of_kept(scores, value_mask, use_causal_mask)
        if training and self.dropout:
            weights = random.dropout(weights, self.dropout, seed=self.seed_generator)
        outputs = jnp.matmul(weights, value)
        if query_mask is not None:
            outputs = jnp.where(jnp.asarray(query_mask, bool)[..., None], outputs, 0)
        return (outputs, weights) if return_attention_scores else outputs

    def compute_mask(self, inputs: PyTree, mask: PyTree = None) -> PyTree:
        """Return the mask of the query."""
        return self._masks(mask)[0]

    def _scores(self, query: jax.Array, key: jax.Array) -> jax.Array:
        scale = self.scale[...] if self.use_scale else 1
        if self.score_mode == "dot":
            return jnp.matmul(query, jnp.swapaxes(key, -2, -1)) * scale
        return self.concat_score_weight[...] * jnp.sum(
            jnp.tanh(scale * (query[..., None, :] + key[..., None, :, :])), -1
        )

    def _masks(self, mask: Sequence[jax.Array | None] | None) -> tuple[jax.Array | None, jax.Array | None]:
        if mask is None:
            return None, None
        self._check_list(mask, "mask")
        return mask[0], mask[1]

    def _check_list(self, value: Any, what: str = "input") -> None:
        if not isinstance(value, list | tuple) or not 2 <= len(value) <= 3 or isinstance(value[0], int):
            summary = f"the {what} of layer {self.name!r} must be [query, value] or [query, value, key]"
            given = f"{len(value)} of them" if isinstance(value, list | tuple) else shorten(value)
            fix = "attention([query, value]); for self-attention attention([x, x])"
            raise ModelError(summary, given=given, fix=fix)


class AdditiveAttention(Attention):
    """Additive attention: `softmax(sum(tanh(query + key))) @ value`.

    Args:
        use_scale: whether the terms of the sum are multiplied by a trained `scale` (features,).
        dropout: fraction of the scores that is dropped in training.
        seed: fixes what is dropped.
        **kwargs: as of `Layer`.
    """

    def __init__(self, use_scale: bool = True, dropout: float = 0.0, *, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(use_scale=use_scale, dropout=dropout, seed=seed, **kwargs)

    def build(self, input_shape: PyTree) -> None:
        """Create `scale` (features,).

        Raises:
            ModelError: the input is no list of a query, a value and perhaps a key.
        """
        self._check_list(input_shape)
        if self.use_scale:
            self.scale = self.add_weight((input_shape[0][-1],), "glorot_uniform", name="scale")

    def _scores(self, query: jax.Array, key: jax.Array) -> jax.Array:
        scale = self.scale[...] if self.use_scale else 1
        return jnp.sum(scale * jnp.tanh(query[..., None, :] + key[..., None, :, :]), -1)
