"""`LSTMCell` and `LSTM`: long short-term memory."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from keras_dist import activations
from keras_dist.layers.input_spec import InputSpec
from keras_dist.layers.recurrent_cell import Noise, RecurrentCell, check_no_cudnn, project
from keras_dist.layers.recurrent_layer import RecurrentLayer, of_cell


class LSTMCell(RecurrentCell):
    """One step of `LSTM`. The columns of its kernels are those of the input gate, forget gate, new value, output gate.

    Args:
        units: size of the output.
        activation: a name or a function, for new values; None for none.
        recurrent_activation: likewise, for gates.
        use_bias: whether a bias is added.
        kernel_initializer: gives the first value of `kernel` (features, 4 * units).
        recurrent_initializer: gives the first value of `recurrent_kernel` (units, 4 * units).
        bias_initializer: gives the first value of `bias` (4 * units,).
        unit_forget_bias: whether the bias of the forget gate begins with ones.
        kernel_regularizer: a function of `kernel` that is added to the loss.
        recurrent_regularizer: likewise of `recurrent_kernel`.
        bias_regularizer: likewise.
        kernel_constraint: a function of `kernel`, applied after each update.
        recurrent_constraint: likewise of `recurrent_kernel`.
        bias_constraint: likewise.
        dropout: which fraction of the inputs is dropped in training, the same in all steps.
        recurrent_dropout: likewise of the states.
        seed: fixes what is dropped.
        implementation: 1 to drop for each gate apart; so does `recurrent_dropout`.
        kernel_layout: where the dims of `kernel` lie: a `TensorLayout`, or axes; layout rules win over it.
        recurrent_kernel_layout: likewise.
        bias_layout: likewise.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: an argument is out of its range.

    Source: `keras.layers.LSTMCell`.
    """

    gates = 4

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        unit_forget_bias: bool = True,
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
        self.identify("recurrent_activation", activations.get, recurrent_activation)
        self.unit_forget_bias = unit_forget_bias

    @property
    def state_size(self) -> list[int]:
        """Sizes of its states."""
        return [self.units, self.units]

    def call(
        self, inputs: Any, states: Any, training: bool | None = False, noise: Noise | None = None
    ) -> tuple[Any, list[Any]]:
        """The output (batch, units) for inputs (batch, features), and the new states.

        Args:
            inputs: (batch, features).
            states: a list of the output and the memory of the step before, (batch, units) each.
            training: whether inputs and states are dropped.
            noise: what `draw_noise` gave; by default it is drawn.
        """
        of_inputs, of_states = self._noise(inputs, training, noise)
        columns = project(inputs, self.kernel[...], of_inputs)
        columns = columns + project(states[0], self.recurrent_kernel[...], of_states)
        columns = columns + self.bias[...] if self.use_bias else columns
        added, kept, new, shown = jnp.split(columns, 4, axis=1)
        memory = self.recurrent_activation(kept) * states[1] + self.recurrent_activation(added) * self.activation(new)
        outputs = self.recurrent_activation(shown) * self.activation(memory)
        return outputs, [outputs, memory]

    def _first_bias(self) -> Any:
        def with_open_forget_gate(shape: Any, dtype: Any, key: Any = None) -> Any:
            return self.bias_initializer(shape, dtype, key=key).at[self.units : 2 * self.units].set(1)

        return with_open_forget_gate if self.unit_forget_bias else None


class LSTM(RecurrentLayer):
    """A recurrent layer with a memory beside its output. Weights are found under `lstm_cell/kernel` and so on.

    Args:
        units: as all arguments up to `recurrent_dropout`: as of `LSTMCell`.
        activation: likewise.
        recurrent_activation: likewise.
        use_bias: likewise.
        kernel_initializer: likewise.
        recurrent_initializer: likewise.
        bias_initializer: likewise.
        unit_forget_bias: likewise.
        kernel_regularizer: likewise.
        recurrent_regularizer: likewise.
        bias_regularizer: likewise.
        activity_regularizer: a function of the output that is added to the loss.
        kernel_constraint: as of `LSTMCell`.
        recurrent_constraint: likewise.
        bias_constraint: likewise.
        dropout: likewise.
        recurrent_dropout: likewise.
        seed: fixes what is dropped.
        return_sequences: as all arguments up to `unroll`: as of `RNN`.
        return_state: likewise.
        go_backwards: likewise.
        stateful: likewise.
        unroll: likewise.
        use_cudnn: as in Keras; True is refused, since there is no such kernel here.
        implementation: as of `LSTMCell`.
        kernel_layout: where the dims of `kernel` lie: a `TensorLayout`, or axes; layout rules win over it.
        recurrent_kernel_layout: likewise.
        bias_layout: likewise.
        **kwargs: as of `RNN`.

    Raises:
        ModelError: an argument is out of its range.

    Source: `keras.layers.LSTM`.
    """

    recurrent_activation = of_cell("recurrent_activation")
    unit_forget_bias = of_cell("unit_forget_bias")

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        unit_forget_bias: bool = True,
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        use_cudnn: Any = "auto",
        *,
        implementation: int = 2,
        kernel_layout: Any = None,
        recurrent_kernel_layout: Any = None,
        bias_layout: Any = None,
        **kwargs: Any,
    ) -> None:
        cell = LSTMCell(
            units,
            activation=activation,
            recurrent_activation=recurrent_activation,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            recurrent_initializer=recurrent_initializer,
            bias_initializer=bias_initializer,
            unit_forget_bias=unit_forget_bias,
            kernel_regularizer=kernel_regularizer,
            recurrent_regularizer=recurrent_regularizer,
            bias_regularizer=bias_regularizer,
            kernel_constraint=kernel_constraint,
            recurrent_constraint=recurrent_constraint,
            bias_constraint=bias_constraint,
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
            seed=seed,
            implementation=implementation,
            kernel_layout=kernel_layout,
            recurrent_kernel_layout=recurrent_kernel_layout,
            bias_layout=bias_layout,
            dtype=kwargs.get("dtype"),
            trainable=kwargs.get("trainable", True),
            name="lstm_cell",
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
        self.use_cudnn = check_no_cudnn(use_cudnn, self.name)
