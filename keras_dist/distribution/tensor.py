"""`distribute_tensor`: give an array a layout, eagerly or inside jit."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from keras_dist import _jax
from keras_dist._operators import native
from keras_dist.distribution import lint
from keras_dist.distribution.layout import TensorLayout
from keras_dist.errors import LayoutError, type_name


def distribute_tensor(tensor: Any, layout: Any) -> Any:
    """`tensor` with `layout`.

    Args:
        tensor: an array, or a traced value inside `jax.jit`.
        layout: a `TensorLayout` with a mesh, or anything JAX takes in its place (a `jax.sharding.Sharding`, a
            `jax.experimental.layout.Format`).

    Returns:
        Outside jit an array so placed (`tensor` itself when it is already); inside jit the constrained value.

    Raises:
        LayoutError: the layout has no mesh, another rank than the tensor, or does not divide it.

    Source: `keras.distribution.distribute_tensor`.
    """
    if isinstance(layout, TensorLayout):
        sharding, mesh = layout.backend_layout, layout.device_mesh
        if mesh is not None:
            lint.report(lint.check_layout("tensor", np.shape(tensor), layout, mesh), [], mesh, strict=False)
        layout = sharding
    elif layout is None or isinstance(layout, tuple | list) or hasattr(layout, "device_mesh"):
        raise LayoutError(
            "distribute_tensor: `layout` is not a layout",
            given=f"{layout!r} of type {type_name(layout)}",
            expected="a TensorLayout with a mesh, or a jax.sharding.Sharding",
            fix="TensorLayout(axes, mesh)",
        )
    if _jax.is_traced(tensor):
        return jax.lax.with_sharding_constraint(tensor, layout)
    if isinstance(tensor, jax.Array):
        if isinstance(layout, jax.sharding.Sharding):
            if tensor.sharding.is_equivalent_to(layout, ndim=tensor.ndim):
                return tensor
        elif getattr(tensor, "format", None) == layout:
            return tensor
    return jax.device_put(native(tensor), layout)
