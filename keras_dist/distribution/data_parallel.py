"""`DataParallel`: every device holds the whole model and a shard of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from keras_dist._support.arguments import check_exclusive, check_flag
from keras_dist._support.located_warnings import warn
from keras_dist._support.types import Device
from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.lint import Problem
from keras_dist.distribution.mesh import DeviceMesh, axis_tuple, check_mesh
from keras_dist.distribution.strategy import Distribution, register_strategy
from keras_dist.distribution.variables import VariableSpec
from keras_dist.distribution.whole_weights import LARGE_NBYTES, nbytes_of, whole_weights
from keras_dist.errors import ConfigError, DistributionError, LayoutWarning

if TYPE_CHECKING:
    from keras_dist.config import DataParallelConfig

DEFAULT_BATCH_DIM_NAME = "batch"


@register_strategy("data_parallel")
class DataParallel(Distribution):
    """Every device holds the whole model and a shard of the batch.

    Sharding metadata of variables is ignored, which the plan reports; a layout that is passed to a layer
    (`kernel_layout=`) is applied.

    Args:
        device_mesh: the devices, as a mesh of one axis; the first of several axes shards the batch.
        devices: the devices as a list, instead of a mesh; by default all devices of the job.
        auto_shard_dataset: whether all processes pass the same data; if not, each passes its own part, in batches.
        shard_optimizer: shard optimizer states over the batch axis (ZeRO-1): less memory and the same results, for one
            gather of the updates per step.

    Raises:
        DistributionError: both `device_mesh` and `devices` are given, or the mesh is not a `DeviceMesh`.

    Differs from Keras: `shard_optimizer`; `device_mesh` with `devices` is an error.

    Source: `keras.distribution.DataParallel`; Rajbhandari et al. 2020, arXiv:1910.02054 (ZeRO).
    """

    def __init__(
        self,
        device_mesh: DeviceMesh | None = None,
        devices: Sequence[str | Device] | None = None,
        auto_shard_dataset: bool = True,
        *,
        shard_optimizer: bool = False,
    ) -> None:
        check_exclusive(DistributionError, device_mesh=device_mesh, devices=devices)
        if device_mesh is None:
            device_mesh = DeviceMesh([-1], [DEFAULT_BATCH_DIM_NAME], devices)
        device_mesh = check_mesh(device_mesh, DistributionError)
        batch_dim_name = device_mesh.axis_names[0]
        super().__init__(device_mesh, batch_dim_name, auto_shard_dataset)
        self.shard_optimizer = check_flag("shard_optimizer", shard_optimizer, DistributionError)
        if device_mesh.devices.ndim != 1:
            warn(
                f"Expect the input mesh to be 1D, but received mesh.devices.ndim={device_mesh.devices.ndim}. "
                f"The first axis, {batch_dim_name!r}, will be used for data-parallel sharding; along the others every "
                "device repeats the same work.",
                LayoutWarning,
            )

    @classmethod
    def from_config(cls, mesh: DeviceMesh, config: DataParallelConfig) -> Self:
        """Return the distribution of a config file with `strategy = "data_parallel"`.

        Raises:
            ConfigError: `batch_axis` is not the first axis.
        """
        first = mesh.axis_names[0]
        if config.batch_axis not in (None, first, (first,)):
            summary = f"distribution.batch_axis must be {first!r}, the first axis of the mesh"
            given = f"{config.batch_axis!r}, mesh {mesh.describe()}"
            raise ConfigError(summary, given=given, fix=f"batch_axis = {first!r}, or strategy = 'model_parallel'")
        return cls(mesh, shard_optimizer=config.shard_optimizer)

    @property
    def num_model_replicas(self) -> int:
        """Number of devices, since each holds the whole model."""
        return self.device_mesh.size

    def get_data_layout(self, data_shape: Sequence[int]) -> TensorLayout:
        """Shard the batch dim over the batch axis."""
        return self._shard_batch(data_shape)

    def get_variable_layout(self, variable: Any) -> TensorLayout:
        """Return the layout assigned to the variable or given to its layer, else replicated."""
        assigned = getattr(variable, "_layout", None)
        if assigned is not None:
            return assigned
        own = getattr(variable, "own", None)
        if own is not None and own.layout is not None:
            return own.resolve(self.device_mesh)
        return TensorLayout.replicated(len(variable.shape), self.device_mesh)

    def get_slot_layout(self, variable: Any) -> TensorLayout:
        """Return the layout of the variable, with `shard_optimizer` also sharded over the batch axis."""
        layout = self.get_variable_layout(variable)
        if not self.shard_optimizer:
            return layout
        sharded = layout.shard_largest_dim(variable.shape, self.batch_dim_name or self.device_mesh.axis_names[0])
        return layout if sharded is None else sharded.because(f"sharded over {self.batch_dim_name!r}")

    def _check_whole(self, decided: Sequence[tuple[VariableSpec, tuple[TensorLayout, TensorLayout]]]) -> list[Problem]:
        large = [(spec, slots) for spec, (_, slots) in decided if nbytes_of(spec) >= LARGE_NBYTES]
        whole = [spec for spec, slots in large if spec.role == "parameter" and not any(slots.axes)]
        axis = axis_tuple(self.batch_dim_name) if self.shard_optimizer else ()
        return whole_weights(whole, axis, self.device_mesh, "the optimizer slots of ")

    def get_tensor_layout(self, path: str) -> TensorLayout | None:
        """Return None: XLA chooses the layouts of activations."""
        return None
