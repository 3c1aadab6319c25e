"""`LSTMCell` and `LSTM`: long short-term memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from keras_dist._support.types import DTypeLike
from keras_dist.layers.recurrent.recurrent_cell import GatedArguments, GatedCell, Noise, Step, check_no_cudnn, project
from keras_dist.layers.recurrent.rnn import RecurrentLayer, RecurrentLayerArguments
from keras_dist.layers.weight_arguments import Identifier


class LSTMCell(GatedCell):
    """One step of `LSTM`, the long short-term memory: https://doi.org/10.1162/neco.1997.9.8.1735.

    `c = f * c_before + i * candidate` and `h = o * activation(c)`, where the gates i, f and o are
    `recurrent_activation(inputs @ kernel + h_before @ recurrent_kernel + bias)`. The columns of the kernels belong to
    i, f, the candidate and o. The states are h and c.

    Args:
        units: size of the output.
        activation: a name or a function, for new values; None for none.
        recurrent_activation: a name or a function, for gates; None for none.
        use_bias: whether a bias is added.
        unit_forget_bias: whether the bias of the forget gate is initialized to ones.
        **kwargs: initializer, regularizer, constraint and layout, such as `kernel_initializer`, of the weights `kernel`
            (features, 4 * units) and `bias` (4 * units,); the arguments of `Layer`.
        implementation: as in `GRUCell`.
    """

    gates, states = 4, 2

    def __init__(
        self,
        units: int,
        activation: Identifier = "tanh",
        recurrent_activation: Identifier = "sigmoid",
        use_bias: bool = True,
        *,
        unit_forget_bias: bool = True,
        **kwargs: Unpack[GatedArguments],
    ) -> None:
        super().__init__(units, activation, recurrent_activation, use_bias, **kwargs)
        self.unit_forget_bias = unit_forget_bias

    def _step(self, inputs: jax.Array, states: Sequence[jax.Array], noise: Noise) -> Step:
        of_inputs, of_states = noise
        columns = project(inputs, self.kernel[...], of_inputs)
        columns = columns + project(states[0], self.recurrent_kernel[...], of_states)
        columns = columns + self.bias[...] if self.use_bias else columns
        return lstm_states(self, columns, states[1])

    def _first_bias(self) -> Identifier:
        return with_open_forget_gate(self.bias_initializer, self.units) if self.unit_forget_bias else None


def lstm_states(cell: Any, columns: jax.Array, memory: jax.Array) -> Step:
    """Return the output, and the new states, from the columns of the four gates."""
    added, kept, new, shown = jnp.split(columns, 4, axis=cell.channel_axis)
    memory = cell.recurrent_activation(kept) * memory + cell.recurrent_activation(added) * cell.activation(new)
    outputs = cell.recurrent_activation(shown) * cell.activation(memory)
    return outputs, [outputs, memory]


def with_open_forget_gate(initializer: Callable[..., jax.Array], units: int) -> Callable[..., jax.Array]:
    """Return an initializer of the biases of four gates with ones for the second, the forget gate."""

    def initialize(shape: tuple[int, ...], dtype: DTypeLike, key: jax.Array | None = None) -> jax.Array:
        return initializer(shape, dtype, key=key).at[units : 2 * units].set(1)

    return initialize


class LSTMArguments(RecurrentLayerArguments, total=False):
    """Keyword arguments of `LSTM`."""

    unit_forget_bias: bool
    implementation: int


class LSTM(RecurrentLayer):
    """The long short-term memory over a sequence: `LSTMCell` in `RNN`.

    Paths of weights are `lstm_cell/kernel` and so on.

    Args:
        use_cudnn: must not be True: cuDNN is not used.
        **kwargs: the arguments of `LSTMCell`, then the arguments of `RNN`, such as `return_sequences`.
    """

    cell_class = LSTMCell

    def __init__(
        self,
        units: int,
        activation: Identifier = "tanh",
        recurrent_activation: Identifier = "sigmoid",
        use_bias: bool = True,
        *,
        use_cudnn: bool | str = "auto",
        **kwargs: Unpack[LSTMArguments],
    ) -> None:
        super().__init__(units, activation, recurrent_activation, use_bias, **kwargs)
        self.use_cudnn = check_no_cudnn(use_cudnn, self.name)
