"""`Decoder`: one causal language model for all families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_flag, check_kind
from keras_dist._support.dim_names import CLASSES, INPUTS, DimNames
from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError, shorten
from keras_dist.formats.weight_map import WeightMap
from keras_dist.layers import Dense, Embedding, ReversibleEmbedding
from keras_dist.layers.base.weight_arguments import Identifier
from keras_dist.pretrained.attending import Span
from keras_dist.pretrained.block import norm
from keras_dist.pretrained.blocks import blocks, run_blocks
from keras_dist.pretrained.cache import Cache
from keras_dist.pretrained.config import DecoderConfig
from keras_dist.pretrained.feed_forward import balancing_loss, kernel_initializer
from keras_dist.pretrained.loadable_model import LoadableModel
from keras_dist.pretrained.weight_maps import weight_map


class _Head(Dense):
    """Logits of tokens; optimizers of matrices leave its kernel to Adam."""

    _kernel_dims: ClassVar[DimNames] = (INPUTS, CLASSES)


class Decoder(LoadableModel):
    """A causal language model, of the form that its config describes.

    It is called on tokens (batch, length), or on a dict with some of `tokens`, `positions` and `segments`, each (batch,
    length). Tokens attend to earlier tokens of their own segment; by default a row is one segment, at the positions 0,
    1, 2, ... The result is logits (batch, length, vocab_size). Pairs of rows, (batch, 2, length), give logits (batch,
    2, length, vocab_size).

    With a `cache`, positions and slots follow those in the cache, and the result is `(logits, cache)`.

    Experts of `config.experts` drop no choices, unless they have a `capacity_factor` and train. In training the decoder
    adds their loss, of all layers together and without the tokens of segment 0.

    Args:
        config: the options.
        scan: whether the weights of all blocks are stacked, and one block is compiled, in a loop. Paths then have no
            number, `layers/attention/query/kernel`, and the weights a leading dim.
        remat: whether the backward pass computes each block again, instead of keeping its intermediate values.
        initializer: initializer of kernels and embeddings; by default a normal distribution.
        **kwargs: see `Model`.

    Raises:
        ModelError: `config` is not a `DecoderConfig`, or `scan=True` for experts in some layers only.

    Example:
        >>> import numpy as np
        >>> import keras_dist as kd
        >>> from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig
        >>> attention = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=8)
        >>> sizes = {"vocab_size": 64, "hidden_size": 16, "num_layers": 2}
        >>> config = DecoderConfig(family="llama", **sizes, attention=attention, feed_forward=FeedForwardConfig(32))
        >>> decoder = Decoder(config)
        >>> decoder(np.zeros((1, 5), "int32")).shape
        (1, 5, 64)
        >>> cache = decoder.empty_cache(batch_size=1, slots=8)
        >>> logits, cache = decoder(np.zeros((1, 5), "int32"), cache=cache)
        >>> int(cache.index)
        5
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        scan: bool = False,
        remat: bool = False,
        initializer: Identifier = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_kind("config", config, DecoderConfig, "a `DecoderConfig`")
        self.config = config
        self.scan, self.remat = check_flag("scan", scan), check_flag("remat", remat)
        self.autocast = False  # the cache keeps its dtype
        dtype, initial = self.dtype_policy, kernel_initializer(config, initializer)
        cap = {"logit_soft_cap": config.logit_soft_cap} if config.tied_head else {}
        kind: Any = ReversibleEmbedding if config.tied_head else Embedding
        options: dict[str, Any] = {"embeddings_initializer": initial, "dtype": dtype}
        members: dict[str, Any] = {"embedding": kind(config.vocab_size, config.hidden_size, **cap, **options)}
        if config.learned_positions:
            members["position_embedding"] = Embedding(config.max_length, config.hidden_size, **options)
        members["layers"] = blocks(config, True, scan, remat, initializer, dtype)
        members["norm"] = norm(config, dtype=dtype)
        if not config.tied_head:
            members["head"] = _Head(config.vocab_size, use_bias=False, kernel_initializer=initial, dtype=dtype)
        self._members = members  # `layers` is a property of models

    def call(self, inputs: PyTree, cache: Cache | None = None, training: bool | None = None) -> PyTree:
        """Return the logits, and with a cache also the cache with the new tokens."""
        tokens, *given = parts_of(inputs, pairs=cache is None)
        shape, tokens = tokens.shape, tokens.reshape(-1, tokens.shape[-1])
        positions, segments = (each if each is None else each.reshape(-1, shape[-1]) for each in given)
        start = 0 if cache is None else cache.index
        index = start + jnp.arange(tokens.shape[1])
        if cache is not None:
            positions = jnp.broadcast_to(index, tokens.shape) if positions is None else positions
            segments = jnp.ones(tokens.shape, jnp.int32) if segments is None else segments
            cache = cache.noted(positions, segments)
        queries = Span(index, segments, positions)
        keys = queries if cache is None else cache.span
        hidden = self._embedded(tokens, index[None] if positions is None else positions)
        hidden, cache, tallies = run_blocks(self._members["layers"], self.config, hidden, (queries, keys), cache)
        if training and tallies is not None and self.config.experts is not None:
            self.add_loss(balancing_loss(tallies, self.config.experts))
        hidden = self._members["norm"](hidden)
        logits = self._logits(hidden if len(shape) == 2 else hidden.reshape(*shape, -1))
        return logits if cache is None else (logits, cache)

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary."""
        return self.config.vocab_size

    @property
    def max_positions(self) -> int | None:
        """Number of learned positions; None if positions are not learned."""
        return self.config.max_length if self.config.learned_positions else None

    def empty_cache(self, batch_size: int, slots: int) -> Cache:
        """Return a cache without tokens.

        Args:
            batch_size: number of rows.
            slots: number of tokens in a row that it can hold, padding included. Tokens beyond replace the last ones.
        """
        return Cache.empty(self.config, batch_size, slots, self.compute_dtype, self.scan)

    def build(self, input_shape: PyTree = None) -> None:
        """Create the weights, for tokens of any batch and length."""
        super().build((None, None) if input_shape is None else input_shape)

    build.creates_weights = True  # type: ignore[attr-defined]

    def _map_of_base(self) -> WeightMap:
        return weight_map(self, joins_experts=True)  # as modules of transformers have them

    def _embedded(self, tokens: jax.Array, positions: jax.Array) -> jax.Array:
        hidden = self._members["embedding"](tokens)
        if self.config.embedding_scale is not None:
            hidden = hidden * jnp.asarray(self.config.embedding_scale, hidden.dtype)
        if self.config.learned_positions:
            hidden = hidden + self._members["position_embedding"](positions)
        return hidden

    def _logits(self, hidden: jax.Array) -> jax.Array:
        cap, divisor = self.config.logit_soft_cap, self.config.logit_divisor
        hidden = hidden if divisor == 1 else hidden / divisor  # not the logits, which a loss need not compute
        if self.config.tied_head:
            return self._members["embedding"](hidden, reverse=True)
        logits = self._members["head"](hidden)
        return logits if cap is None else cap * jnp.tanh(logits / cap)


def parts_of(
    inputs: PyTree, names: Sequence[str] = ("tokens", "positions", "segments"), pairs: bool = False
) -> tuple[Any, Any, Any]:
    """Return tokens, positions and segments; the latter are None where they are not given."""
    tokens: Any = inputs.get("tokens") if isinstance(inputs, Mapping) else inputs
    shape = getattr(tokens, "shape", (0, 0))
    is_pairs = pairs and len(shape) == 3 and shape[1] == 2
    if len(shape) != 2 and not is_pairs and names[0] == "tokens":
        given = f"tokens of shape {tokens.shape}"
        raise ModelError(
            "tokens must have two dims", given=given, fix="tokens (batch, length); for one row tokens[None]"
        )
    if not isinstance(inputs, Mapping):
        return inputs, None, None
    unknown = [name for name in inputs if name not in names]
    if unknown or "tokens" not in inputs:
        summary = f"the input must be tokens, or a dict of tokens and some of {', '.join(names[1:])}"
        given = f"a dict of {', '.join(map(shorten, inputs))}"
        raise ModelError(summary, given=given, fix='for example {"tokens": tokens, "segments": segments}')
    return inputs["tokens"], inputs.get("positions"), inputs.get("segments")
