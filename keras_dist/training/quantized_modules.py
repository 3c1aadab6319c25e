"""Quantized kernels in `flax.nnx` modules: their scales are below the attribute `quantized` of the root.

A kernel has the stored values. It is dequantized while the root is called, and kept in floating point until the
backward pass: only layers compute it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, traverse_util

from keras_dist._support import tree_paths
from keras_dist.layers.base.quantized import Quantization
from keras_dist.training.graph import in_nodes, positions_of

ROOT = "quantized"  # the attribute of the root, and the first name in the paths of scales


class Scale(nnx.Variable[Any]):
    """The scales of a quantized kernel."""


class KernelScale(nnx.Module):
    """The scales of the kernel to which `parts` lead."""

    def __init__(self, parts: tree_paths.Parts, form: Quantization, shape: Sequence[int]) -> None:
        self.parts, self.form = parts, form
        follows = (f"/{tree_paths.join(parts)}", tuple(range(len(shape))))
        self.scale = Scale(jnp.zeros(form.scale_shape(shape), "float32"), factor_of=follows)


def add_scales(root: Any, forms: Mapping[tree_paths.Parts, Quantization]) -> None:
    """Replace kernels, given by what leads to them, by stored values of zero, and create scales below `ROOT`."""
    known = {one.parts: one for one in scales_in(root)}
    for (parts, form), place in zip(forms.items(), positions_of(root, list(forms)), strict=True):
        shape = jnp.shape(place.array())
        known[parts] = KernelScale(parts, form, shape)
        place.keep(jnp.zeros(form.stored_shape(shape), form.stored_dtype))
    _hold(root, known)


def remove_scales(root: Any, kernels: Collection[tree_paths.Parts]) -> None:
    """Replace the stored values of kernels, where they are quantized, by zeros in floating point."""
    known = {one.parts: one for one in scales_in(root)}
    removed = [known.pop(parts) for parts in kernels if parts in known]
    for one, place in zip(removed, positions_of(root, [one.parts for one in removed]), strict=True):
        place.keep(jnp.zeros(one.form.shape(jnp.shape(place.array())), one.form.dtype))
    if removed:
        _hold(root, known)


def _hold(root: Any, scales: Mapping[tree_paths.Parts, KernelScale]) -> None:
    tree = traverse_util.unflatten_dict({tuple(map(str, parts)): one for parts, one in scales.items()})
    setattr(root, ROOT, in_nodes(tree))


def scales_in(root: Any) -> list[KernelScale]:
    """Return the scales of all quantized kernels of a module."""
    found = vars(root).get(ROOT)
    nodes = nnx.iter_graph(found) if isinstance(found, nnx.Dict) else ()
    return [node for _, node in nodes if isinstance(node, KernelScale)]


def dequantized_kernels(root: Any) -> Iterator[tuple[Any, jax.Array]]:
    """Yield the quantized kernels of a module (traced), with their values in floating point."""
    found = scales_in(root)
    for one, place in zip(found, positions_of(root, [one.parts for one in found]), strict=True):
        value = one.form.dequantized(place.holder.get_raw_value(), one.scale[...])
        yield place.holder, value.astype(one.form.dtype)
