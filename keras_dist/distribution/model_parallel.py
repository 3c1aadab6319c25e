"""`ModelParallel`: variables sharded by rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.strategy import BatchDimName, Distribution
from keras_dist.errors import DistributionError


def check_layout_map(layout_map: Any) -> LayoutMap:
    """`layout_map`, if it is one and has a mesh.

    Raises:
        DistributionError: it is not, or has none.
    """
    if layout_map is None:
        raise DistributionError(
            "You must specify a layout_map argument.",
            given="layout_map=None",
            expected="a LayoutMap",
            fix="pass LayoutMap(mesh); an empty one replicates everything",
        )
    if not isinstance(layout_map, LayoutMap):
        raise DistributionError(
            "Argument `layout_map` must be a `LayoutMap` instance",
            given=f"layout_map={layout_map!r} of type {type(layout_map).__name__}",
            expected="a keras_dist.LayoutMap, which carries the mesh",
            fix='rules = LayoutMap(mesh); rules["d1/kernel"] = (None, "model"); ModelParallel(rules)',
        )
    if layout_map.device_mesh is None:
        raise DistributionError(
            "the layout map has no mesh",
            given="LayoutMap(None)",
            expected="a LayoutMap with a mesh",
            fix="LayoutMap(mesh)",
        )
    return layout_map


class ModelParallel(Distribution):
    """Variables sharded by rules, and the batch over one axis, or several, of the same mesh.

    A variable that no rule matches is replicated, and the plan says so.

    Args:
        layout_map: rules from variable paths to layouts; carries the mesh.
        batch_dim_name: the mesh axis, or axes, for the batch; by default the first.
        auto_shard_dataset: whether data sets are sharded over the processes of the job.
        strict: raise for a rule that has no effect, where otherwise a warning is given.

    Raises:
        DistributionError: `layout_map` is missing, is not a `LayoutMap` or has no mesh; or `batch_dim_name` is not an
            axis; or the processes cannot be divided among the model replicas.

    Example:
        >>> import keras_dist as kd
        >>> rules = kd.LayoutMap(kd.DeviceMesh((2, 4), ("data", "model")))
        >>> rules["d1/kernel"] = (None, "model")
        >>> kd.ModelParallel(rules, batch_dim_name="data").num_model_replicas
        2

    Differs from Keras: arguments may be positional, unknown ones are refused; `strict`; several batch axes.

    Source: `keras.distribution.ModelParallel`.
    """

    def __init__(
        self,
        layout_map: LayoutMap | None = None,
        batch_dim_name: BatchDimName | None = None,
        auto_shard_dataset: bool = True,
        *,
        strict: bool = False,
    ) -> None:
        self._layout_map = check_layout_map(layout_map)
        self._strict = strict
        mesh = self._layout_map.device_mesh
        super().__init__(mesh, batch_dim_name or mesh.axis_names[0], auto_shard_dataset)  # type: ignore[union-attr]
        if (
            self._is_multi_process
            and self.num_processes > self.num_model_replicas
            and self.num_processes % self.num_model_replicas != 0
        ):
            raise DistributionError(
                "If `num_processes` is greater than `num_model_replicas`, `num_processes` must be divisible by "
                "`num_model_replicas`",
                given=f"num_processes={self.num_processes}, num_model_replicas={self.num_model_replicas}",
                expected="a multiple of the number of model replicas",
                fix=f"start the job with a multiple of {self.num_model_replicas} processes, or change the mesh",
            )

    @property
    def layout_map(self) -> LayoutMap:
        """The layout rules."""
        return self._layout_map

    @property
    def strict(self) -> bool:
        """Whether a layout rule without effect is an error."""
        return self._strict

    @property
    def num_model_replicas(self) -> int:
        """Number of shards of the batch."""
        return self._batch_shards()

    def get_data_layout(self, data_shape: Sequence[int]) -> TensorLayout:
        """The batch dim over `batch_dim_name`."""
        return self._shard_batch(data_shape)

    def get_variable_layout(self, variable: Any) -> TensorLayout:
        """The layout that was assigned to the variable, that a rule gives it, else replicated.

        Raises:
            LayoutError: several rules match.
        """
        layout = self._layout_map.layout_of(variable)
        return TensorLayout.replicated(len(variable.shape), self.device_mesh) if layout is None else layout

    def get_tensor_layout(self, path: str) -> TensorLayout | None:
        """What the rules say of the activation or input called `path`.

        Raises:
            LayoutError: several rules match.
        """
        return self._layout_map[path]
