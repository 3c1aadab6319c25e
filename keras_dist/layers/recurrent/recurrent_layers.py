"""`SimpleRNN`, `GRU` and `LSTM`, and their cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from keras_dist._support.types import DTypeLike
from keras_dist.layers.base.weight_arguments import Identifier
from keras_dist.layers.recurrent.recurrent_cell import (
    GatedArguments,
    GatedCell,
    Noise,
    RecurrentArguments,
    RecurrentCell,
    Step,
    check_no_cudnn,
    project,
)
from keras_dist.layers.recurrent.rnn import RecurrentLayer, RecurrentLayerArguments

__all__ = ["GRU", "LSTM", "GRUCell", "LSTMCell", "SimpleRNN", "SimpleRNNCell"]


class SimpleRNNCell(RecurrentCell):
    """One step of `SimpleRNN`: `activation(inputs @ kernel + state @ recurrent_kernel + bias)`.

    Args:
        units: size of the output.
        activation: a name or a function; None for none.
        use_bias: whether a bias is added.
        dropout: fraction of the inputs that is dropped in training, the same in all steps.
        recurrent_dropout: fraction of the states that is dropped in training, the same in all steps.
        seed: seed of the dropout.
        recurrent_initializer: initial values of the weight `recurrent_kernel` (units, units).
        recurrent_regularizer: a function of `recurrent_kernel` that is added to the loss.
        recurrent_constraint: a function of `recurrent_kernel`, applied after each update.
        recurrent_kernel_layout: layout of `recurrent_kernel`: a `TensorLayout`, or axes; layout rules win over it.
        **kwargs: `kernel_initializer`, `kernel_regularizer`, `kernel_constraint` and `kernel_layout` of the weight
            `kernel` (features, units), the same of `bias`, and the arguments of `Layer`.
    """

    def __init__(
        self, units: int, activation: Identifier = "tanh", use_bias: bool = True, **kwargs: Unpack[RecurrentArguments]
    ) -> None:
        super().__init__(units, activation, use_bias, **kwargs)

    def call(  # pyright: ignore[reportIncompatibleMethodOverride]: named as in Keras
        self,
        sequence: jax.Array,
        states: Sequence[jax.Array],
        training: bool | None = False,
        noise: Noise | None = None,
    ) -> Step:
        """Return the output of one time step (batch, features), and the new states."""
        return super().call(sequence, states, training, noise)

    def _step(self, inputs: jax.Array, states: Sequence[jax.Array], noise: Noise) -> Step:
        of_inputs, of_states = noise
        outputs = project(inputs, self.kernel[...], of_inputs)
        outputs = outputs + project(states[0], self.recurrent_kernel[...], of_states)
        outputs = self.activation(outputs + self.bias[...] if self.use_bias else outputs)
        return outputs, [outputs]


class SimpleRNN(RecurrentLayer):
    """Fully connected recurrent network over a sequence: `SimpleRNNCell` in `RNN`.

    Paths of weights are `simple_rnn_cell/kernel` and so on.

    Args:
        **kwargs: the arguments of `SimpleRNNCell`, then the arguments of `RNN`, such as `return_sequences`.
    """

    cell_class = SimpleRNNCell

    def __init__(
        self,
        units: int,
        activation: Identifier = "tanh",
        use_bias: bool = True,
        **kwargs: Unpack[RecurrentLayerArguments],
    ) -> None:
        super().__init__(units, activation, use_bias, **kwargs)


class GRUCell(GatedCell):
    """One step of `GRU`, the gated recurrent unit: https://arxiv.org/abs/1406.1078.

    `h = z * h_before + (1 - z) * candidate`, where the update gate z and the reset gate r are
    `recurrent_activation(inputs @ kernel + h_before @ recurrent_kernel + bias)`. The columns of the kernels belong to
    z, r and the candidate.

    Args:
        units: size of the output.
        activation: a name or a function, for new values; None for none.
        recurrent_activation: a name or a function, for gates; None for none.
        use_bias: whether a bias is added.
        reset_after: whether to use `r * (h_before @ recurrent_kernel)`, or `(r * h_before) @ recurrent_kernel`.
        **kwargs: initializer, regularizer, constraint and layout, such as `kernel_initializer`, of the weights `kernel`
            (features, 3 * units) and `bias` (2, 3 * units), without `reset_after` (3 * units,); the arguments of
            `Layer`.
        implementation: 1, or 0 as in old configs, to drop for each gate apart; so does `recurrent_dropout`.
    """

    gates = 3

    def __init__(
        self,
        units: int,
        activation: Identifier = "tanh",
        recurrent_activation: Identifier = "sigmoid",
        use_bias: bool = True,
        *,
        reset_after: bool = True,
        **kwargs: Unpack[GatedArguments],
    ) -> None:
        super().__init__(units, activation, recurrent_activation, use_bias, **kwargs)
        self.reset_after = reset_after

    def _step(self, inputs: jax.Array, states: Sequence[jax.Array], noise: Noise) -> Step:
        of_inputs, of_states = noise
        state, kernel, split = states[0], self.recurrent_kernel[...], 2 * self.units
        bias, recurrent_bias = self._biases()
        update, reset, new = jnp.split(project(inputs, self.kernel[...], of_inputs) + bias, 3, axis=1)
        if self.reset_after:
            columns = project(state, kernel, of_states) + recurrent_bias
        else:
            columns = project(state, kernel[:, :split], of_states[:2])
        update = self.recurrent_activation(update + columns[:, : self.units])
        reset = self.recurrent_activation(reset + columns[:, self.units : split])
        if self.reset_after:
            old = reset * columns[:, split:]
        else:
            old = project(reset * state, kernel[:, split:], of_states[2:])
        outputs = update * state + (1 - update) * self.activation(new + old)
        return outputs, [outputs]

    def _biases(self) -> tuple[jax.Array | int, jax.Array | int]:
        if not self.use_bias:
            return 0, 0
        return (self.bias[0], self.bias[1]) if self.reset_after else (self.bias[...], 0)

    def _bias_shape(self) -> tuple[int, ...]:
        return (2, 3 * self.units) if self.reset_after else (3 * self.units,)


class GRUArguments(RecurrentLayerArguments, total=False):
    """Keyword arguments of `GRU`."""

    reset_after: bool
    implementation: int


class GRU(RecurrentLayer):
    """The gated recurrent unit over a sequence: `GRUCell` in `RNN`.

    Paths of weights are `gru_cell/kernel` and so on.

    Args:
        use_cudnn: must not be True: cuDNN is not used.
        **kwargs: the arguments of `GRUCell`, then the arguments of `RNN`, such as `return_sequences`.
    """

    cell_class = GRUCell

    def __init__(
        self,
        units: int,
        activation: Identifier = "tanh",
        recurrent_activation: Identifier = "sigmoid",
        use_bias: bool = True,
        *,
        use_cudnn: bool | str = "auto",
        **kwargs: Unpack[GRUArguments],
    ) -> None:
        super().__init__(units, activation, recurrent_activation, use_bias, **kwargs)
        self.use_cudnn = check_no_cudnn(use_cudnn, self.name)


class LSTMCell(GatedCell):
    """One step of `LSTM`, the long short-term memory: https://doi.org/10.1162/neco.1997.9.8.1735.

    `c = f * c_before + i * candidate` and `h = o * activation(c)`, where the gates i, f and o are
    `recurrent_activation(inputs @ kernel + h_before @ recurrent_kernel + bias)`. The columns of the kernels belong to
    i, f, the candidate and o. The states are h and c.

    Args:
        unit_forget_bias: whether the bias of the forget gate is initialized to ones.
        **kwargs: initializer, regularizer, constraint and layout, such as `kernel_initializer`, of the weights `kernel`
            (features, 4 * units) and `bias` (4 * units,); the arguments of `Layer`.
        units, activation, recurrent_activation, use_bias, implementation: as in `GRUCell`.
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
