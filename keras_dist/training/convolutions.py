"""Convolutions that XLA compiles well on CPUs, also in the body of a loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax


def batch_first(
    lhs: jax.Array, rhs: jax.Array, *, dimension_numbers: lax.ConvDimensionNumbers, **params: Any
) -> jax.Array:
    """`lax.conv_general_dilated` with the dims of its operands where XLA's fast convolutions on CPUs want them.

    XLA moves them there by itself, but not in the body of a loop: there the gradient of a kernel takes twice as long
    or more, and is another in its last bits.

    Source: XLA, `xla/service/cpu/conv_canonicalization.cc`, which looks at the entry computation alone.
    """
    dims, ndim = dimension_numbers, lhs.ndim
    # (batch, *space, channels) by (*space, channels in, channels out)
    data, kernel = (0, ndim - 1, *range(1, ndim - 1)), (ndim - 1, ndim - 2, *range(ndim - 2))
    moved = lax.ConvDimensionNumbers(data, kernel, data)
    result = lax.conv_general_dilated_p.bind(
        lax.transpose(lhs, _from_to(dims.lhs_spec, moved.lhs_spec)),
        lax.transpose(rhs, _from_to(dims.rhs_spec, moved.rhs_spec)),
        dimension_numbers=moved,
        **params,
    )
    return lax.transpose(result, _from_to(moved.out_spec, dims.out_spec))


def _from_to(given: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """The permutation that brings each dim from where it is given to where it is wanted."""
    return tuple(dim for _, dim in sorted(zip(wanted, given, strict=True)))
