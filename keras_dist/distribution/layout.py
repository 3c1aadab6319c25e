"""`TensorLayout`: the mesh axis over which each dim of a tensor is sharded."""

from __future__ import annotations

# pyright: reportUnknownArgumentType=false
# users hand in anything
from collections.abc import Mapping, Sequence, Set
from typing import Any, cast

import jax

from keras_dist._support.arguments import argument_error, is_keras_object
from keras_dist.distribution.mesh import DeviceMesh, axis_tuple, check_mesh
from keras_dist.errors import LayoutError, did_you_mean, shorten

Axis = str | tuple[str, ...] | None  # entry of a layout: None for unsharded, a mesh axis, or several


class TensorLayout:
    """The mesh axis over which each dim of a tensor is sharded. Compared by value.

    Args:
        axes: an entry for each dim: None (unsharded), the name of a mesh axis, or a tuple of names.
        device_mesh: the mesh; can be set once, also later.

    Raises:
        LayoutError: an axis does not exist in the mesh, or is used for two dims.

    Example:
        >>> import keras_dist as kd
        >>> mesh = kd.DeviceMesh((2, 4), ("data", "model"))
        >>> kd.TensorLayout((None, "model"), mesh).backend_layout.shard_shape((16, 8))
        (16, 2)

    Differs from Keras: a dim can be sharded over several axes; comparison by value.

    Source: `keras.distribution.TensorLayout`, `jax.sharding.NamedSharding`.
    """

    __slots__ = ("_axes", "_device_mesh", "reason")

    def __init__(self, axes: Sequence[Axis | list[str]], device_mesh: DeviceMesh | None = None) -> None:
        self._axes = _normal_axes(axes)
        self._device_mesh = None if device_mesh is None else check_mesh(device_mesh, LayoutError)
        self.reason: str | None = None
        self._check()

    @classmethod
    def replicated(cls, rank: int, device_mesh: DeviceMesh | None = None) -> TensorLayout:
        """Return the layout of a replicated tensor of `rank` dims."""
        return cls((None,) * rank, device_mesh)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """For each dim a mesh axis, a tuple of mesh axes, or None."""
        return self._axes

    @property
    def device_mesh(self) -> DeviceMesh | None:
        """The mesh, or None if it is not set. It can be set once."""
        return self._device_mesh

    @device_mesh.setter
    def device_mesh(self, device_mesh: DeviceMesh) -> None:
        if self._device_mesh is not None:
            given = f"{device_mesh} for layout {self._axes}, whose mesh is {self._device_mesh}"
            fix = "make a new TensorLayout for the other mesh"
            raise LayoutError("Cannot override device mesh value", given=given, fix=fix)
        self._device_mesh = check_mesh(device_mesh, LayoutError)
        try:
            self._check()
        except LayoutError:
            self._device_mesh = None
            raise

    @property
    def backend_layout(self) -> jax.sharding.NamedSharding:
        """The `jax.sharding.NamedSharding`.

        Raises:
            LayoutError: no mesh is set.
            DeviceError: a device of the mesh does not exist.
        """
        if self._device_mesh is None:
            summary = "Cannot create sharding when device mesh is not set for TensorLayout."
            given = f"layout {self._axes} without a mesh"
            raise LayoutError(summary, given=given, fix="pass `device_mesh=`, or insert the layout into a LayoutMap")
        return jax.sharding.NamedSharding(self._device_mesh.backend_mesh, jax.sharding.PartitionSpec(*self._axes))

    def on(self, device_mesh: DeviceMesh) -> TensorLayout:
        """Return the same layout, on `device_mesh` if it has no mesh."""
        if self._device_mesh is not None:
            return self
        copy = TensorLayout(self._axes, device_mesh)
        copy.reason = self.reason
        return copy

    def because(self, reason: str) -> TensorLayout:
        """Return the same layout with its reason, the rule that is shown in the layout table."""
        copy = TensorLayout(self._axes, self._device_mesh)
        copy.reason = reason
        return copy

    def shard_largest_dim(self, shape: Sequence[int], axes: str | tuple[str, ...]) -> TensorLayout | None:
        """Shard the largest divisible unsharded dim over the unused `axes`; None if none exists."""
        mesh = self._device_mesh
        if mesh is None or len(shape) != len(self._axes) or not set(axis_tuple(axes)) <= set(mesh.axis_names):
            return None
        used = {name for axis in self._axes for name in axis_tuple(axis)}
        free = tuple(name for name in axis_tuple(axes) if name not in used)
        if not free:
            return None
        shards = mesh.axis_size(free)
        dims = [d for d, axis in enumerate(self._axes) if axis is None and shape[d] and shape[d] % shards == 0]
        if not dims:
            return None
        chosen = max(dims, key=lambda d: (shape[d], -d))
        return TensorLayout([free if d == chosen else axis for d, axis in enumerate(self._axes)], mesh)

    def without(self, axes: Sequence[str], but: int | None = None) -> TensorLayout:
        """Return this layout with dims over any of these axes unsharded, except for one dim."""
        kept = [
            axis if dim == but else tuple(name for name in axis_tuple(axis) if name not in axes)
            for dim, axis in enumerate(self._axes)
        ]
        return TensorLayout(kept, self._device_mesh)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorLayout):
            return NotImplemented
        return self._axes == other._axes and self._device_mesh == other._device_mesh

    def __hash__(self) -> int:
        return hash(self._axes)  # the mesh may be set later, the axes never change

    def __repr__(self) -> str:
        return f"<{type(self).__name__} axes={self.axes}, device_mesh={self.device_mesh}>"

    def _check(self) -> None:
        names = [name for axis in self._axes for name in axis_tuple(axis)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            summary = f"Invalid layout: mesh axis {', '.join(map(repr, twice))} is used for more than one dim"
            given = f"axes={self._axes}"
            raise LayoutError(summary, given=given, fix="keep it on one dim and write None for the other")
        if self._device_mesh is None:
            return
        valid = list(self._device_mesh.axis_names)
        unknown = [name for name in names if name not in valid]
        if unknown:
            raise LayoutError(
                "Invalid axis names for Layout: "
                + ", ".join(f"{name!r}{did_you_mean(name, valid)}" for name in unknown),
                given=f"axes={self._axes}, mesh {self._device_mesh.describe()}",
                fix=f"the value should be a TensorLayout, tuple or list of {valid}; None leaves a dim unsharded",
            )


def from_keras(layout: Any) -> Any:
    """Convert a `TensorLayout` of Keras; return anything else unchanged."""
    return TensorLayout(layout.axes, layout.device_mesh) if is_keras_object(layout, "TensorLayout") else layout


def layout_on(axes: Sequence[Axis], device_mesh: DeviceMesh) -> TensorLayout:
    """Return a layout on a mesh, in the layout class of the mesh."""
    return (device_mesh.layout_class or TensorLayout)(axes, device_mesh)


def _normal_axes(axes: Any) -> tuple[Axis, ...]:
    if isinstance(axes, str | Set | Mapping) or not hasattr(axes, "__iter__"):
        fix = f"({axes!r},) for a tensor of one dim" if isinstance(axes, str) else '(None, "model") for two dims'
        raise argument_error("axes", axes, "a sequence with an entry for each dim", fix=fix, error=LayoutError)
    return tuple(_normal_axis(axis, axes) for axis in axes)


def _normal_axis(axis: Any, axes: Any) -> Axis:
    if axis is None:
        return None
    if isinstance(axis, str) and axis:
        return str(axis)
    entries = cast("Sequence[Any]", axis) if isinstance(axis, tuple | list) else (None,)
    if all(isinstance(name, str) and name for name in entries):
        names = tuple(map(str, entries))
        return names if len(names) > 1 else (names[0] if names else None)
    summary = f"an entry of a layout must be None, an axis of the mesh, or a tuple of axes, not {shorten(axis)}"
    raise LayoutError(summary, given=f"axes={shorten(axes)}", fix='for example (None, "model")')
