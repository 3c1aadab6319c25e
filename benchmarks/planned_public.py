"""Public models of Flax NNX that are planned: those of google-tunix, which `make parallax` installs."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from tunix.models.llama3 import model as llama
from tunix.models.qwen3 import model as qwen

from benchmarks.planned_models import PUBLIC, PUBLIC_ROWS, TOKENS, Planned, ints

LENGTH = 1024
OWN_AXES = {"tp": "model", "fsdp": None}
"""The tensor parallelism that the authors of the models have written into them."""


class Trained(nnx.Module):
    """A decoder of tunix as it is trained: on all positions, with a causal mask and without a cache."""

    def __init__(self, kind: Any, config: Any, *, rngs: nnx.Rngs) -> None:
        self.decoder = kind(config, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits of tokens (batch, sequence)."""
        batch, length = tokens.shape
        positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (batch, length, length))
        return self.decoder(tokens, positions, None, mask)[0]


def public_models() -> dict[str, Planned]:
    """The models by name, with one block, as the other models of the table."""
    configs = (llama.Llama3, llama.ModelConfig.llama3p2_1b()), (qwen.Qwen3, qwen.ModelConfig.qwen3_0p6b())
    kinds = [(kind, dataclasses.replace(config, num_layers=1)) for kind, config in configs]
    return {
        name: Planned(
            functools.partial(Trained, *kind), (ints(LENGTH), ints(LENGTH)), TOKENS, PUBLIC_ROWS, {}, OWN_AXES
        )
        for name, kind in zip(PUBLIC, kinds, strict=True)
    }
