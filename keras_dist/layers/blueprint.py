"""A layer made anew from its description, so that its weights can be created inside a trace."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from keras_dist import _jax, _paths
from keras_dist.distribution.variables import leaf_parts
from keras_dist.layers.record import Recorded


def fresh_copy(module: Any) -> tuple[Any, dict[_paths.Parts, Any]]:
    """A copy of a module, to be changed in the trace that is running, and the arrays that the module has already.

    In the copy these are zeros: their values need not go through the trace. Attributes keep their order, and layers
    know in which call of symbolic tensors they were built first.
    """
    graphdef, state = nnx.split(module)
    known = dict(zip(leaf_parts(state), jax.tree.leaves(state), strict=True))
    with _jax.without_eager_sharding():
        copy = nnx.merge(graphdef, jax.tree.map(_placeholder, state), copy=True)
    _jax.restore_order(copy, _jax.attribute_order(module))
    _hand_over_calls(module, copy)
    return copy, known


def _hand_over_calls(module: Any, copy: Any) -> None:
    """Tell the layers of a copy how those of the module were called first."""
    copies = dict(nnx.iter_graph(copy))
    for path, node in nnx.iter_graph(module):
        if isinstance(node, Recorded) and node._outside.nodes and path in copies:
            copies[path]._outside.first_call = node._outside.nodes[0]


def _placeholder(array: Any) -> Any:
    return array if _jax.is_key_dtype(array.dtype) else jnp.zeros(array.shape, array.dtype)
