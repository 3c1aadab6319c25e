"""Accumulated gradients: sums over batches, and their mean, which is the gradient of one large batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.types import ArrayLike, PyTree


def add_batch(grads: PyTree, weight: ArrayLike, sums: PyTree, weights: ArrayLike) -> tuple[PyTree, jax.Array]:
    """Return the sums of weighted gradients and of weights, with one more batch."""
    return jax.tree.map(lambda total, g: total + (g * weight).astype(g.dtype), sums, grads), jnp.add(weights, weight)


def mean_gradient(sums: PyTree, weights: jax.Array) -> PyTree:
    """Return the weighted mean of gradients; zeros where no batch has a weight."""
    whole = jnp.where(weights == 0, 1, weights)
    return jax.tree.map(lambda total: (total / whole).astype(total.dtype), sums)


def squared_norm_of(grads: PyTree) -> Any:
    """Return the squared global norm of gradients, a float32 scalar."""
    squares = [jnp.sum(jnp.square(jnp.abs(g).astype(jnp.float32))) for g in jax.tree.leaves(grads)]
    return sum(squares, jnp.zeros((), jnp.float32))
