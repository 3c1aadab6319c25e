"""Checkpoints of variables and arrays with layouts, in the format of `keras_dist.checkpoint`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from flax import nnx

from keras_dist._support.arguments import argument_error, check_path
from keras_dist._support.array_operators import Operators
from keras_dist.checkpoint import Snapshot, Stored
from keras_dist.distribution import DeviceMesh, LayoutPlan, TensorLayout
from keras_dist.distribution.mesh import check_mesh
from keras_dist.distribution.plan import make_row
from keras_dist.dtensor.layout import array_of, mesh_of
from keras_dist.dtensor.tensors import fetch_layout, shown
from keras_dist.dtensor.variable import Module
from keras_dist.errors import CheckpointError, LayoutError, MeshError
from keras_dist.files.buckets import folder_path
from keras_dist.optimizers import Optimizer

_SHOWN = 5  # number of wrong variables that an error lists; its `problems` has all


class DTensorCheckpoint:
    """Saves the variables of objects, and restores them in their layouts at that time.

    A checkpoint is a folder, written as a whole, with a checksum of each file. In a job of several processes all call
    `save` and `restore` with a folder that all can access; each writes and reads the shards of its devices.

    Args:
        mesh: the mesh of the variables.
        root: an object whose variables are saved under the name `root`.
        objects: further objects by name: a `DVariable`, a `dtensor.Module` or another `nnx.Module`, a model, an
            optimizer, a metric, or a dict, list or tuple of these. Build an optimizer that is saved beside its model
            first: `optimizer.build(model.trainable_variables)`.

    Raises:
        MeshError: `mesh` is not a mesh.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp
        >>> from keras_dist import dtensor
        >>> mesh = dtensor.create_mesh([("batch", 8)])
        >>> w = dtensor.DVariable(jnp.arange(8.0), layout=dtensor.Layout(["batch"], mesh))
        >>> path = dtensor.DTensorCheckpoint(mesh, w=w).save(tempfile.mkdtemp() + "/1")
        >>> whole = dtensor.DVariable(jnp.zeros(8), layout=dtensor.Layout.replicated(mesh, 1))
        >>> dtensor.DTensorCheckpoint(mesh, w=whole).restore(path)
        >>> float(whole[5]), whole.layout.sharding_specs
        (5.0, ['unsharded'])

    Differs from DTensor: the path gets no number. `restore` returns None, and raises unless the variables are those
    that were saved; saved objects that are not given are ignored.
    """

    def __init__(self, mesh: DeviceMesh, root: Any = None, **objects: Any) -> None:
        self._mesh = check_mesh(mesh, MeshError)
        self._objects = objects if root is None else {"root": root, **objects}

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the values to a folder, replace an earlier checkpoint there, and return the path.

        Args:
            path: the folder, which may be in a bucket (`gs://`).

        Raises:
            CheckpointError: the folder cannot hold a checkpoint, or an object has no variables.
            LayoutError: a variable is on another mesh.
            OSError: the folder cannot be written.
        """
        return _write(self._mesh, path, self._variables())

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Read the values from a folder into the variables. Each variable keeps its layout.

        Args:
            path: the folder.

        Raises:
            CheckpointError: the checkpoint is damaged, or has other variables. Nothing is changed then.
            LayoutError: a variable is on another mesh.
            OSError: the folder cannot be read.
        """
        variables = self._variables()
        for name, value in _read(self._mesh, path, variables, tuple(self._objects)).items():
            variable = variables[name]
            variable.assign(value) if isinstance(variable, Operators) else variable.set_value(value)

    def _variables(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in self._objects.items():
            own = dict(_variables_of(value, name))
            if not own:
                expected = "a variable, a module, a model, an optimizer or a metric that has variables already"
                raise argument_error(name, value, expected, error=CheckpointError)
            found |= own
        return found


def name_based_save(
    mesh: DeviceMesh, checkpoint_prefix: str | os.PathLike[str], name_tensor_dict: Mapping[str, Any]
) -> None:
    """Write arrays to a folder, by name. See `DTensorCheckpoint.save`.

    Args:
        mesh: the mesh of the arrays.
        checkpoint_prefix: the folder.
        name_tensor_dict: arrays and variables by name.
    """
    _write(check_mesh(mesh, MeshError), checkpoint_prefix, name_tensor_dict)


def name_based_restore(
    mesh: DeviceMesh, checkpoint_prefix: str | os.PathLike[str], name_tensor_dict: Mapping[str, Any]
) -> dict[str, jax.Array]:
    """Read arrays that `name_based_save` or `DTensorCheckpoint` has written, onto any layouts.

    Args:
        mesh: the mesh of the result.
        checkpoint_prefix: the folder.
        name_tensor_dict: for each name an array or a variable of the shape, dtype and layout of the result; or a
            `jax.ShapeDtypeStruct` with a sharding, which takes no memory.

    Raises:
        CheckpointError: an array was not saved, or was saved with another shape or dtype.
        LayoutError: a value has no layout, or is on another mesh.
        OSError: the folder cannot be read.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp
        >>> from keras_dist import dtensor
        >>> mesh = dtensor.create_mesh([("batch", 8)])
        >>> w = dtensor.copy_to_mesh(jnp.arange(8.0), dtensor.Layout(["batch"], mesh))
        >>> folder = tempfile.mkdtemp() + "/1"
        >>> dtensor.name_based_save(mesh, folder, {"w": w})
        >>> whole = dtensor.relayout(w, dtensor.Layout.replicated(mesh, 1))
        >>> dtensor.name_based_restore(mesh, folder, {"w": whole})["w"].tolist()[-1]
        7.0
    """
    for tensor in name_tensor_dict.values():
        if not isinstance(tensor, jax.ShapeDtypeStruct) or tensor.sharding is None:
            fetch_layout(tensor)  # raises without a layout
    return _read(check_mesh(mesh, MeshError), checkpoint_prefix, name_tensor_dict)


def _variables_of(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Operators | nnx.Variable):
        yield name, value
    elif isinstance(value, Mapping | list | tuple):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _variables_of(item, f"{name}/{key}")
    elif isinstance(value, nnx.Module) and (isinstance(value, Module) or not hasattr(value, "variables")):
        for path, node in nnx.iter_graph(value):
            if isinstance(node, nnx.Variable):
                yield "/".join([name, *map(str, path)]), node
    elif isinstance(value, Optimizer) and not value.built:
        return  # its step counter alone is not a state
    elif isinstance(listed := getattr(value, "variables", None), list):  # of a model, an optimizer or a metric
        paths = [variable.path for variable in listed]
        for index, (variable, path) in enumerate(zip(listed, paths, strict=True)):
            yield f"{name}/{path}" if paths.count(path) == 1 else f"{name}/{path}/{index}", variable


def _folder(path: str | os.PathLike[str]) -> Any:
    return folder_path(check_path("path", path, "checkpoints/1", CheckpointError))


def _write(mesh: DeviceMesh, path: str | os.PathLike[str], tensors: Mapping[str, Any]) -> str:
    folder, arrays = _folder(path), {name: array_of(tensor) for name, tensor in tensors.items()}
    rows = tuple(
        make_row(name, array.shape, array.dtype, "parameter", _layout_on(mesh, array, name), None)
        for name, array in arrays.items()
    )
    Snapshot(0, arrays, LayoutPlan(mesh, rows, jax.tree.structure(list(rows)))).begin(folder)()
    return os.fspath(path)


def _read(
    mesh: DeviceMesh, path: str | os.PathLike[str], tensors: Mapping[str, Any], whole: tuple[str, ...] = ()
) -> dict[str, jax.Array]:
    """Read arrays in the shapes, dtypes and layouts of `tensors`; the objects `whole` must have no further arrays."""
    likes = {name: array_of(tensor) for name, tensor in tensors.items()}
    for name, like in likes.items():
        _layout_on(mesh, like, name)
    stored = Stored.of_job(_folder(path))
    saved = {
        name: f"shape {tuple(recorded['shape'])}, {recorded['dtype']}"
        for name, recorded in stored.record["arrays"].items()
    }
    asked = {name: f"shape {like.shape}, {like.dtype}" for name, like in likes.items()}
    problems = [
        f"{name!r}: asked for {kind}, saved {saved.get(name, 'under no such name')}"
        for name, kind in asked.items()
        if saved.get(name) != kind
    ]
    prefixes = tuple(f"{each}/" for each in whole)
    problems += [
        f"{name!r}: saved, and not asked for" for name in saved if name not in asked and name.startswith(prefixes)
    ]
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        given = "; ".join(problems[:_SHOWN]) + more
        summary = f"{str(stored.folder)!r} does not hold these variables"
        fix = "create the objects with the names and shapes of the saved ones; build optimizers first"
        raise CheckpointError(summary, given=given, fix=fix, problems=tuple(problems))
    structs = {
        name: jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=like.sharding if _has_mesh(like) else None)
        for name, like in likes.items()
    }
    # arrays without a mesh are read to the host, and put on their device here
    return {name: jax.device_put(value, likes[name].sharding) for name, value in stored.arrays(structs).items()}


def _layout_on(mesh: DeviceMesh, array: Any, name: str) -> TensorLayout:
    """Return the layout of an array on the mesh; an array of a single device is saved as replicated."""
    if not _has_mesh(array):
        return TensorLayout.replicated(len(array.shape), mesh)
    sharding = array.sharding
    if mesh_of(sharding.mesh) != mesh:
        given = f"{shown(mesh_of(sharding.mesh))}, not {shown(mesh)}"
        fix = "give the mesh of the variables, or a checkpoint for each mesh"
        raise LayoutError(f"{name!r} must be on the mesh of the checkpoint", given=given, fix=fix)
    return TensorLayout([*sharding.spec, *[None] * (len(array.shape) - len(sharding.spec))], mesh)


def _has_mesh(array: Any) -> bool:
    return isinstance(array.sharding, jax.sharding.NamedSharding)
