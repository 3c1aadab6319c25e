"""`SimpleRNNCell` and `SimpleRNN`."""

from __future__ import annotations

from typing import Any

from keras_dist.layers.input_spec import InputSpec
from keras_dist.layers.recurrent_cell import Noise, RecurrentCell, project
from keras_dist.layers.recurrent_layer import RecurrentLayer


class SimpleRNNCell(RecurrentCell):
    """One step of `SimpleRNN`: `activation(inputs @ kernel + state @ recurrent_kernel + bias)`.

    Args:
        units: size of the output.
        activation: a name or a function; None for none.
        use_bias: whether a bias is added.
        kernel_initializer: gives the first value of `kernel` (features, units).
        recurrent_initializer: gives the first value of `recurrent_kernel` (units, units).
        bias_initializer: gives the first value of `bias` (units,).
        kernel_regularizer: a function of `kernel` that is added to the loss.
        recurrent_regularizer: likewise of `recurrent_kernel`.
        bias_regularizer: likewise.
        kernel_constraint: a function of `kernel`, applied after each update.
        recurrent_constraint: likewise of `recurrent_kernel`.
        bias_constraint: likewise.
        dropout: which fraction of the inputs is dropped in training, the same in all steps.
        recurrent_dropout: likewise of the states.
        seed: fixes what is dropped.
        kernel_layout: where the dims of `kernel` lie: a `TensorLayout`, or axes; layout rules win over it.
        recurrent_kernel_layout: likewise.
        bias_layout: likewise.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: an argument is out of its range.

    Source: `keras.layers.SimpleRNNCell`.
    """

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
        *,
        kernel_layout: Any = None,
        recurrent_kernel_layout: Any = None,
        bias_layout: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            units,
            activation=activation,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            recurrent_initializer=recurrent_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            recurrent_regularizer=recurrent_regularizer,
            bias_regularizer=bias_regularizer,
            kernel_constraint=kernel_constraint,
            recurrent_constraint=recurrent_constraint,
            bias_constraint=bias_constraint,
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
            seed=seed,
            kernel_layout=kernel_layout,
            recurrent_kernel_layout=recurrent_kernel_layout,
            bias_layout=bias_layout,
            **kwargs,
        )

    def call(
        self, sequence: Any, states: Any, training: bool | None = False, noise: Noise | None = None
    ) -> tuple[Any, list[Any]]:
        """The output (batch, units) for one position of a sequence (batch, features), and the new states.

        Args:
            sequence: (batch, features).
            states: a list of one state (batch, units).
            training: whether inputs and states are dropped.
            noise: what `draw_noise` gave; by default it is drawn.
        """
        of_inputs, of_states = self._noise(sequence, training, noise)
        outputs = project(sequence, self.kernel[...], of_inputs)
        outputs = outputs + project(states[0], self.recurrent_kernel[...], of_states)
        outputs = self.activation(outputs + self.bias[...] if self.use_bias else outputs)
        return outputs, [outputs]


class SimpleRNN(RecurrentLayer):
    """A recurrent layer whose state is its output. Weights are found under `simple_rnn_cell/kernel` and so on.

    Args:
        units: as all arguments up to `recurrent_dropout`: as of `SimpleRNNCell`.
        activation: likewise.
        use_bias: likewise.
        kernel_initializer: likewise.
        recurrent_initializer: likewise.
        bias_initializer: likewise.
        kernel_regularizer: likewise.
        recurrent_regularizer: likewise.
        bias_regularizer: likewise.
        activity_regularizer: a function of the output that is added to the loss.
        kernel_constraint: as of `SimpleRNNCell`.
        recurrent_constraint: likewise.
        bias_constraint: likewise.
        dropout: likewise.
        recurrent_dropout: likewise.
        return_sequences: as all arguments up to `unroll`: as of `RNN`.
        return_state: likewise.
        go_backwards: likewise.
        stateful: likewise.
        unroll: likewise.
        seed: fixes what is dropped.
        kernel_layout: where the dims of `kernel` lie: a `TensorLayout`, or axes; layout rules win over it.
        recurrent_kernel_layout: likewise.
        bias_layout: likewise.
        **kwargs: as of `RNN`.

    Raises:
        ModelError: an argument is out of its range.

    Source: `keras.layers.SimpleRNN`.
    """

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        seed: int | None = None,
        *,
        kernel_layout: Any = None,
        recurrent_kernel_layout: Any = None,
        bias_layout: Any = None,
        **kwargs: Any,
    ) -> None:
        cell = SimpleRNNCell(
            units,
            activation=activation,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            recurrent_initializer=recurrent_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            recurrent_regularizer=recurrent_regularizer,
            bias_regularizer=bias_regularizer,
            kernel_constraint=kernel_constraint,
            recurrent_constraint=recurrent_constraint,
            bias_constraint=bias_constraint,
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
            seed=seed,
            kernel_layout=kernel_layout,
            recurrent_kernel_layout=recurrent_kernel_layout,
            bias_layout=bias_layout,
            dtype=kwargs.get("dtype"),
            trainable=kwargs.get("trainable", True),
            name="simple_rnn_cell",
        )
        super().__init__(
            cell,
            return_sequences=return_sequences,
            return_state=return_state,
            go_backwards=go_backwards,
            stateful=stateful,
            unroll=unroll,
            activity_regularizer=activity_regularizer,
            **kwargs,
        )
        self.input_spec = InputSpec(ndim=3)
