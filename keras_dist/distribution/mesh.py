"""`DeviceMesh`: devices arranged on named axes."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, ClassVar, cast

import jax
import numpy as np

from keras_dist._support import html_tables

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from keras_dist._support.arguments import argument_error, check_exclusive, is_int, is_keras_object
from keras_dist._support.types import Device, PyTree
from keras_dist._unstable import jax_runtime
from keras_dist.config import parse_mesh_shape
from keras_dist.distribution import arrangement
from keras_dist.distribution import devices as devices_module
from keras_dist.distribution.abstract import meshes_are_abstract, planned_platform
from keras_dist.distribution.drawing import device_labels, devices_svg
from keras_dist.errors import DeviceError, KerasDistError, MeshError, shorten, unknown_name_error, with_type
from keras_dist.jobs import job

_PLATFORMS = {"gpu": "cuda"}

LIMIT_AXES = 32
"""Largest number of axes of a mesh: JAX and NumPy handle a mesh of n axes as arrays of 2n dims, of at most 64."""


class DeviceMesh:
    """Devices arranged on named axes. Immutable; compared and hashed by value.

    Args:
        shape: sizes of the axes, such as `(2, 4)`; or sizes by name, `{"data": 2, "model": 4}` or `"data=2,model=4"`.
            One size may be -1: it is inferred from the number of devices.
        axis_names: a name for each size; not needed if `shape` has names.
        devices: names such as `"cpu:0"` or `jax.Device`s, in row-major order of the mesh; by default all devices of
            the job, in an order that keeps inner axes inside a slice of directly connected TPUs or GPUs, or else inside
            a process, where they fit.
        dcn_shape: number of such slices or processes along each axis, in any of the forms of `shape`; 1 for axes that
            are not named, and one size may be -1. `shape` is then the mesh within a slice or process, the mesh has the
            product of both, and `devices` may have any order.

    Raises:
        MeshError: shape, names and devices do not fit together, or a name or device appears twice.

    Warns:
        LayoutWarning: an inner axis crosses processes (or slices) and could be kept inside one, without `dcn_shape`.

    Example:
        >>> import keras_dist as kd
        >>> kd.DeviceMesh((2, 4), ("data", "model"))
        <DeviceMesh shape=(2, 4), axis_names=('data', 'model')>
        >>> kd.DeviceMesh("data=-1,model=4") == kd.DeviceMesh({"data": 2, "model": 4})
        True

    Two hosts of four devices each, where only gradients cross the network between hosts:
    ``kd.DeviceMesh("data=1,model=4", dcn_shape="data=2")`` of shape (2, 4).

    Differs from Keras: sizes by name, -1, `dcn_shape`, comparison by value; duplicates are errors.

    Source: `keras.distribution.DeviceMesh`, `jax.sharding.Mesh`, `jax.experimental.mesh_utils`.
    """

    layout_class: ClassVar[Any] = None
    """Class of layouts of variables on such meshes; None for `TensorLayout`."""

    def __init__(
        self,
        shape: Sequence[int] | Mapping[str, int] | str,
        axis_names: Sequence[str] | None = None,
        devices: Sequence[str | Device] | np.ndarray | None = None,
        *,
        dcn_shape: Sequence[int] | Mapping[str, int] | str | None = None,
    ) -> None:
        sizes, names = _sizes_and_names(shape, axis_names)
        flat = _device_array(devices_module.list_devices() if devices is None else devices)
        _refuse_duplicates([devices_module.device_name(device) for device in flat], "device", "devices")
        spans: tuple[int, ...] | None = None
        if dcn_shape is not None:
            spans, placed = _hybrid(sizes, _spans(dcn_shape, names), flat)
        else:
            placed = flat.reshape(_resolve_sizes(sizes, names, flat.size, are_given=devices is not None))
            if devices is None:
                placed = _names(arrangement.by_default(_found(flat), placed.shape))
        self.__setstate__((names, placed, spans))
        if spans is None and jax_runtime.backend_started() and job.process_count() > 1:
            with contextlib.suppress(DeviceError):  # a device that does not exist is an error where the mesh is used
                arrangement.warn_of_crossing(self.backend_mesh.devices, names)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self._shape

    @property
    def axis_names(self) -> list[str] | tuple[str, ...]:
        """Names of the axes, in the type they were given in."""
        return list(self._axis_names) if isinstance(self._axis_names, list) else self._axis_names

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Size of each axis by name."""
        return dict(zip(self._axis_names, self._shape, strict=True))

    @property
    def dcn_shape(self) -> tuple[int, ...] | None:
        """Number of slices or processes along each axis, if given."""
        return self._dcn_shape

    @property
    def devices(self) -> np.ndarray:
        """The devices as given, or names of arranged devices, as an array of the mesh's shape."""
        return self._devices

    @property
    def device_names(self) -> tuple[str, ...]:
        """Names of the devices, in row-major order."""
        return self._key[2]

    @property
    def size(self) -> int:
        """Number of devices."""
        return int(self._devices.size)

    @property
    def platform(self) -> str:
        """Platform that JAX lowers programs for: `"cpu"`, `"tpu"`, or `"cuda"` for GPUs; in planning, the target's."""
        return planned_platform() or _PLATFORMS.get(self._device_type, self._device_type)

    @property
    def _device_type(self) -> str:
        return devices_module.device_name(self._devices.flat[0]).rpartition(":")[0]

    @property
    def is_multi_process(self) -> bool:
        """Whether the mesh has devices of other processes."""
        return not self.is_abstract and bool(self.backend_mesh.is_multi_process)

    @property
    def backend_mesh(self) -> jax.sharding.Mesh:
        """The `jax.sharding.Mesh`; in planning, a `jax.sharding.AbstractMesh`.

        Raises:
            DeviceError: a device does not exist.
        """
        return cast("jax.sharding.Mesh", self._abstract_mesh) if self.is_abstract else self._concrete_mesh

    @property
    def is_abstract(self) -> bool:
        """Whether a step is being planned, so that arrays on the mesh are shapes."""
        return meshes_are_abstract()

    @functools.cached_property
    def _abstract_mesh(self) -> jax.sharding.AbstractMesh:
        auto = (jax.sharding.AxisType.Auto,) * len(self._shape)
        return jax.sharding.AbstractMesh(self._shape, tuple(self._axis_names), axis_types=auto)

    @functools.cached_property
    def _concrete_mesh(self) -> jax.sharding.Mesh:
        found = np.array(_found(self._devices.flatten()), dtype=object)
        return jax.sharding.Mesh(found.reshape(self._shape), tuple(self._axis_names))

    def axis_size(self, axes: str | Iterable[str] | None) -> int:
        """Return the number of shards of a dim that is sharded over `axes`: a name, several names, or None (1)."""
        sizes = self.axis_sizes
        unknown = [name for name in axis_tuple(axes) if name not in sizes]
        if unknown:
            given = f"{axes!r} on mesh {self.describe()}"
            raise unknown_name_error("the mesh has no axis", unknown[0], sizes, given=given, error=MeshError)
        return math.prod(sizes[name] for name in axis_tuple(axes))

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, DeviceMesh) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def __getstate__(self) -> tuple[Any, ...]:
        # names of devices, since JAX's objects are valid in their process only
        return self._axis_names, _names(self._devices), self._dcn_shape

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._axis_names, self._devices, self._dcn_shape = state
        self._devices.flags.writeable = False
        self._shape = self._devices.shape
        self._key = (self._shape, tuple(self._axis_names), tuple(_names(self._devices).flatten().tolist()))

    def __repr__(self) -> str:
        spans = "" if self.dcn_shape is None else f", dcn_shape={self.dcn_shape}"
        return f"<{type(self).__name__} shape={self.shape}, axis_names={self.axis_names}{spans}>"

    def _repr_html_(self) -> str:
        label, name = device_labels(self.device_names)[0], self.device_names[0]
        heading = f"{type(self).__name__} {self.describe()} of {self.size} devices; device {label} is {name}"
        return html_tables.fragment(html_tables.paragraph(heading), devices_svg(self.axis_sizes, self.device_names))

    def describe(self) -> str:
        """Return the short form in tables and errors: `{data: 2, model: 4}`."""
        return "{" + ", ".join(f"{name}: {size}" for name, size in self.axis_sizes.items()) + "}"


