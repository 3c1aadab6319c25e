"""`SpatialLayer`: the base of layers over one, two or three spatial dims."""

from __future__ import annotations

from typing import Any

import jax

from keras_dist.config.settings import check_data_format
from keras_dist.errors import ModelError
from keras_dist.layers.base.call_arguments import InputSpec
from keras_dist.layers.base.layer import Layer
from keras_dist.ops.spatial import SpatialDims


class SpatialLayer(Layer):
    """The base of layers over `rank` spatial dims."""

    rank: int

    def __init_subclass__(cls, rank: int | None = None, **kwargs: Any) -> None:
        """Set the number of spatial dims: `class Conv2D(Convolution, rank=2)`."""
        super().__init_subclass__(**kwargs)
        if rank is not None:
            cls.rank = rank

    def __init__(self, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_format = check_data_format(data_format, self.name)
        self.input_spec = InputSpec(ndim=self.rank + 2)

    @property
    def _dims(self) -> SpatialDims:
        return SpatialDims(self.rank, self.data_format == "channels_last")

    @property
    def spatial_axes(self) -> tuple[int, ...]:
        """The spatial dims of inputs."""
        return self._dims.axes

    def check_not_empty(self, outputs: jax.Array, inputs: jax.Array) -> jax.Array:
        """Return `outputs`; raise if a dim has become 0."""
        if outputs.size == 0 and inputs.size > 0:
            given = f"input of shape {inputs.shape}, which gives an output of shape {outputs.shape}"
            fix = 'make the input larger, or the window of the layer smaller; padding="same" keeps small inputs'
            raise ModelError(f"nothing is left of the input of layer {self.name!r}", given=given, fix=fix)
        return outputs
