"""Accumulation of gradients over batches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.types import ArrayLike, PyTree


def add_batch(grads: PyTree, weight: ArrayLike, sums: PyTree, weights: ArrayLike) -> tuple[PyTree, jax.Array]:
    """Add a batch to the sums of weighted gradients and of weights."""
    return jax.tree.map(lambda total, g: total + (g * weight).astype(g.dtype), sums, grads), jnp.add(weights, weight)


def mean_gradient(sums: PyTree, weights: jax.Array) -> PyTree:
    """Return the weighted mean of gradients, or zeros for a weight of 0."""
    whole = jnp.where(weights == 0, 1, weights)
    return jax.tree.map(lambda total: (total / whole).astype(total.dtype), sums)


def squared_norm_of(grads: PyTree) -> Any:
    """Return the squared global norm of gradients, a float32 scalar."""
    squares = [jnp.sum(jnp.square(jnp.abs(g).astype(jnp.float32))) for g in jax.tree.leaves(grads)]
    return sum(squares, jnp.zeros((), jnp.float32))
