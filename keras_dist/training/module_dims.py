"""Names of the dims of weights in modules that are not layers, by their class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flax import nnx

from keras_dist._support import tree_paths
from keras_dist._support.dim_names import INPUTS, LAYERS, OUTPUTS, DimNames, of_einsum
from keras_dist.distribution.variables import VariableSpec
from keras_dist.layers import Layer


def dims_in(module: nnx.Module, specs: Sequence[VariableSpec], parts: Sequence[tree_paths.Parts]) -> Iterator[DimNames]:
    """Yield the names of the dims of each array of a module; no names if unknown."""
    modules = {tree_paths.visible(path): node for path, node in nnx.iter_graph(module)}
    for spec, names in zip(specs, parts, strict=True):
        is_known = spec.dim_names or spec.role != "parameter" or not names
        yield spec.dim_names if is_known else _dims_of(modules.get(names[:-1]), str(names[-1]), len(spec.shape))


def _dims_of(owner: Any, name: str, ndim: int) -> DimNames:
    names: DimNames
    if name == "kernel" and isinstance(owner, nnx.Einsum):
        inputs, _, rest = owner.einsum_str.replace(".", "").replace(" ", "").partition(",")
        letters, _, outputs = rest.partition("->")
        names = of_einsum(inputs, letters, outputs)
    elif name == "kernel" and isinstance(owner, nnx.LinearGeneral):
        names = (*[INPUTS] * len(owner.in_features), *[OUTPUTS] * len(owner.out_features))
    elif name == "kernel" and isinstance(owner, nnx.Conv):
        names = (*[INPUTS] * (len(owner.kernel_size) + 1), OUTPUTS)
    else:
        is_known = isinstance(owner, nnx.Linear | nnx.Embed) and name in ("kernel", "embedding")
        is_matrix = ndim == 2 and name not in ("bias", "scale") and not isinstance(owner, Layer)
        names = (INPUTS, OUTPUTS) if is_known or is_matrix else ()
    return (*[LAYERS] * (ndim - len(names)), *names) if names else ()
