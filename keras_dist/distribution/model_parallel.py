"""`ModelParallel`: variables sharded by rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.mesh import DeviceMesh, check_mesh
from keras_dist.distribution.model_layout_hints import AxisNames
from keras_dist.distribution.rule_based import RuleBased
from keras_dist.distribution.strategy import BatchDimName, register_strategy
from keras_dist.errors import DistributionError, with_type

if TYPE_CHECKING:
    from keras_dist.config import ModelParallelConfig


def check_layout_map(layout_map: Any) -> tuple[LayoutMap, DeviceMesh]:
    """Return `layout_map` and its mesh."""
    if layout_map is None:
        fix = "pass LayoutMap(mesh); an empty one replicates everything"
        raise DistributionError("You must specify a layout_map argument.", given="layout_map=None", fix=fix)
    layout_map = LayoutMap.of(layout_map)
    if not isinstance(layout_map, LayoutMap):
        given = f"layout_map={with_type(layout_map)}"
        fix = 'rules = LayoutMap(mesh); rules["d1/kernel"] = (None, "model"); ModelParallel(rules)'
        raise DistributionError("Argument `layout_map` must be a `LayoutMap` instance", given=given, fix=fix)
    if layout_map.device_mesh is None:
        raise DistributionError("the layout map must have a mesh", given="LayoutMap(None)", fix="LayoutMap(mesh)")
    return layout_map, layout_map.device_mesh


@register_strategy("model_parallel")
class ModelParallel(RuleBased):
    """Variables are sharded by rules, and the batch over one or several axes of the same mesh.

    Where no rule matches, the model's own layout is used: `kernel_layout=` of a layer, or the sharding metadata of
    Flax's variables, whose names are axes of the mesh or in `axis_names`. Other variables are replicated, which the
    plan reports.

    Args:
        layout_map: rules from variable paths to layouts; has the mesh. A `LayoutMap` of Keras is converted.
        batch_dim_name: the mesh axis, or axes, of the batch; by default the first; `()` for a replicated batch.
        auto_shard_dataset: whether all processes pass the same data; if not, each passes its own part, in batches.
        strict: raise for rules without effect, instead of warning.
        axis_names: mesh axes for the model's names of dims, `{"embed": "data", "layers": None}`: an axis, a tuple of
            axes, or None for unsharded.
        sequence_axis: the mesh axis of positions: of the second dim of data, where it divides this dim. Attention then
            passes keys and values around this axis; see `ops.dot_product_attention`.
        device_mesh: not needed; if given, it must be the mesh of the layout map.

    Raises:
        DistributionError: `layout_map` is missing, is not a `LayoutMap` or has no mesh; `batch_dim_name` or
            `axis_names` has an unknown axis; or the processes cannot be divided among the model replicas.

    Example:
        >>> import keras_dist as kd
        >>> rules = kd.LayoutMap(kd.DeviceMesh((2, 4), ("data", "model")))
        >>> rules["d1/kernel"] = (None, "model")
        >>> kd.ModelParallel(rules, batch_dim_name="data").num_model_replicas
        2

    Differs from Keras: arguments may be positional, and unknown ones are errors; `strict`; `axis_names`; several batch
    axes.
    """

    def __init__(
        self,
        layout_map: LayoutMap | None = None,
        batch_dim_name: BatchDimName | None = None,
        auto_shard_dataset: bool = True,
        *,
        strict: bool = False,
        axis_names: AxisNames | None = None,
        sequence_axis: str | None = None,
        device_mesh: DeviceMesh | None = None,
    ) -> None:
        rules, mesh = check_layout_map(layout_map)
        if device_mesh is not None and check_mesh(device_mesh, DistributionError) != mesh:
            summary = "ModelParallel: `device_mesh` must be the mesh of the layout map"
            given = f"device_mesh={device_mesh}, layout_map on {mesh}"
            raise DistributionError(summary, given=given, fix="leave `device_mesh` out: the layout map has one")
        batch = mesh.axis_names[0] if batch_dim_name is None else None if batch_dim_name == () else batch_dim_name
        super().__init__(mesh, rules, batch, auto_shard_dataset, strict, axis_names, sequence_axis)

    @classmethod
    def from_config(cls, mesh: DeviceMesh, config: ModelParallelConfig) -> Self:
        """Return the distribution of a config file with `strategy = "model_parallel"`."""
        rules = LayoutMap(mesh)
        for rule, axes in config.layout_axes().items():
            rules[rule] = axes
        return cls(rules, config.batch_axis, strict=config.strict, sequence_axis=config.sequence_axis)

    def get_variable_layout(self, variable: Any) -> TensorLayout:
        """Return the layout by the rules, else the model's own layout, else replicated.

        Raises:
            LayoutError: several rules match, or the model's own layout is invalid.
        """
        layout = self._decided(variable)
        return TensorLayout.replicated(len(variable.shape), self.device_mesh) if layout is None else layout
