"""`RuleBased`: base class of the strategies with layout rules."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, cast

from keras_dist._support import dim_names
from keras_dist._support.arguments import argument_error, check_flag
from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.mesh import DeviceMesh, axis_tuple
from keras_dist.distribution.model_layout_hints import AxisNames
from keras_dist.distribution.strategy import BatchDimName, Distribution, resolve_axes
from keras_dist.distribution.variables import VariableSpec
from keras_dist.errors import DistributionError, shorten


class RuleBased(Distribution):
    """Abstract strategy whose layouts are given by a `LayoutMap`, or else by the model itself; see `ModelParallel`."""

    layout_map: LayoutMap

    def __init__(
        self,
        device_mesh: DeviceMesh,
        layout_map: LayoutMap,
        batch_dim_name: BatchDimName | None,
        auto_shard_dataset: bool,
        strict: bool,
        axis_names: AxisNames | None,
        sequence_axis: str | None = None,
    ) -> None:
        super().__init__(device_mesh, batch_dim_name, auto_shard_dataset)
        self.layout_map = layout_map  # pyright: ignore[reportIncompatibleVariableOverride]: here there is always one
        self.axis_names = _check_axis_names(axis_names, device_mesh)
        self.strict = check_flag("strict", strict, DistributionError)
        self.sequence_axis = self._check_sequence_axis(sequence_axis)
        replicas = self.num_model_replicas
        if self._is_multi_process and self.num_processes > replicas and self.num_processes % replicas != 0:
            raise DistributionError(
                "If `num_processes` is greater than `num_model_replicas`, `num_processes` must be divisible by "
                "`num_model_replicas`",
                given=f"num_processes={self.num_processes}, num_model_replicas={replicas}",
                fix=f"start the job with a multiple of {replicas} processes, or change the mesh",
            )

    @property
    def num_model_replicas(self) -> int:
        """Number of shards of the batch."""
        return self.device_mesh.axis_size(axis_tuple(self.batch_dim_name))

    def get_data_layout(self, data_shape: Sequence[int]) -> TensorLayout:
        """Shard the batch dim over `batch_dim_name`, and the second dim over `sequence_axis` where it divides it."""
        layout, axis = self._shard_batch(data_shape), self.sequence_axis
        if axis is None or len(data_shape) < 2 or data_shape[1] % self.device_mesh.axis_size(axis):
            return layout
        return TensorLayout((layout.axes[0], axis, *layout.axes[2:]), self.device_mesh)

    def get_tensor_layout(self, path: str) -> TensorLayout | None:
        """Return the layout of the activation or input called `path` by the rules.

        Raises:
            LayoutError: several rules match.
        """
        return self.layout_map[path]

    def snapshot(self) -> Self:
        """Return a copy that is not affected by rules added later."""
        same = copy.copy(self)
        same.layout_map = self.layout_map.copy()
        return same

    def _check_sequence_axis(self, axis: Any) -> str | None:
        if axis is None:
            return None
        names = self.device_mesh.axis_names
        if axis not in names or axis in axis_tuple(self.batch_dim_name):
            free = [name for name in names if name not in axis_tuple(self.batch_dim_name)]
            summary = "`sequence_axis` must be an axis of the mesh that is not an axis of the batch"
            given = f"sequence_axis={shorten(axis)}, mesh {self.device_mesh.describe()}, batch {self.batch_dim_name!r}"
            fix = f"for example sequence_axis={free[-1]!r}" if free else 'for example DeviceMesh("data=2,sequence=4")'
            raise DistributionError(summary, given=given, fix=fix)
        return str(axis)

    def _decided(self, variable: Any) -> TensorLayout | None:
        """Return the layout of a variable, with its reason; None if there is none.

        In this order: the layout assigned to the variable object, as in Keras; the rules of the map; the model's own
        layout; `axis_names` of dims that its layer names; for a statistic, the parameter of the same shape beside it
        (BatchNorm's `scale` for `mean`); for a factor of LoRA, or the scales of a quantized weight, that weight, dim
        by dim.
        """
        assigned = getattr(variable, "_layout", None)
        if assigned is not None:
            return assigned.because("assigned to the variable")
        rule = self.layout_map.match(variable.path, getattr(variable, "names", ()))
        if rule is not None:
            return self.layout_map.rule_layout(rule).because(rule)
        own = getattr(variable, "own", None)
        if own is not None:
            return own.resolve(self.device_mesh, self.axis_names)
        names = dim_names.for_rules(getattr(variable, "dim_names", ()))
        if not self.axis_names.keys().isdisjoint(names):
            axes: list[Any] = [None if name is None else self.axis_names.get(name) for name in names]
            return TensorLayout(axes, self.device_mesh).because(f"axis_names of {', '.join(filter(None, names))}")
        for parameter in getattr(variable, "beside", ()):
            layout = self._decided(parameter)
            if layout is not None:
                return layout.because(f"follows {parameter.path}")
        return self._following(variable, self._decided)

    def _following(
        self, variable: Any, layout_of: Callable[[VariableSpec], TensorLayout | None]
    ) -> TensorLayout | None:
        """Return the layout of the weight that a variable follows, dim by dim; None for other variables."""
        factor_of = getattr(variable, "factor_of", None)
        if factor_of is None:
            return None
        weight, dims = cast("tuple[VariableSpec, tuple[int | None, ...]]", factor_of)
        layout = layout_of(weight)
        if layout is None:
            return None
        axes = [None if dim is None else layout.axes[dim] for dim in dims]
        sizes = zip(axes, variable.shape, strict=True)
        # scales of a quantized weight may be too few for an axis
        axes = [None if size % self.device_mesh.axis_size(axis_tuple(axis)) else axis for axis, size in sizes]
        return TensorLayout(axes, layout.device_mesh).because(f"follows {weight.path}")


def _check_axis_names(axis_names: Any, mesh: DeviceMesh) -> dict[str, str | tuple[str, ...] | None]:
    if axis_names is not None and not isinstance(axis_names, Mapping):
        expected = "a dict from the model's names of dims to an axis of the mesh, a tuple of axes, or None"
        example = {"embed": mesh.axis_names[0], "layers": None}
        raise argument_error("axis_names", axis_names, expected, example=example, error=DistributionError)
    return {
        name: None if axes is None else resolve_axes(f"axis_names[{name!r}]", axes, mesh)
        for name, axes in cast("Mapping[str, Any]", axis_names or {}).items()
    }
