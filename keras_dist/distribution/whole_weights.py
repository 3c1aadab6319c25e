"""`whole_weights`: large weights that a strategy should shard over axes that divide none of their dims."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from keras_dist._unstable import jax_internals
from keras_dist.distribution.lint import Problem
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.render import render_bytes
from keras_dist.distribution.variables import VariableSpec

LARGE_NBYTES = 2**20
"""Weights of this size should be sharded; the optimizer's slots are as large again, twice with Adam."""

_LISTED = 5


def whole_weights(
    specs: Sequence[VariableSpec], axes: tuple[str, ...], mesh: DeviceMesh, of: str = ""
) -> list[Problem]:
    """Return the problem of weights, or `of` their optimizer slots, that are whole along axes of a mesh."""
    size = mesh.axis_size(axes)
    if not specs or size == 1:
        return []
    over = repr(axes[0] if len(axes) == 1 else axes)
    largest = max(specs, key=nbytes_of)
    listed = ", ".join(f"{spec.path!r} of shape {spec.shape}" for spec in specs[:_LISTED])
    rest = f" and {len(specs) - _LISTED} more" if len(specs) > _LISTED else ""
    given = f"{listed}{rest}; mesh {mesh.describe()}"
    held = render_bytes(sum(map(nbytes_of, specs)))
    summary = f"{of}{len(specs)} large weight(s), {held} on each device, are not sharded over {over}"
    fix = _fix(largest.path, largest.shape, size, over)
    return [Problem("whole", largest.path, summary, given, f"a dim divisible by {over} = {size}", fix)]


def nbytes_of(variable: object) -> int:
    """Return the bytes of a variable; of float32 without a dtype."""
    shape: Sequence[int] = getattr(variable, "shape", ())
    return int(np.prod(shape, dtype=np.int64)) * jax_internals.itemsize(getattr(variable, "dtype", "float32"))


def _fix(path: str, shape: tuple[int, ...], size: int, over: str) -> str:
    """Return meshes of all devices: a part of them, or two axes for two dims if that divides; and a padded shape."""
    part = max(math.gcd(dim, size) for dim in shape)
    ways = [f"a mesh in which {over} has {part} devices and another axis {size // part}"] if part > 1 else []
    splits = [(count, size // count) for count in range(2, size) if size % count == 0]
    pairs = itertools.product(splits, itertools.permutations(range(len(shape)), 2))
    for (first, second), (dim, other) in pairs:
        if shape[dim] % first == shape[other] % second == 0:
            ways.append(f"two axes of {first} and {second} devices, and a rule that shards dim {dim} over the first")
            break
    dim = max(range(len(shape)), key=shape.__getitem__)
    padded = (*shape[:dim], -(-shape[dim] // size) * size, *shape[dim + 1 :])
    return f"{', or '.join(ways)}, or make {path!r} {padded}"
