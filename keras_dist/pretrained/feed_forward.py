"""The feed-forward network of a block: one for all tokens, or experts of which each token has a few."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist import activations
from keras_dist._support.dim_names import EXPERTS, OUTPUTS
from keras_dist.initializers import RandomNormal
from keras_dist.layers import Dense, Layer, MixtureOfExperts
from keras_dist.layers.base.weight_arguments import Identifier
from keras_dist.pretrained.config import ExpertsConfig, FeedForwardConfig, NetworkConfig

_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": activations.silu,
    "gelu": functools.partial(activations.gelu, approximate=False),
    "gelu_new": functools.partial(activations.gelu, approximate=True),
    "gelu_pytorch_tanh": functools.partial(activations.gelu, approximate=True),
    "relu": activations.relu,
}


def kernel_initializer(config: NetworkConfig, initializer: Identifier) -> Identifier:
    """Return the initializer of kernels and embeddings; by default a normal distribution."""
    return RandomNormal(stddev=config.initializer_range) if initializer is None else initializer


def gated(options: FeedForwardConfig, gate: jax.Array, up: jax.Array) -> jax.Array:
    """Return the hidden units times their gate, `activation(gate) * up`, or see `swiglu_limit`."""
    limit = options.swiglu_limit
    if limit is None:
        return _ACTIVATIONS[options.activation](gate) * up
    gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
    return gate * jax.nn.sigmoid(options.swiglu_alpha * gate) * (up + 1)


class FeedForward(Layer):
    """`down(activation(gate(x)) * up(x))`, or `down(activation(up(x)))` without a gate."""

    def __init__(self, config: NetworkConfig, initializer: Identifier = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        options: FeedForwardConfig = config.feed_forward
        shared: dict[str, Any] = {
            "use_bias": options.use_bias,
            "kernel_initializer": kernel_initializer(config, initializer),
            "dtype": self.dtype_policy,
        }
        self.options = options
        if options.gated:
            self.gate = Dense(options.size, **shared)
        self.up = Dense(options.size, **shared)
        self.down = Dense(config.hidden_size, **shared)

    def build(self, input_shape: tuple[int, ...]) -> None:
        for layer in (self.gate, self.up) if self.options.gated else (self.up,):
            layer.build(input_shape)
        self.down.build((*input_shape[:-1], self.options.size))

    def call(self, hidden: jax.Array) -> jax.Array:
        if self.options.gated:
            return self.down(gated(self.options, self.gate(hidden), self.up(hidden)))
        return self.down(_ACTIVATIONS[self.options.activation](self.up(hidden)))


class Experts(MixtureOfExperts):
    """The `top_k` experts of each token, with tallies from which a decoder computes one loss for all layers.

    Without dropping, the outputs of a token do not depend on the other tokens of a call, so that a cache changes no
    number.
    """

    def __init__(self, config: NetworkConfig, initializer: Identifier = None, **kwargs: Any) -> None:
        options: Any = config.experts
        networks, kernel = config.feed_forward, kernel_initializer(config, initializer)
        super().__init__(
            options.num_experts,
            options.units or networks.size,
            options.top_k,
            options.capacity_factor,
            activation=_ACTIVATIONS[networks.activation],
            gated=networks.gated,
            normalize=options.normalize,
            load_balancing=0.0,
            router_initializer=kernel,
            kernel_initializer=kernel,
            **kwargs,
        )
        self.options, self.use_bias = networks, options.use_bias

    def build(self, input_shape: tuple[int, ...]) -> None:
        self._build_networks(input_shape[-1])
        if not self.use_bias:
            return
        self.router_bias = self.add_weight((self.num_experts,), "zeros", autocast=False, name="router_bias")
        for name in ("gate", "up", "down") if self.gated else ("up", "down"):
            shape = (self.num_experts, input_shape[-1] if name == "down" else self.units)
            names = {"name": f"experts_{name}_bias", "dim_names": (EXPERTS, OUTPUTS)}
            setattr(self, names["name"], self.add_weight(shape, "zeros", **names))

    def call(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, hidden: jax.Array, mask: jax.Array | None = None, training: bool | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Return the outputs, and tallies (batch, 2, num_experts): choices, and sums of probabilities."""
        outputs, routes, kept = self._routed(hidden, mask, self.capacity_factor if training else None)
        probabilities = jax.nn.softmax(routes.logits) * kept[..., None]
        return outputs, jnp.stack([routes.chosen.sum(1).astype("float32"), probabilities.sum(1)], axis=1)

    def _logits(self, x: jax.Array) -> jax.Array:
        logits = super()._logits(x)
        return logits + self.router_bias[...].astype(logits.dtype) if self.use_bias else logits

    def _product(self, name: str, x: jax.Array, equation: str) -> jax.Array:
        outputs = super()._product(name, x, equation)
        return outputs + getattr(self, f"{name}_bias")[...][:, None] if self.use_bias else outputs

    def _activated(self, first: jax.Array, up: jax.Array | None = None) -> jax.Array:
        return super()._activated(first, up) if up is None else gated(self.options, first, up)


def balancing_loss(tallies: jax.Array, options: ExpertsConfig) -> jax.Array:
    """Return `load_balancing * num_experts * sum(choices * probabilities)`, of means over all tokens and layers.

    Source: `transformers.models.mixtral.modeling_mixtral.load_balancing_loss_func`.
    """
    choices, probabilities = tallies.sum(0)
    tokens = jnp.maximum(choices.sum() / options.top_k, 1)
    return options.load_balancing * options.num_experts * (choices * probabilities).sum() / tokens**2
