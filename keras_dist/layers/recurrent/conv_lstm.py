"""`ConvLSTM1D`, `ConvLSTM2D` and `ConvLSTM3D`: long short-term memory with convolutions."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from keras_dist import activations
from keras_dist._support.arguments import check_option, check_sizes
from keras_dist._support.types import Shape
from keras_dist.config.settings import check_data_format
from keras_dist.errors import ModelError
from keras_dist.layers.base.call_arguments import InputSpec
from keras_dist.layers.base.weight_arguments import Identifier
from keras_dist.layers.base.weight_lists import not_built
from keras_dist.layers.recurrent.recurrent_cell import Noise, RecurrentArguments, RecurrentCell, Step
from keras_dist.layers.recurrent.recurrent_layers import lstm_states, with_open_forget_gate
from keras_dist.layers.recurrent.rnn import RecurrentLayer, RecurrentLayerArguments
from keras_dist.ops.spatial import SpatialDims, convolve


class ConvLSTMCell(RecurrentCell):
    """One step of a `ConvLSTM` over `rank` spatial dims. Both states have the shape of the output."""

    gates, states = 4, 2
    implementation = 1  # separate dropout for each gate
    rank: int

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        activation: Identifier = "tanh",
        recurrent_activation: Identifier = "sigmoid",
        use_bias: bool = True,
        *,
        unit_forget_bias: bool = True,
        **kwargs: Unpack[RecurrentArguments],
    ) -> None:
        super().__init__(filters, activation, use_bias, **kwargs)
        self.kernel_size = check_sizes("kernel_size", kernel_size, self.rank, self.name)
        self.strides = check_sizes("strides", strides, self.rank, self.name)
        self.padding = check_option("padding", padding, ("valid", "same"), self.name)
        self.data_format = check_data_format(data_format, self.name)
        self.channel_axis = self._dims.channel_axis
        self.dilation_rate = check_sizes("dilation_rate", dilation_rate, self.rank, self.name)
        self.identify("recurrent_activation", activations.get, recurrent_activation)
        self.unit_forget_bias = unit_forget_bias
        if max(self.strides) > 1 and max(self.dilation_rate) > 1:
            given = f"strides={self.strides}, dilation_rate={self.dilation_rate}"
            fix = "strides=1, or dilation_rate=1"
            raise ModelError(f"layer {self.name!r} has strides and a dilation_rate", given=given, fix=fix)

    @property
    def _dims(self) -> SpatialDims:
        return SpatialDims(self.rank, self.data_format == "channels_last")

    @property
    def filters(self) -> int:
        """Number of output channels."""
        return self.units

    def _step(self, inputs: jax.Array, states: Sequence[jax.Array], noise: Noise) -> Step:
        of_inputs, of_states = noise
        ones = (1,) * self.rank
        options = (self.strides, self.padding, self.dilation_rate)
        columns = self._project(inputs, self.kernel[...], of_inputs, *options)
        columns = columns + self._project(states[0], self.recurrent_kernel[...], of_states, ones, "same", ones)
        if self.use_bias:
            spatial = () if self._dims.channels_last else range(1, self.rank + 1)
            columns = columns + jnp.expand_dims(self.bias[...], tuple(spatial))
        return lstm_states(self, columns, states[1])

    def state_shape(self, input_shape: Shape) -> tuple[int, ...]:
        """Return the shape of the states for inputs of this shape."""
        spatial: Any = [input_shape[axis] for axis in self._dims.axes]
        sizes: list[int] = []
        for size, window, stride, rate in zip(spatial, self.kernel_size, self.strides, self.dilation_rate, strict=True):
            steps = size if self.padding == "same" else size - rate * (window - 1)
            sizes.append(-(-steps // stride))
        if min(sizes) < 1:
            given = f"images of sizes {tuple(spatial)}, kernel_size={self.kernel_size}"
            fix = 'padding="same", or a smaller kernel'
            raise ModelError(f"nothing is left of the input of layer {self.name!r}", given=given, fix=fix)
        batch = input_shape[0] or 1
        return (batch, *sizes, self.filters) if self._dims.channels_last else (batch, self.filters, *sizes)

    def initial_states(self, input_shape: Shape) -> list[jax.Array]:
        """Return zeros for both states."""
        return [jnp.zeros(self.state_shape(input_shape), self.compute_dtype)] * 2

    def _first_bias(self) -> Identifier:
        return with_open_forget_gate(self.bias_initializer, self.units) if self.unit_forget_bias else None

    def _project(
        self,
        inputs: jax.Array,
        kernel: jax.Array,
        noise: Sequence[jax.Array],
        strides: Sequence[int],
        padding: str,
        dilation: Sequence[int],
    ) -> jax.Array:
        """Convolve; `noise` multiplies the inputs of each gate."""
        if not noise:
            return convolve(self._dims, inputs, kernel, strides, padding, dilation)
        parts = zip(noise, jnp.split(kernel, self.gates, -1), strict=True)
        found = [convolve(self._dims, inputs * one, part, strides, padding, dilation) for one, part in parts]
        return jnp.concatenate(found, self.channel_axis)


class ConvLSTM(RecurrentLayer):
    """The base of `ConvLSTM1D`, `ConvLSTM2D` and `ConvLSTM3D`: `ConvLSTMCell` in `RNN`."""

    cell_class = ConvLSTMCell
    cell_name = "conv_lstm_cell"

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        activation: Identifier = "tanh",
        recurrent_activation: Identifier = "sigmoid",
        use_bias: bool = True,
        **kwargs: Unpack[RecurrentLayerArguments],
    ) -> None:
        sizes = (filters, kernel_size, strides, padding, data_format, dilation_rate)
        super().__init__(*sizes, activation, recurrent_activation, use_bias, **kwargs)
        self.input_spec = InputSpec(ndim=self.cell.rank + 3)

    filters = property(operator.attrgetter("cell.filters"), doc="Number of output channels.")
    kernel_size = property(operator.attrgetter("cell.kernel_size"), doc="Size of the window.")

    def get_initial_state(self, batch_size: int) -> list[jax.Array]:
        """Return zeros for both states, for the input shape that the layer was built for."""
        shapes = self.get_build_config()
        if shapes is None:
            raise not_built(self, "get_initial_state")
        shape = shapes.get("input_shape") or shapes["shapes_dict"]["sequences_shape"]
        return self.cell.initial_states((batch_size, *shape[2:]))

    def states_before(self, sequences_shape: Shape) -> list[jax.Array]:
        """Return the initial states for sequences of this shape."""
        return self.cell.initial_states((sequences_shape[0], *sequences_shape[2:]))


class _ConvLSTMCell1D(ConvLSTMCell):
    rank = 1


class _ConvLSTMCell2D(ConvLSTMCell):
    rank = 2


class _ConvLSTMCell3D(ConvLSTMCell):
    rank = 3


class ConvLSTM1D(ConvLSTM):
    """Convolutional LSTM over sequences (batch, time, size, channels). Arguments as in `ConvLSTM2D`."""

    cell_class = _ConvLSTMCell1D


class ConvLSTM2D(ConvLSTM):
    """Convolutional LSTM over videos (batch, time, height, width, channels).

    Shi et al. 2015, arXiv:1506.04214, without peephole connections. Paths of weights are `conv_lstm_cell/kernel` etc.

    Args:
        filters, kernel_size, strides, dilation_rate, use_bias: as in `Conv2D`, over the inputs.
        padding: `"valid"` for no padding of the inputs, `"same"` for zero padding.
        data_format: `"channels_last"`, the default, for inputs (batch, time, spatial dims, channels); or
            `"channels_first"` for inputs (batch, time, channels, spatial dims).
        activation, recurrent_activation: as in `GRUCell`.
        **kwargs: `unit_forget_bias` (whether the bias of the forget gate begins with ones), `dropout`,
            `recurrent_dropout`, `seed`; the initializer, regularizer, constraint and layout of the weights; then the
            arguments of `RNN`, such as `return_sequences`.
    """

    cell_class = _ConvLSTMCell2D


class ConvLSTM3D(ConvLSTM):
    """Convolutional LSTM over sequences of volumes (batch, time, depth, height, width, channels).

    Arguments as in `ConvLSTM2D`.
    """

    cell_class = _ConvLSTMCell3D
