"""Every layer on dims of unknown size: those of its output are unknown that depend on them, and the others known."""

from typing import Any

import jax
import pytest

from keras_dist import layers
from tests.layers.test_every_layer import LAYERS, made

NEEDS_SIZES = {"Dot", "EinsumDense", "LayerNormalization", "PReLU", "Permute", "Reshape"}
"""Layers with weights or arguments for a dim that is no batch and no channels."""
CASES = {
    name: shapes if isinstance(shapes, list) else [shapes]
    for name, (_, shapes) in LAYERS.items()
    if name not in NEEDS_SIZES and ".preprocessing." not in getattr(layers, name).__module__
}


def outputs_for(name: str, more: int | None) -> list[tuple[int | None, ...]]:
    """Shapes of outputs for inputs whose dims between batch and channels are larger by so much, or unknown."""
    inputs = []
    for *sizes, channels in CASES[name]:
        dims = [None if more is None else size + more for size in [2, *sizes]]
        inputs.append(layers.Input(batch_shape=(*dims, channels)))
    several = isinstance(LAYERS[name][1], list)
    is_apart = name in ("MultiHeadAttention", "GroupedQueryAttention")
    outputs = made(name, LAYERS)(*(inputs if is_apart or not several else [inputs]))
    return [output.shape for output in jax.tree.leaves(outputs)]


@pytest.mark.parametrize("name", CASES)
def test_dims_of_unknown_size(name: str) -> None:
    small, large = outputs_for(name, 0), outputs_for(name, 12)
    expected: list[Any] = [
        tuple(size if size == other else None for size, other in zip(*shapes, strict=True))
        for shapes in zip(small, large, strict=True)
    ]
    assert outputs_for(name, None) == expected
