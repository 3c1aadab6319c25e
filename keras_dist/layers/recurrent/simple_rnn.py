"""`SimpleRNNCell` and `SimpleRNN`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import jax

from keras_dist.layers.recurrent.recurrent_cell import Noise, RecurrentArguments, RecurrentCell, Step, project
from keras_dist.layers.recurrent.rnn import RecurrentLayer, RecurrentLayerArguments
from keras_dist.layers.weight_arguments import Identifier


class SimpleRNNCell(RecurrentCell):
    """One step of `SimpleRNN`: `activation(inputs @ kernel + state @ recurrent_kernel + bias)`.

    Args:
        units: size of the output.
        activation: a name or a function; None for none.
        use_bias: whether a bias is added.
        dropout: fraction of the inputs that is dropped in training, the same in all steps.
        recurrent_dropout: fraction of the states that is dropped in training, the same in all steps.
        seed: fixes what is dropped.
        recurrent_initializer: gives the first value of the weight `recurrent_kernel` (units, units).
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
