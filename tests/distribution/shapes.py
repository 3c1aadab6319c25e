"""Trees of shapes to plan, and objects that look like variables."""

from types import SimpleNamespace
from typing import Any

import jax

import keras_dist as kd


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    """A float32 array of `shape`."""
    return jax.ShapeDtypeStruct(shape, "float32")


def variable(path: str, *shape: int, layout: kd.TensorLayout | None = None) -> Any:
    """What Keras hands to a distribution: a path, a shape and perhaps a layout of its own."""
    return SimpleNamespace(path=path, shape=shape, _layout=layout)


def model_parallel(mesh: kd.DeviceMesh, rules: dict[str, Any], **options: Any) -> kd.ModelParallel:
    """A `ModelParallel` with `rules` on `mesh`."""
    layout_map = kd.LayoutMap(mesh)
    layout_map.update(rules)
    return kd.ModelParallel(layout_map, **options)


def axes_of(plan: kd.LayoutPlan) -> dict[str, tuple]:
    """The axes of each row by path."""
    return {row.path: row.axes for row in plan.rows}
