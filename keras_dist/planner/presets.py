"""Common layouts, as functions that return a distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_dist._support.raw_errors import explain_functions
from keras_dist._support.types import PyTree
from keras_dist.distribution.data_parallel import DataParallel
from keras_dist.distribution.fully_sharded import FullySharded
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.mesh import DeviceMesh, axis_tuple, check_mesh
from keras_dist.distribution.model_parallel import ModelParallel
from keras_dist.distribution.strategy import Distribution, resolve_axes
from keras_dist.errors import DistributionError, LayoutError
from keras_dist.planner.dim_classes import DimClasses, dim_classes
from keras_dist.planner.logical_rules import BATCH, axis_names_of, layout_map_of, warn_of_unsharded
from keras_dist.planner.search import TENSOR_PARALLEL, tensor_classes

__all__ = [
    "data_parallel",
    "experts",
    "fully_sharded",
    "hybrid",
    "sequence_parallel",
    "spatial",
    "tensor_parallel",
    "zero1",
]

_OTHER = ("data", "batch")
"""Names for an axis that the error suggests."""


def data_parallel(mesh: DeviceMesh) -> Distribution:
    """Replicate the model, and shard the batch over all devices.

    Args:
        mesh: the mesh; the batch is sharded over all axes.

    Raises:
        DistributionError: `mesh` is not a mesh.

    Example:
        >>> import keras_dist as kd
        >>> kd.presets.data_parallel(kd.DeviceMesh("data=8")).num_model_replicas
        8
    """
    mesh = check_mesh(mesh, DistributionError)
    names = tuple(mesh.axis_names)
    return DataParallel(mesh) if len(names) == 1 else ModelParallel(LayoutMap(mesh), names)


def zero1(mesh: DeviceMesh) -> DataParallel:
    """Replicate the model, and shard the batch and the slots of the optimizer over all devices (ZeRO-1).

    Args:
        mesh: a mesh of one axis.

    Raises:
        DistributionError: `mesh` is not a mesh, or has several axes.

    Example:
        >>> import keras_dist as kd
        >>> kd.presets.zero1(kd.DeviceMesh("data=8")).shard_optimizer
        True

    Source: Rajbhandari et al. 2020, arXiv:1910.02054.
    """
    mesh = check_mesh(mesh, DistributionError)
    if len(mesh.shape) > 1:
        fix = f'DeviceMesh("data={mesh.size}"), or presets.fully_sharded(mesh)'
        raise DistributionError("zero1 takes a mesh of one axis", given=f"mesh {mesh.describe()}", fix=fix)
    return DataParallel(mesh, shard_optimizer=True)


def fully_sharded(mesh: DeviceMesh) -> FullySharded:
    """Shard weights, slots and the batch over all devices (FSDP, ZeRO-3).

    Args:
        mesh: the mesh.

    Raises:
        DistributionError: `mesh` is not a mesh.

    Example:
        >>> import keras_dist as kd
        >>> kd.presets.fully_sharded(kd.DeviceMesh("data=8")).axis
        'data'

    Source: Rajbhandari et al. 2020, arXiv:1910.02054.
    """
    mesh = check_mesh(mesh, DistributionError)
    return FullySharded(mesh, tuple(mesh.axis_names))


def experts(mesh: DeviceMesh, axis: str | None = None, *, fully_sharded: bool = False) -> Distribution:
    """Shard the experts of `layers.MixtureOfExperts` over one axis, and the batch over all axes.

    Other weights are replicated. Tokens are exchanged over `axis` by all-to-all.

    Args:
        mesh: the mesh.
        axis: the axis for experts. By default the last.
        fully_sharded: whether to shard all weights and slots over all axes (FSDP). The experts of a device are gathered
            over the other axes alone.

    Raises:
        DistributionError: `mesh` is not a mesh, or has no such axis.

    Example:
        >>> import keras_dist as kd
        >>> found = kd.presets.experts(kd.DeviceMesh("data=2,expert=4"))
        >>> found.batch_dim_name, found.axis_names
        (('data', 'expert'), {'experts': 'expert'})

    Source: Lepikhin et al. 2020, arXiv:2006.16668.
    """
    mesh = check_mesh(mesh, DistributionError)
    axis = mesh.axis_names[-1] if axis is None else str(resolve_axes("axis", axis, mesh))
    everything, names = tuple(mesh.axis_names), {"experts": axis}
    if fully_sharded:
        return FullySharded(mesh, everything, axis_names=names)
    return ModelParallel(LayoutMap(mesh), everything, axis_names=names)


def tensor_parallel(
    model_or_factory: Any,
    batch: PyTree,
    mesh: DeviceMesh,
    axis: str | None = None,
    *,
    optimizer: Any = None,
    loss: Any = None,
) -> ModelParallel:
    """Shard heads, hidden dims of MLPs, vocabularies and channels over one axis, the batch over others (Megatron-LM).

    `kd.planner.dim_classes` finds the dims in the train step, so names of layers and weights do not matter.

    Args:
        model_or_factory: as for `kd.plan`.
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`: arrays or `jax.ShapeDtypeStruct`s, or pytrees of them.
        mesh: the mesh.
        axis: the axis for these dims. By default the last.
        optimizer: replaces the optimizer of `compile`.
        loss: replaces the loss of `compile`.

    Raises:
        DistributionError: the mesh has no such axis, or no other axis for the batch.
        LayoutError: the model has no such dims.

    Warns:
        LayoutWarning: the axis does not divide a dim, such as a few heads of keys and values; the dim stays unsharded.

    Example:
        >>> import keras_dist as kd, numpy as np
        >>> mlp = lambda: kd.Sequential(
        ...     [kd.Input((16,)), kd.layers.Dense(64, "relu", name="up"), kd.layers.Dense(16, name="down")]
        ... )
        >>> mesh = kd.DeviceMesh("data=2,model=4")
        >>> parallel = kd.presets.tensor_parallel(mlp, np.zeros((8, 16), "float32"), mesh)
        >>> parallel.layout_map["down/kernel"].axes
        ('model', None)

    Source: Shoeybi et al. 2019, arXiv:1909.08053.
    """
    classes = dim_classes(model_or_factory, batch, optimizer, loss)
    mesh = check_mesh(mesh, DistributionError)
    axis, others = _axis_and_others(mesh, axis)
    rules, layout_map = _applied(classes, mesh, _tensor_rules(classes, mesh, axis), others)
    return ModelParallel(layout_map, others, axis_names=axis_names_of(rules, classes))


def hybrid(
    model_or_factory: Any,
    batch: PyTree,
    mesh: DeviceMesh,
    fsdp: str | Sequence[str] | None = None,
    tensor: str | None = None,
    *,
    optimizer: Any = None,
    loss: Any = None,
) -> FullySharded:
    """Combine `tensor_parallel` over one axis with weights and slots that are fully sharded over the others.

    Args:
        model_or_factory: as for `kd.plan`.
        batch: as for `tensor_parallel`.
        mesh: the mesh.
        fsdp: the axis, or axes, for the batch and for full sharding. By default all but `tensor`.
        tensor: the axis for heads, MLPs, vocabularies and channels. By default the last.
        optimizer: replaces the optimizer of `compile`.
        loss: replaces the loss of `compile`.

    Raises:
        DistributionError: the mesh has no such axes, or a single axis; or `tensor` is one of `fsdp`.
        LayoutError: the model has no such dims.

    Warns:
        LayoutWarning: as for `tensor_parallel`.

    Example:
        >>> import keras_dist as kd, numpy as np
        >>> mlp = lambda: kd.Sequential(
        ...     [kd.Input((16,)), kd.layers.Dense(64, "relu", name="up"), kd.layers.Dense(16, name="down")]
        ... )
        >>> mesh = kd.DeviceMesh("data=2,model=4")
        >>> both = kd.presets.hybrid(mlp, np.zeros((8, 16), "float32"), mesh, fsdp="data", tensor="model")
        >>> both.axis, both.layout_map["up/kernel"].axes
        ('data', (None, 'model'))
    """
    mesh = check_mesh(mesh, DistributionError)
    tensor, others = _axis_and_others(mesh, tensor)
    if fsdp is not None:
        others = resolve_axes("fsdp", fsdp, mesh)
    if tensor in axis_tuple(others):
        rest = next(name for name in mesh.axis_names if name != tensor)
        summary = f"hybrid: `fsdp` and `tensor` must be different axes, not both {tensor!r}"
        given = f"fsdp={fsdp!r}, tensor={tensor!r} on mesh {mesh.describe()}"
        raise DistributionError(summary, given=given, fix=f"fsdp={rest!r}, tensor={tensor!r}")
    classes = dim_classes(model_or_factory, batch, optimizer, loss)
    rules, layout_map = _applied(classes, mesh, _tensor_rules(classes, mesh, tensor), others)
    return FullySharded(mesh, others, layout_map, others, axis_names=axis_names_of(rules, classes))


def sequence_parallel(
    model_or_factory: Any,
    batch: PyTree,
    mesh: DeviceMesh,
    axis: str | None = None,
    *,
    optimizer: Any = None,
    loss: Any = None,
) -> ModelParallel:
    """Shard the positions of sequences over one axis and the batch over the others, and replicate weights.

    Attention passes keys and values around the axis; see `ops.dot_product_attention`.

    Args:
        model_or_factory: as for `kd.plan`.
        batch: as for `tensor_parallel`.
        mesh: the mesh.
        axis: the axis for positions. By default the last.
        optimizer: replaces the optimizer of `compile`.
        loss: replaces the loss of `compile`.

    Raises:
        DistributionError: the mesh has no such axis, or a single axis.
        LayoutError: the inputs have no positions.

    Warns:
        LayoutWarning: the axis does not divide the number of positions; they stay unsharded.

    Example:
        >>> import keras_dist as kd, numpy as np
        >>> layers = kd.layers.Embedding(32, 8), kd.layers.Dense(16, "relu"), kd.layers.Dense(32)
        >>> model = lambda: kd.Sequential([kd.Input((12,), dtype="int32"), *layers])
        >>> mesh = kd.DeviceMesh("data=2,model=4")
        >>> kd.presets.sequence_parallel(model, np.zeros((8, 12), "int32"), mesh).layout_map["input/x"].axes
        ('data', 'model')

    Source: Li et al. 2021, arXiv:2105.13120.
    """
    found = _split(dim_classes(model_or_factory, batch, optimizer, loss), mesh, axis, "sequence")
    is_whole = all(rule.axes[1:] == (None,) * (len(rule.axes) - 1) for rule in found.layout_map.values())
    axis = None if is_whole else _axis_and_others(found.device_mesh, axis)[0]
    return ModelParallel(found.layout_map, found.batch_dim_name, axis_names=found.axis_names, sequence_axis=axis)


def spatial(
    model_or_factory: Any,
    batch: PyTree,
    mesh: DeviceMesh,
    axis: str | None = None,
    *,
    optimizer: Any = None,
    loss: Any = None,
) -> ModelParallel:
    """Shard the first spatial dim of images over one axis and the batch over the others, and replicate weights.

    Args:
        model_or_factory: as for `kd.plan`.
        batch: as for `tensor_parallel`.
        mesh: the mesh.
        axis: the axis for rows of pixels. By default the last.
        optimizer: replaces the optimizer of `compile`.
        loss: replaces the loss of `compile`.

    Raises:
        DistributionError: the mesh has no such axis, or a single axis.
        LayoutError: the inputs have no dim of a convolution's window.

    Warns:
        LayoutWarning: the axis does not divide the dim; the dim stays unsharded.

    Example:
        >>> import keras_dist as kd, numpy as np
        >>> model = lambda: kd.Sequential([kd.Input((16, 16, 3)), kd.layers.Conv2D(8, 3, padding="same")])
        >>> mesh = kd.DeviceMesh("data=2,model=4")
        >>> kd.presets.spatial(model, np.zeros((8, 16, 16, 3), "float32"), mesh).layout_map["input/x"].axes
        ('data', 'model', None, None)
    """
    return _split(dim_classes(model_or_factory, batch, optimizer, loss), mesh, axis, "spatial")


def _split(classes: DimClasses, mesh: DeviceMesh, axis: str | None, name: str) -> ModelParallel:
    """Return the distribution that shards one class of dims of the inputs over an axis."""
    mesh = check_mesh(mesh, DistributionError)
    axis, others = _axis_and_others(mesh, axis)
    rules, layout_map = _applied(classes, mesh, {classes[name].name: axis}, others)
    return ModelParallel(layout_map, others, axis_names=axis_names_of(rules, classes))


def _axis_and_others(mesh: DeviceMesh, axis: str | None) -> tuple[str, Axis]:
    """Return the axis for the model, by default the last, and the other axes, for the batch."""
    names = list(mesh.axis_names)
    axis = names[-1] if axis is None else str(resolve_axes("axis", axis, mesh))
    others = tuple(name for name in names if name != axis)
    if not others:
        given = f"mesh {mesh.describe()}, with {axis!r} for the model"
        fix = f'DeviceMesh("{_OTHER[axis == _OTHER[0]]}=1,{axis}={mesh.size}") for one replica of the model'
        raise DistributionError("the mesh has no axis for the batch", given=given, fix=fix)
    return axis, others[0] if len(others) == 1 else others


def _tensor_rules(classes: DimClasses, mesh: DeviceMesh, axis: str) -> dict[str, Axis]:
    """Return the classes to shard over an axis that divides them; of two classes in one weight the first."""
    chosen = tensor_classes(classes, mesh.axis_size(axis))
    if not chosen:
        given = f"classes of dims {[each.name for each in classes]}"
        fix = "presets.fully_sharded(mesh), or LogicalRules for one of its classes"
        raise LayoutError(f"tensor parallelism needs dims of class {', '.join(TENSOR_PARALLEL)}", given=given, fix=fix)
    return dict.fromkeys(chosen, axis)


def _applied(
    classes: DimClasses, mesh: DeviceMesh, rules: dict[str, Axis], batch_axes: Axis
) -> tuple[dict[str, Axis], LayoutMap]:
    """Return the rules with the rule of the batch, and the rules by path; warn of dims that stay unsharded."""
    rules = {BATCH: batch_axes, **rules}
    layouts, left = classes.layouts(rules, mesh.axis_sizes)
    warn_of_unsharded(left)
    return rules, layout_map_of(layouts, classes, mesh)


explain_functions(vars())
