"""`Encoder`: one encoder of text and images, of the blocks of `Decoder` without a causal mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_flag, check_kind
from keras_dist._support.types import PyTree
from keras_dist.layers import Conv2D, Dense, Embedding, Layer
from keras_dist.layers.base.weight_arguments import Identifier
from keras_dist.pretrained.attending import Span
from keras_dist.pretrained.block import norm
from keras_dist.pretrained.blocks import blocks, run_blocks
from keras_dist.pretrained.config import EncoderConfig
from keras_dist.pretrained.decoder import parts_of
from keras_dist.pretrained.feed_forward import kernel_initializer
from keras_dist.pretrained.loadable_model import LoadableModel


class TokenEmbedding(Layer):
    """The normalized sum of the vectors of a token, its position and its type."""

    def __init__(self, config: EncoderConfig, initializer: Identifier = None, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        options: dict[str, Any] = {
            "embeddings_initializer": kernel_initializer(config, initializer),
            "dtype": self.dtype_policy,
        }
        self.tokens = Embedding(config.vocab_size or 1, config.hidden_size, **options)
        learned = config.learned_positions
        self.positions = Embedding(config.max_length, config.hidden_size, **options) if learned else None
        self.types = Embedding(config.num_types, config.hidden_size, **options) if config.num_types else None
        self.norm = norm(config, dtype=self.dtype_policy)

    def call(self, tokens: jax.Array, positions: jax.Array, types: jax.Array | None = None) -> jax.Array:
        hidden = self.tokens(tokens)
        if self.positions is not None:
            hidden = hidden + self.positions(positions)
        if self.types is not None:
            hidden = hidden + self.types(jnp.zeros_like(tokens) if types is None else types)
        return self.norm(hidden)


class PatchEmbedding(Layer):
    """The vectors of patches of an image after a learned first vector, each plus the vector of its position."""

    def __init__(self, config: EncoderConfig, initializer: Identifier = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hidden_size, self.count = config.hidden_size, config.max_length
        self.initializer = kernel_initializer(config, initializer)
        options: dict[str, Any] = {"kernel_initializer": self.initializer, "dtype": self.dtype_policy}
        self.patches = Conv2D(config.hidden_size, config.patch_size, config.patch_size, "valid", **options)

    def build(self, input_shape: tuple[int, ...]) -> None:
        self.patches.build(input_shape)
        self.first = self.add_weight((self.hidden_size,), self.initializer, name="first")
        self.positions = self.add_weight((self.count, self.hidden_size), self.initializer, name="positions")

    def call(self, images: jax.Array) -> jax.Array:
        patches = self.patches(images)
        patches = patches.reshape(patches.shape[0], -1, self.hidden_size)
        first = jnp.broadcast_to(self.first[...], (patches.shape[0], 1, self.hidden_size))
        return jnp.concatenate([first, patches], axis=1) + self.positions[...]


class Encoder(LoadableModel):
    """An encoder of text or images, of the form that its config describes.

    For text it is called on tokens (batch, length), or on a dict with some of `tokens`, `types`, `positions` and
    `segments`, each (batch, length). Tokens attend to all tokens of their own segment; segment 0
    may be padding. For images it is called on (batch, height, width, channels).

    The result is the hidden vectors (batch, length, hidden_size). With a pooled vector (batch, pooled_size), it is a
    dict of `hidden` and `pooled`.

    Args:
        config: the options.
        scan, remat, initializer: see `Decoder`.
        **kwargs: see `Model`.

    Raises:
        ModelError: `config` is not an `EncoderConfig`.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        scan: bool = False,
        remat: bool = False,
        initializer: Identifier = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_kind("config", config, EncoderConfig, "an `EncoderConfig`")
        self.config = config
        self.scan, self.remat = check_flag("scan", scan), check_flag("remat", remat)
        dtype, embedding = self.dtype_policy, PatchEmbedding if config.image_size else TokenEmbedding
        members: dict[str, Any] = {"embedding": embedding(config, initializer, dtype=dtype)}
        members["layers"] = blocks(config, False, scan, remat, initializer, dtype)
        if config.final_norm:
            members["norm"] = norm(config, dtype=dtype)
        if config.pooled_size is not None:
            options: dict[str, Any] = {"kernel_initializer": kernel_initializer(config, initializer), "dtype": dtype}
            members["pooler"] = Dense(config.pooled_size, config.pooled_activation, **options)
        self._members = members  # `layers` is a property of models

    def call(self, inputs: PyTree) -> PyTree:
        """Return the hidden vectors, or a dict of these and of the pooled vector."""
        embedding, segments, positions = self._members["embedding"], None, None
        if self.config.image_size:
            hidden = embedding(inputs)
        else:
            types = inputs.get("types") if isinstance(inputs, Mapping) else None
            tokens, positions, segments = parts_of(inputs, ("tokens", "types", "positions", "segments"))
            hidden = embedding(tokens, jnp.arange(tokens.shape[1])[None] if positions is None else positions, types)
        span = Span(jnp.arange(hidden.shape[1]), segments, positions)
        hidden, *_ = run_blocks(self._members["layers"], self.config, hidden, (span, span))
        if self.config.final_norm:
            hidden = self._members["norm"](hidden)
        if self.config.pooled_size is None:
            return hidden
        return {"hidden": hidden, "pooled": self._members["pooler"](hidden[:, 0])}

    def build(self, input_shape: PyTree = None) -> None:
        """Create the weights, for text of any length, or for images."""
        size = self.config.image_size
        shape = (None, None) if size is None else (None, size, size, self.config.channels)
        super().build(shape if input_shape is None else input_shape)

    build.creates_weights = True  # type: ignore[attr-defined]
