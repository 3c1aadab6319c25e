"""`ModelLayoutHint`: layout of a variable by an argument of its layer or sharding metadata of Flax."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.mesh import DeviceMesh, axis_tuple

AxisNames = Mapping[str, str | Sequence[str] | None]
"""Mesh axes for a model's names of dims (`"embed"`): one, several, or None for unsharded."""


@dataclasses.dataclass(frozen=True)
class ModelLayoutHint:
    """Layout that the model itself gives a variable; used if no rule matches."""

    reason: str  # in the layout table, such as "kernel's own ('embed', 'mlp')"
    entries: tuple[Any, ...] = ()  # sharding metadata: names that need not be axes of a mesh
    axis_names: AxisNames = dataclasses.field(default_factory=dict[str, Any])  # for these names, from the model
    layout: TensorLayout | None = None  # argument of a layer, such as `kernel_layout`

    def unknown_names(self, mesh: DeviceMesh, axis_names: AxisNames) -> list[str]:
        """Return the names in sharding metadata that are not axes of the mesh."""
        if self.layout is not None:
            return []
        names = {**self.axis_names, **axis_names}
        used = [name for entry in self.entries for name in _names_in(entry)]
        return [name for name in used if not set(axis_tuple(names.get(name, name))) <= set(mesh.axis_names)]

    def resolve(self, mesh: DeviceMesh, axis_names: AxisNames | None = None) -> TensorLayout:
        """Return the layout; it has no mesh if it uses axes that `mesh` does not have."""
        layout = self.layout
        if layout is None:
            names = {**self.axis_names, **(axis_names or {})}
            layout = TensorLayout([_mapped(entry, names) for entry in self.entries])
        if {name for axis in layout.axes for name in axis_tuple(axis)} <= set(mesh.axis_names):
            layout = layout.on(mesh)
        return layout.because(self.reason)


def _names_in(entry: Any) -> tuple[Any, ...]:
    if isinstance(entry, tuple | list):
        return tuple(cast("Sequence[Any]", entry))
    return (entry,) if isinstance(entry, str) else ()


def _mapped(entry: Any, axis_names: Mapping[str, Any]) -> Any:
    """Replace names by axes in an entry of a layout; return an invalid entry unchanged."""
    if not isinstance(entry, str | tuple | list):
        return entry
    return tuple(axis for name in _names_in(entry) for axis in axis_tuple(axis_names.get(name, name)))
