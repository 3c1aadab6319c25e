"""`project`: logits of a vocabulary, whose loss need not store them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from keras_dist.losses.vocabulary import Projection
from keras_dist.variables import call_context
from keras_dist.variables.variable import Variable


def project(
    inputs: jax.Array,
    weight: Variable,
    *,
    kernel: jax.Array | None = None,
    vocabulary_dim: int = 1,
    soft_cap: float | None = None,
) -> jax.Array:
    """Return logits `inputs @ kernel`, (..., vocabulary), or `soft_cap * tanh(inputs @ kernel / soft_cap)`.

    If the result is the output of a model, `losses.CausalLM` computes the logits of a large vocabulary in chunks
    instead of storing them.

    Args:
        inputs: (..., features).
        weight: the weight that the kernel is computed from. Its layout is the layout of the kernel.
        kernel: (features, vocabulary), or (vocabulary, features) with `vocabulary_dim=0`; by default `weight[...]`.
        vocabulary_dim: the dim of the vocabulary, 0 or 1.
        soft_cap: limit of the logits; None for none.
    """
    kernel = weight[...] if kernel is None else kernel
    logits = jnp.matmul(inputs, kernel if vocabulary_dim else kernel.T)
    logits = logits if soft_cap is None else soft_cap * jnp.tanh(logits / soft_cap)
    context = call_context.current()
    if context is not None:
        inputs, kernel = (array.astype(logits.dtype) for array in (inputs, kernel))
        context.note_projection(logits, Projection(inputs, kernel, vocabulary_dim, soft_cap), weight.path)
    return logits
