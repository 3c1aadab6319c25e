"""Copies of layers, to be built in a trace."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from keras_dist._support import tree_paths
from keras_dist._unstable.flax_internals import attribute_order, restore_order, without_eager_sharding
from keras_dist._unstable.jax_internals import is_key_dtype
from keras_dist.distribution.variables import leaf_parts
from keras_dist.layers.runtime import HasRuntime


def fresh_copy(module: nnx.Module) -> tuple[nnx.Module, set[tree_paths.Parts]]:
    """Return a copy of a module, to be changed in the current trace, and what leads to the arrays that exist already.

    In the copy these are zeros: their values need not go through the trace. Attributes keep their order, and layers
    know in which call of symbolic tensors they were built first.
    """
    graphdef, state = nnx.split(module)
    known = set(leaf_parts(state))
    with without_eager_sharding():
        copy = nnx.merge(graphdef, jax.tree.map(_placeholder, state), copy=True)
    restore_order(copy, attribute_order(module))
    _hand_over_records(module, copy)
    return copy, known


def _hand_over_records(module: nnx.Module, copy: nnx.Module) -> None:
    """Tell the layers of a copy how those of the module were called first."""
    told = {
        path: node._runtime
        for path, node in nnx.iter_graph(module)
        if isinstance(node, HasRuntime) and node._runtime.nodes
    }
    copies = dict(nnx.iter_graph(copy)) if told else {}
    for path in told.keys() & copies.keys():
        copies[path]._runtime.first_call = told[path].nodes[0]


def _placeholder(array: Any) -> Any:
    return array if is_key_dtype(array.dtype) else jnp.zeros(array.shape, array.dtype)
