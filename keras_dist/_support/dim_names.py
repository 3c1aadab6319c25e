"""Names of the dims of a weight, as its layer gives them: `add_weight(..., dim_names=("inputs", "outputs"))`.

Each slice of the leading dims is the weight of one layer or expert: initializers, regularizers, constraints and
optimizers treat slices as separate weights. LoRA splits outputs from inputs. Other names, and `"experts"` and
`"layers"`, are for layout rules and for the planner.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

DimNames = tuple[str | None, ...]

LAYERS, EXPERTS = "layers", "experts"
LEADING = (LAYERS, EXPERTS)
INPUTS, OUTPUTS = "inputs", "outputs"
CLASSES = "classes"
"""The outputs of a head: a matrix for LoRA, which optimizers of matrices leave to Adam."""
BLOCKS = "blocks"
"""A dim of inputs and of outputs: the weight is a matrix for each index, such as `"bhi,hio->bho"` has."""


def leading(names: Sequence[str | None]) -> int:
    """Return the number of leading dims, over layers and experts."""
    return sum(1 for _ in itertools.takewhile(LEADING.__contains__, names))


def of_slice(names: DimNames, ndim: int) -> DimNames:
    """Return the names of the last `ndim` dims."""
    return names[len(names) - ndim :]


def of_einsum(inputs: str, weight: str, outputs: str) -> DimNames:
    """Return the names of the dims of the weight in `einsum("inputs,weight->outputs", ...)`."""
    return tuple((OUTPUTS if one not in inputs else BLOCKS if one in outputs else INPUTS) for one in weight)


def for_rules(names: DimNames) -> DimNames:
    """Return the names that `axis_names` and the planner use; empty if there are none."""
    kept = tuple(None if name in (INPUTS, OUTPUTS, CLASSES, BLOCKS) else name for name in names)
    return kept if any(kept) else ()


def over_slices(function: Callable[..., Any], leading: int) -> Callable[..., Any]:
    """Return a function that applies `function` to each slice of its arguments along so many leading dims."""
    for _ in range(leading):
        function = jax.vmap(function)
    return function


def leading_by_path(names: Mapping[str, DimNames]) -> dict[str, int]:
    """Return the number of leading dims of the weights that have some, by path."""
    return {path: count for path, of in names.items() if (count := leading(of))}
