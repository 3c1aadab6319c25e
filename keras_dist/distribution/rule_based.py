"""`RuleBased`: what the strategies with layout rules have in common."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self

from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.mesh import DeviceMesh, axis_tuple
from keras_dist.distribution.strategy import BatchDimName, Distribution
from keras_dist.errors import DistributionError


class RuleBased(Distribution):
    """A strategy whose layouts come from a `LayoutMap`. Abstract.

    Args:
        device_mesh: the mesh of `layout_map`.
        layout_map: the rules.
        batch_dim_name: the mesh axis, or axes, for the batch.
        auto_shard_dataset: whether all processes of the job are given the same data, of which each takes its share;
            else each is given its own, in batches of its own, which make the global ones together.
        strict: whether a rule without effect is an error.

    Raises:
        DistributionError: `batch_dim_name` is not an axis, or the processes cannot be divided among the replicas.
    """

    def __init__(
        self,
        device_mesh: DeviceMesh,
        layout_map: LayoutMap,
        batch_dim_name: BatchDimName,
        auto_shard_dataset: bool,
        strict: bool,
    ) -> None:
        super().__init__(device_mesh, batch_dim_name, auto_shard_dataset)
        self._layout_map = layout_map
        self._strict = strict
        replicas = self.num_model_replicas
        if self._is_multi_process and self.num_processes > replicas and self.num_processes % replicas != 0:
            raise DistributionError(
                "If `num_processes` is greater than `num_model_replicas`, `num_processes` must be divisible by "
                "`num_model_replicas`",
                given=f"num_processes={self.num_processes}, num_model_replicas={replicas}",
                expected="a multiple of the number of model replicas",
                fix=f"start the job with a multiple of {replicas} processes, or change the mesh",
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
        return self.device_mesh.axis_size(axis_tuple(self.batch_dim_name))

    def get_data_layout(self, data_shape: Sequence[int]) -> TensorLayout:
        """The batch dim over `batch_dim_name`."""
        return self._shard_batch(data_shape)

    def get_tensor_layout(self, path: str) -> TensorLayout | None:
        """What the rules say of the activation or input called `path`.

        Raises:
            LayoutError: several rules match.
        """
        return self._layout_map[path]

    def snapshot(self) -> Self:
        """This distribution as it is now; rules that are added later do not reach it."""
        same = copy.copy(self)
        same._layout_map = self._layout_map.copy()
        return same
