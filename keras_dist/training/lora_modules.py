"""Adapters of kernels in `flax.nnx` modules: factors below the attribute `lora` of the root, added in each call.

The modules of the user stay as they are. A kernel has the value with the update while the root is called, so that
`nnx.scan`, `nnx.vmap` and `nnx.remat` inside of it see the shapes that they know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, traverse_util

from keras_dist import initializers, random
from keras_dist._support import tree_paths
from keras_dist._support.dim_names import DimNames
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.layers.base.lora import Dims, Factors, factor_dims, product
from keras_dist.training.graph import in_nodes, positions_of
from keras_dist.training.quantized_modules import dequantized_kernels, scales_in

ROOT = "lora"  # the attribute of the root, and the first name in the paths of factors


class Factor(nnx.LoRAParam[Any]):
    """A factor of the update of a kernel."""


class KernelFactors(nnx.Module):
    """The factors `a` and `b` of the update of the kernel to which `parts` lead; `dims` as in `layers.base.lora`."""

    a: Factor
    b: Factor

    def __init__(self, parts: tree_paths.Parts, shape: Sequence[int], dims: Dims, factors: Factors) -> None:
        self.parts, self.dims, self.scale = parts, dims, factors.alpha / factors.rank
        given = (factors.first_initializer(dims), factors.b_initializer)
        for name, of, initializer in zip("ab", dims, given, strict=True):
            sizes = tuple(factors.rank if dim is None else shape[dim] for dim in of)
            value = initializers.get(initializer)(sizes, "float32", key=random.next_key())
            setattr(self, name, Factor(value, factor_of=(f"/{self.path}", of)))

    @property
    def path(self) -> str:
        """The path of the kernel."""
        return tree_paths.join(self.parts)

    def factor_paths(self) -> tuple[str, str]:
        """Return the paths of the factors."""
        return f"{ROOT}/{self.path}/a", f"{ROOT}/{self.path}/b"

    def added_to(self, kernel: jax.Array, plan: LayoutPlan | None) -> jax.Array:
        """Return the kernel plus the update, sharded as the kernel."""

        def placed(value: jax.Array) -> jax.Array:
            if plan is None:
                return value
            spec = jax.sharding.PartitionSpec(*plan.row(self.path).axes)
            return jax.lax.with_sharding_constraint(value, jax.sharding.NamedSharding(plan.mesh.backend_mesh, spec))

        update = self.scale * product(self.a[...], self.b[...], self.dims)
        return placed((placed(kernel) + placed(update)).astype(kernel.dtype))


def add_factors(root: Any, kernels: Mapping[tree_paths.Parts, tuple[DimNames, Factors]]) -> None:
    """Create the factors of kernels, given by what leads to them, with the names of their dims, below `ROOT`."""
    found: dict[tree_paths.Parts, KernelFactors] = {}
    forms = {one.parts: one.form for one in scales_in(root)}
    for (parts, (names, factors)), place in zip(kernels.items(), positions_of(root, list(kernels)), strict=True):
        shape = jnp.shape(place.array())
        shape = forms[parts].shape(shape) if parts in forms else shape
        found[parts] = KernelFactors(parts, shape, factor_dims(names), factors)
    setattr(root, ROOT, in_nodes(traverse_util.unflatten_dict({tuple(map(str, p)): one for p, one in found.items()})))


def factors_in(root: Any) -> list[KernelFactors]:
    """Return the factors of all kernels of a module."""
    found = vars(root).get(ROOT)
    nodes = nnx.iter_graph(found) if isinstance(found, nnx.Dict) else ()
    return [node for _, node in nodes if isinstance(node, KernelFactors)]


@contextlib.contextmanager
def adapted(root: Any, plan: LayoutPlan | None) -> Iterator[None]:
    """Let the kernels of a module be dequantized, and have the updates added, inside (traced)."""
    found = factors_in(root)
    kernels = [place.holder for place in positions_of(root, [one.parts for one in found])]
    dequantized = list(dequantized_kernels(root))
    before = [(kernel, kernel.get_raw_value()) for kernel in (*kernels, *(kernel for kernel, _ in dequantized))]
    try:
        for kernel, value in dequantized:
            kernel.set_raw_value(value)
        for one, kernel in zip(found, kernels, strict=True):
            kernel.set_raw_value(one.added_to(kernel.get_raw_value(), plan))
        yield
    finally:
        for kernel, value in before:
            kernel.set_raw_value(value)
