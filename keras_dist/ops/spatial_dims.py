"""`SpatialDims`: the order of the dims of images, and of arrays with one or three spatial dims."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class SpatialDims:
    """The dims of arrays with a batch, channels, and spatial dims.

    Attributes:
        rank: the number of spatial dims.
        channels_last: whether the channels are the last dim, not the one after the batch.
    """

    rank: int
    channels_last: bool

    @property
    def axes(self) -> tuple[int, ...]:
        """The spatial dims."""
        first = 1 if self.channels_last else 2
        return tuple(range(first, first + self.rank))

    @property
    def channel_axis(self) -> int:
        """The dim of the channels."""
        return self.rank + 1 if self.channels_last else 1

    @property
    def of_convolutions(self) -> tuple[str, str, str]:
        """The dims of inputs, kernel and outputs for `jax.lax`, such as `("NHWC", "HWIO", "NHWC")`."""
        spatial = "DHW"[-self.rank :]
        inputs = f"N{spatial}C" if self.channels_last else f"NC{spatial}"
        return inputs, f"{spatial}IO", inputs

    def for_all(self, spatial: Sequence[Any], other: Any) -> tuple[Any, ...]:
        """Return `spatial`, one value for each spatial dim, with `other` for the batch and the channels."""
        return (other, *spatial, other) if self.channels_last else (other, other, *spatial)