def check_mesh(device_mesh: Any, error: type[KerasDistError]) -> DeviceMesh:
    """Return `device_mesh`, or convert a mesh of Keras; raise for anything else."""
    if isinstance(device_mesh, DeviceMesh):
        return device_mesh
    if is_keras_object(device_mesh, "DeviceMesh"):
        return DeviceMesh(device_mesh.shape, device_mesh.axis_names, device_mesh.devices)
    fix = 'for example DeviceMesh((2, 4), ("data", "model"))'
    raise argument_error("device_mesh", device_mesh, "a keras_dist.DeviceMesh", fix=fix, error=error)


def distinct_descriptions(*meshes: DeviceMesh) -> list[str]:
    """Return the short forms of different meshes; with their devices, if the short forms are equal."""
    forms = [mesh.describe() for mesh in meshes]
    if len(set(forms)) == len(forms):
        return forms
    return [f"{mesh.describe()} of {shorten(_names(mesh.devices).flatten().tolist())}" for mesh in meshes]


def axis_tuple(axes: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the mesh axes in an entry of a layout as a tuple."""
    if axes is None:
        return ()
    return (axes,) if isinstance(axes, str) else tuple(axes)


def _sizes_and_names(shape: Any, axis_names: Any) -> tuple[tuple[int, ...], list[str] | tuple[str, ...]]:
    if isinstance(shape, str):
        shape = parse_mesh_shape(shape)
    if isinstance(shape, Mapping):
        check_exclusive(MeshError, "drop `axis_names`: `shape` has names", shape=dict(shape), axis_names=axis_names)
        shape, axis_names = list(shape.values()), list(shape)
    given = f"shape={shorten(shape)}, axis_names={shorten(axis_names)}"
    example = 'for example DeviceMesh((2, 4), ("data", "model")) or DeviceMesh("data=2,model=4")'
    for argument, value in (("shape", shape), ("axis_names", axis_names)):
        if value is not None and (isinstance(value, Set) or not hasattr(value, "__len__")):
            raise MeshError(f"DeviceMesh: `{argument}` must be a sequence", given=given, fix=example)
    if shape is None or axis_names is None or not len(shape) or not len(axis_names):
        raise MeshError("Shape and axis_names cannot be empty", given=given, fix=example)
    if isinstance(axis_names, str):
        fix = f"axis_names=({axis_names!r},)"
        raise MeshError("DeviceMesh: `axis_names` must be a sequence of names", given=given, fix=fix)
    if len(shape) != len(axis_names):
        raise MeshError("Shape and axis_names should have same size", given=given, fix=example)
    for size in shape:
        if not is_int(size, -1) or size == 0:
            summary = f"DeviceMesh: sizes must be integers of at least 1, or one -1, not {shorten(size)}"
            raise MeshError(summary, given=given, fix="give each axis the number of devices along it")
    for name in axis_names:
        if not isinstance(name, str) or not name or not name.isprintable() or name != name.strip():
            summary = f"DeviceMesh: axis names must be printable strings without outer blanks, not {shorten(name)}"
            raise MeshError(summary, given=given, fix='for example "data" and "model"')
    _refuse_duplicates(axis_names, "axis name", "axis_names")
    if len(shape) > LIMIT_AXES:
        fix = "leave out axes of size 1, and merge others: a dim is sharded over one axis of their product"
        raise MeshError(f"DeviceMesh: a mesh must have at most {LIMIT_AXES} axes", given=given, fix=fix)
    plain = [str(name) for name in axis_names]
    names = plain if isinstance(axis_names, list) else tuple(plain)
    return tuple(int(size) for size in shape), names


def _device_array(devices: PyTree) -> np.ndarray:
    """Return the devices in their order, as a new flat array."""
    if isinstance(devices, str | Set | Mapping) or not hasattr(devices, "__iter__"):
        summary = "DeviceMesh: `devices` must be a sequence of jax devices, or of names such as 'cpu:0'"
        raise MeshError(summary, given=with_type(devices), fix="devices=list_devices()")
    flat = list(_flattened(devices))
    if not flat:
        fix = "devices=list_devices(), or leave it out for all"
        raise MeshError("DeviceMesh: `devices` must not be empty", given="no devices", fix=fix)
    array = np.empty(len(flat), dtype=object)
    array[:] = flat
    return array if not all(isinstance(device, str) for device in flat) else array.astype(str)


def _flattened(devices: Iterable[PyTree]) -> Iterator[str | Device]:
    for device in devices:
        if isinstance(device, list | tuple | np.ndarray):
            yield from _flattened(device)
        else:
            yield device


def _found(devices: Iterable[str | Device]) -> list[Device]:
    return [devices_module.find_device(device) for device in devices]


def _names(devices: np.ndarray) -> np.ndarray:
    return np.vectorize(devices_module.device_name)(devices)


def fitting_sizes(sizes: Sequence[int], device_count: int) -> tuple[int, ...]:
    """Return sizes for so many devices: another size of the first axis, if the other sizes divide the number."""
    others = sizes[1:]
    inner = math.prod(others)
    fits = inner > 0 and device_count % inner == 0
    return (device_count // inner, *others) if fits else (device_count, *[1] * len(others))


def _resolve_sizes(
    sizes: tuple[int, ...], names: Sequence[str], device_count: int, *, are_given: bool
) -> tuple[int, ...]:
    resolved = _inferred(sizes, device_count)
    if resolved is None:
        known, unknown = math.prod(size for size in sizes if size != -1), sizes.count(-1)
        product = " x ".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))
        product += "" if unknown else f" = {known}"
        some = f"or use some devices only: devices=list_devices()[:{known}]"
        more = "or make more fake CPU devices with kd.use_cpu_devices(n)"
        given = f"shape={sizes} ({product}) on {device_count} device(s)"
        fix = f"change a size, write -1 for one of them, {some if not unknown and known < device_count else more}"
        if are_given:
            fix = f"shape={fitting_sizes(sizes, device_count)} for the {device_count} devices that were given"
            fix += f"; or devices=[...] with {known} devices" * (not unknown)
        raise MeshError("Shape does not match the number of devices", given=given, fix=fix)
    return resolved


def _inferred(sizes: tuple[int, ...], count: int) -> tuple[int, ...] | None:
    """Return the sizes with -1 inferred; None if their product is not `count`."""
    known = math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) > 1 or count % known:
        return None
    resolved = tuple(count // known if size == -1 else size for size in sizes)
    return resolved if math.prod(resolved) == count else None


def _spans(dcn_shape: Any, axis_names: Sequence[str]) -> tuple[int, ...]:
    """Return the number of slices or processes along each axis, with -1 for an inferred number."""
    given = parse_mesh_shape(dcn_shape) if isinstance(dcn_shape, str) else dcn_shape
    wrong = [] if not isinstance(given, Mapping) else [name for name in given if name not in axis_names]
    sizes = [given.get(name, 1) for name in axis_names] if isinstance(given, Mapping) else given
    if wrong or not isinstance(sizes, list | tuple | np.ndarray) or len(sizes) != len(axis_names):
        summary = f"DeviceMesh: `dcn_shape` must have a size for each axis of {list(axis_names)}"
        fix = f'for example dcn_shape="{axis_names[0]}=2"'
        raise MeshError(summary, given=f"dcn_shape={shorten(dcn_shape)}", fix=fix)
    for size in sizes:
        if not is_int(size, -1) or size == 0:
            expected, example = "integers of at least 1, or one -1", f"{axis_names[0]}=2"
            raise argument_error("dcn_shape", dcn_shape, expected, example=example, error=MeshError)
    return tuple(int(size) for size in sizes)


def _hybrid(sizes: tuple[int, ...], spans: tuple[int, ...], devices: np.ndarray) -> tuple[tuple[int, ...], np.ndarray]:
    """Arrange devices as a mesh of slices or processes; return the number along each axis, and all names."""
    groups = arrangement.groups_of(_found(devices))
    counts = [len(group) for group in groups]
    inner, outer = _inferred(sizes, counts[0]), _inferred(spans, len(groups))
    if inner is None or outer is None or len(set(counts)) > 1:
        given = f"shape={sizes}, dcn_shape={spans} on {len(groups)} processes or slices of {counts} devices"
        fix = "change a size, or write -1 for one of `shape` and one of `dcn_shape`"
        raise MeshError("DeviceMesh: `shape` and `dcn_shape` do not match the devices", given=given, fix=fix)
    return outer, _names(arrangement.arranged(groups, inner, outer))


def _refuse_duplicates(items: Sequence[str], what: str, argument: str) -> None:
    twice = sorted({str(item) for item in items if list(items).count(item) > 1})
    if twice:
        summary = f"DeviceMesh: {what} {', '.join(map(repr, twice))} appears more than once"
        raise MeshError(summary, given=f"{argument}={list(items)}", fix="remove or rename the repeated ones")
