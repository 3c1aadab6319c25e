"""Gradients of the kernels of dense layers that lie in memory as the kernels do, also where devices sum them up."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax.sharding import AxisType


def like_kernel(
    lhs: jax.Array, rhs: jax.Array, *, dimension_numbers: Any, precision: Any, out_sharding: Any, **params: Any
) -> jax.Array:
    """`lax.dot_general`; where it sums over the leading dims of both operands, with these exchanged.

    The gradient of a kernel is such a sum, over the rows of the batch. JAX computes it as (units, features), and then
    transposes it. XLA computes what is transposed instead, unless the sum over the devices comes between the two: then
    the optimizer would read the gradient against the order of its memory, which takes three times as long on CPUs.
    """
    (over, rhs_over), batches = dimension_numbers
    sums_rows = sorted(over) == sorted(rhs_over) == [*range(len(over))] and not any(batches)
    is_auto = out_sharding is None or {*out_sharding.mesh.axis_types} == {AxisType.Auto}  # and says nothing then
    kept = rhs.ndim - len(over)
    if not (sums_rows and is_auto and kept and lhs.ndim > len(over)):
        return lax.dot_general_p.bind(
            lhs, rhs, dimension_numbers=dimension_numbers, precision=precision, out_sharding=out_sharding, **params
        )
    exchanged = lax.dot_general_p.bind(
        rhs,
        lhs,
        dimension_numbers=((rhs_over, over), batches),
        precision=precision[::-1] if isinstance(precision, tuple) else precision,
        out_sharding=None,
        **params,
    )
    return lax.transpose(exchanged, (*range(kept, exchanged.ndim), *range(kept)))
