"""`Attention` and `AdditiveAttention`: attention without projections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist import random
from keras_dist._support.arguments import check_fraction, check_option
from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError, shorten
from keras_dist.layers.base.layer import Layer
from keras_dist.ops.attention import softmax_of_kept


class Attention(Layer):
    """Dot-product attention: `softmax(query @ key.T) @ value`.

    Args:
        use_scale: whether scores are multiplied by a trainable `scale` ().
        score_mode: `"dot"` for the dot products of query and key; `"concat"` for the sum of `tanh(query + key)`,
            multiplied by a trainable `concat_score_weight` ().
        dropout: fraction of scores dropped in training.
        seed: seed of the dropout.
        **kwargs: see `Layer`.
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
        """Create the scalars `scale` and `concat_score_weight`."""
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
            inputs: `[query, value]` or `[query, value, key]` of shapes (batch, target, features) and (batch, source,
                features); the key is the value by default.
            mask: boolean masks of valid positions, `[query_mask, value_mask]`, (batch, target) and (batch, source);
                outputs of masked query positions are 0.
            training: whether to drop scores.
            return_attention_scores: whether to return `(outputs, scores)`, with scores (batch, target, source).
            use_causal_mask: whether positions attend only to themselves and earlier ones.

        Raises:
            ModelError: inputs or masks are not such a list.
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
        return self._masks(mask)[0]

    def _scores(self, query: jax.Array, key: jax.Array) -> jax.Array:
        scale = self.scale[...] if self.use_scale else 1
        if self.score_mode == "dot":
            return jnp.matmul(query, jnp.swapaxes(key, -2, -1)) * scale
        sums = jnp.sum(jnp.tanh(scale * (query[..., None, :] + key[..., None, :, :])), -1)
        return self.concat_score_weight[...] * sums

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
        use_scale: whether the terms of the sum are multiplied by a trainable `scale` (features,).
        dropout, seed, **kwargs: as in `Attention`.
    """

    def __init__(self, use_scale: bool = True, dropout: float = 0.0, *, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(use_scale=use_scale, dropout=dropout, seed=seed, **kwargs)

    def build(self, input_shape: PyTree) -> None:
        """Create `scale` (features,)."""
        self._check_list(input_shape)
        if self.use_scale:
            self.scale = self.add_weight((input_shape[0][-1],), "glorot_uniform", name="scale")

    def _scores(self, query: jax.Array, key: jax.Array) -> jax.Array:
        scale = self.scale[...] if self.use_scale else 1
        return jnp.sum(scale * jnp.tanh(query[..., None, :] + key[..., None, :, :]), -1)
